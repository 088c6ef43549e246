//! Even attention work over data shards, in numbers worked out by hand: a segment of 1, 2, … 8 tokens has 1, 3, 6, 10, 15,
//! 21, 28, 36 pairs.

use ferrotune_batch::{Aggregation, Balance, Packing, Rows, Trajectory};

fn pack(packing: Packing, lengths: &[usize]) -> Rows {
    let documents = lengths.iter().map(|&n| Trajectory::document(vec![1; n]));
    let batch: Vec<Trajectory> = documents.collect();
    let weights = Aggregation::TokenMean.weights(&batch).unwrap();
    packing.pack(&batch, &weights).unwrap()
}

fn balanced(packing: Packing, balance: Balance, lengths: &[usize]) -> Rows {
    let balance = Some(balance);
    pack(Packing { balance, ..packing }, lengths)
}

const PAIRS: Balance = Balance {
    rows_per_micro_batch: 2,
    shards: 2,
};

#[test]
fn like_rows_share_a_micro_batch() {
    let lengths = [6, 3, 5, 2];
    let plain = pack(Packing::padded(8), &lengths);
    assert_eq!(plain.attention_pairs(), [21, 6, 15, 3]);
    assert_eq!(PAIRS.slowest(&plain.attention_pairs()), 21 + 15);
    let rows = balanced(Packing::padded(8), PAIRS, &lengths);
    assert_eq!(rows.attention_pairs(), [21, 15, 6, 3]);
    assert_eq!(PAIRS.slowest(&rows.attention_pairs()), 21 + 6);
    assert_eq!(rows.places()[2].row, 1);
}

#[test]
fn a_shard_of_two_rows_has_a_heavy_and_a_light_one() {
    let balance = Balance {
        rows_per_micro_batch: 4,
        shards: 2,
    };
    let rows = balanced(Packing::padded(8), balance, &[8, 7, 2, 1]);
    assert_eq!(rows.attention_pairs(), [36, 1, 28, 3]);
    assert_eq!(balance.slowest(&rows.attention_pairs()), 37);
}

#[test]
fn rows_are_filled_by_work_and_not_only_by_length() {
    let lengths = [5, 5, 4, 4, 3, 2, 2, 2, 2, 1, 1, 1];
    let plain = pack(Packing::packed(8), &lengths);
    assert_eq!(plain.attention_pairs(), [21, 19, 20, 11]);
    let rows = balanced(Packing::packed(8), PAIRS, &lengths);
    assert_eq!(rows.attention_pairs(), [19, 19, 17, 16]);
    assert_eq!(PAIRS.slowest(&rows.attention_pairs()), 36);
}

#[test]
fn trajectories_spread_over_the_rows_that_would_be_empty() {
    let four = Balance {
        rows_per_micro_batch: 4,
        shards: 4,
    };
    let rows = balanced(Packing::packed(8), four, &[2, 2, 2, 2]);
    assert_eq!(rows.attention_pairs(), [3; 4]);
    // More rows are not opened for it: two micro-batches would wait twice.
    let rows = balanced(Packing::packed(8), PAIRS, &[4, 4, 4, 4]);
    assert_eq!(rows.attention_pairs(), [20; 2]);
}

#[test]
fn what_fits_only_one_way_stays_as_it_is() {
    // By work, 3 and 3 would go to the second and third row, and the last 2 would find no room.
    let lengths = [4, 3, 3, 2];
    let rows = balanced(Packing::packed(6), PAIRS, &lengths);
    assert_eq!(rows.attention_pairs(), [13, 12]);
}

#[test]
fn a_cap_and_an_alignment_hold_for_the_balance_too() {
    let packing = Packing {
        max_segments: Some(2),
        segment_align: 4,
        ..Packing::packed(16)
    };
    let rows = balanced(packing, PAIRS, &[5, 5, 1, 1]);
    assert_eq!(rows.attention_pairs(), [16, 16]);
    for place in rows.places() {
        assert_eq!(place.start % 4, 0);
        assert!(place.segment <= 2);
    }
}
