//! Random batches, read back from the arrays alone.

mod case;

use ferrotune_batch::{
    Balance, Blocks, Field, OrderKind, Packing, PadPosition, Padding, Rows, Tiling, Trajectory,
};
use proptest::prelude::*;

use case::{
    Case, Token, cases, naive_first_fit, padding, per_token, read_back, rotated, tokens, trajectory,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_token_arrives_once_and_whole(case in cases()) {
        let rows = case.pack();
        let found = read_back(&case, &rows);
        let mut seen: Vec<usize> = found.iter().flatten().map(|&(index, _)| index).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..case.batch.len()).collect::<Vec<_>>());
        let multiple = case.packing.balance.map_or(case.packing.row_multiple, |it| it.rows_per_micro_batch);
        prop_assert_eq!(rows.row_count() % multiple, 0);
        for (row, segments) in found.iter().enumerate() {
            prop_assert!(case.packing.max_segments.is_none_or(|cap| segments.len() <= cap));
            for &(index, start) in segments {
                prop_assert_eq!(start % case.packing.segment_align, 0);
                let place = rows.places()[index];
                prop_assert_eq!((place.trajectory, place.row, place.start), (index, row, start));
                prop_assert_eq!(place.len, case.batch[index].len());
            }
        }
        prop_assert_eq!(rows.token_count(), case.batch.iter().map(Trajectory::len).sum::<usize>());
    }

    #[test]
    fn unpacking_inverts_packing(case in cases()) {
        let rows = case.pack();
        let ids: Vec<u32> = rows.token_ids().iter().map(|&id| id as u32).collect();
        let tokens: Vec<Vec<u32>> = case.batch.iter().map(|it| it.tokens.clone()).collect();
        prop_assert_eq!(rows.unpack(&ids).unwrap(), tokens);
        for (field, column) in rows.fields() {
            let expected: Vec<_> = case.batch.iter().map(|it| per_token(it.fields.column(field).unwrap())).collect();
            let values: Vec<usize> = (0..rows.token_ids().len()).collect();
            let found = per_token(column);
            let found: Vec<Vec<_>> = rows.unpack(&values).unwrap().iter()
                .map(|at| at.iter().map(|&at| found[at].clone()).collect())
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn rows_are_first_fit_decreasing(mut case in cases()) {
        case.packing = Packing {
            pad_position: PadPosition::End,
            pad_align: ferrotune_batch::DEFAULT_PAD_ALIGN,
            balance: None,
            ..case.packing
        };
        let mut expected = naive_first_fit(&case);
        let used = expected.len();
        expected.resize(used.next_multiple_of(case.packing.row_multiple), Vec::new());
        prop_assert_eq!(read_back(&case, &case.pack()), expected);
        prop_assert_eq!(case.pack(), case.pack());
    }

    #[test]
    fn start_is_end_rotated_right(case in cases()) {
        let start = case.pack();
        let mut end_case = case.clone();
        end_case.packing.pad_position = PadPosition::End;
        end_case.packing.pad_align = ferrotune_batch::DEFAULT_PAD_ALIGN;
        let end = end_case.pack();
        let width = case.packing.budget;
        let shift = |row: &[i32]| {
            let last = row.iter().rposition(|&segment| segment != 0).map_or(0, |t| t + 1);
            let moves = case.packing.pad_position == PadPosition::Start && last > 0;
            if moves { (width - last) / case.packing.pad_align * case.packing.pad_align } else { 0 }
        };
        let shifts: Vec<usize> = end.segment_ids().chunks(width).map(shift).collect();
        prop_assert_eq!(tokens(&start), rotated(&tokens(&end), width, &shifts));
    }

    #[test]
    fn balance_only_makes_the_slowest_shards_faster(case in cases()) {
        let Some(balance) = case.packing.balance else {
            return Ok(());
        };
        let mut plain = case.clone();
        plain.packing.balance = None;
        plain.packing.row_multiple = balance.rows_per_micro_batch;
        let (balanced, plain) = (case.pack(), plain.pack());
        prop_assert_eq!(balanced.row_count(), plain.row_count());
        let slowest = |rows: &Rows| balance.slowest(&rows.attention_pairs());
        prop_assert!(slowest(&balanced) <= slowest(&plain));
        // Worked out from the pieces that shards really get.
        let per_shard = balance.rows_per_micro_batch / balance.shards;
        let pieces = balanced.micro_batches(per_shard).unwrap();
        let work: Vec<u64> = pieces.iter()
            .map(|piece| piece.positions().iter().zip(piece.segment_ids()))
            .map(|tokens| tokens.map(|(&at, &id)| if id > 0 { at as u64 + 1 } else { 0 }).sum())
            .collect();
        let most = work.chunks(balance.shards).map(|shards| *shards.iter().max().unwrap());
        prop_assert_eq!(slowest(&balanced), most.sum::<u64>());
    }

    #[test]
    fn a_token_keeps_all_it_has_through_every_order(case in cases(), shards in 1usize..5, kind in 0usize..3) {
        let rows = case.pack();
        let kind = OrderKind::ALL[kind];
        let chunks = if kind == OrderKind::DualChunkSwap { 2 * shards } else { shards };
        let tiling = Tiling {
            padding: Padding::Skipped,
            ..Tiling::new(Blocks { queries: 2, keys: 3 }, Blocks { queries: 1, keys: 4 })
        };
        let orders = match rows.orders(kind, shards, &tiling) {
            Ok(orders) => orders,
            Err(refused) => {
                prop_assert!(!rows.width().is_multiple_of(chunks), "{}", refused);
                return Ok(());
            }
        };
        prop_assert!(rows.width().is_multiple_of(chunks));
        let ordered = rows.in_order(orders).unwrap();
        let (natural, width) = (tokens(&rows), rows.width());
        let (permutation, inverse) = (ordered.permutation(), ordered.inverse());
        let columns: Vec<_> = rows.fields().map(|(field, _)| per_token(ordered.column(field).unwrap())).collect();
        for at in 0..natural.len() {
            let base = at / width * width;
            let from = base + permutation[at] as usize;
            prop_assert_eq!(base + inverse[from] as usize, at);
            prop_assert_eq!(ordered.token_ids()[at], natural[from].id);
            prop_assert_eq!(ordered.segment_ids()[at], natural[from].segment);
            prop_assert_eq!(ordered.positions()[at], natural[from].position);
            prop_assert_eq!(ordered.loss_weight()[at], natural[from].weight);
            for (n, column) in columns.iter().enumerate() {
                prop_assert_eq!(&column[at], &natural[from].fields[n]);
            }
        }
        prop_assert_eq!(&ordered.to_natural(ordered.token_ids()).unwrap(), rows.token_ids());
        prop_assert_eq!(ordered.restore(), rows);
    }

    #[test]
    fn micro_batches_are_the_rows_in_order(case in cases(), height in 1usize..6) {
        let rows = case.pack();
        let pieces = rows.micro_batches(height).unwrap();
        prop_assert_eq!(pieces.len(), rows.row_count().div_ceil(height));
        let size = rows.row_count() * rows.width();
        let mut out = vec![Vec::new(); case.batch.len()];
        for piece in &pieces {
            prop_assert_eq!((piece.row_count(), piece.width()), (height, rows.width()));
            piece.unpack_into(piece.token_ids(), &mut out).unwrap();
        }
        let all: Vec<Token> = pieces.iter().flat_map(tokens).collect();
        prop_assert_eq!(&all[..size], tokens(&rows));
        prop_assert!(all[size..].iter().all(|token| *token == padding(&rows)));
        prop_assert_eq!(out, rows.unpack(rows.token_ids()).unwrap());
    }
}

#[test]
fn rows_are_the_same_on_every_thread() {
    let batch: Vec<Trajectory> = (0..200)
        .map(|i| trajectory(i, &vec![true; 1 + i * 37 % 64], Field::ALL))
        .collect();
    let packing = Packing {
        balance: Some(Balance {
            rows_per_micro_batch: 8,
            shards: 4,
        }),
        ..Packing::packed(64)
    };
    let case = Case { packing, batch };
    let tiling = Tiling::new(
        Blocks {
            queries: 2,
            keys: 4,
        },
        Blocks {
            queries: 4,
            keys: 4,
        },
    );
    let whole = || {
        let rows = case.pack();
        let orders = rows.orders(OrderKind::Balanced, 2, &tiling).unwrap();
        rows.in_order(orders).unwrap()
    };
    let alone = whole();
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|_| scope.spawn(whole)).collect();
        for other in others {
            assert_eq!(other.join().unwrap(), alone);
        }
    });
}
