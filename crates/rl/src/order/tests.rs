//! Every problem once an epoch, the same again for the same seed, and resumption anywhere.

use super::*;

#[test]
fn each_epoch_is_another_order_of_all_problems() {
    let mut sampler = Sampler::new(100, 7);
    let epochs: Vec<_> = (0..3).map(|_| sampler.next_batch(100)).collect();
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_ne!(epoch, &sorted, "shuffled");
    }
    assert_ne!(epochs[0], epochs[1]);
    assert_ne!(epochs[1], epochs[2]);
    assert_eq!(
        sampler.order(),
        &DataOrder {
            seed: 7,
            epoch: 3,
            position: 0,
            problems: 100
        }
    );
}

#[test]
fn the_seed_decides_and_nothing_else() {
    let of = |seed| Sampler::new(50, seed).next_batch(50);
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    // Pinned: a stored run must mean the same after an upgrade of anything.
    assert_eq!(
        Sampler::new(8, 0).next_batch(16),
        [7, 2, 1, 6, 0, 4, 3, 5, 7, 0, 2, 1, 4, 3, 5, 6]
    );
}

#[test]
fn any_cut_into_batches_is_the_same_sequence() {
    let whole = Sampler::new(7, 3).next_batch(60);
    for size in [1, 2, 5, 7, 20, 60] {
        let mut sampler = Sampler::new(7, 3);
        let parts: Vec<usize> = (0..60 / size)
            .flat_map(|_| sampler.next_batch(size))
            .collect();
        assert_eq!(parts, whole[..parts.len()], "batches of {size}");
    }
}

#[test]
fn a_stored_position_goes_on_exactly() {
    let mut sampler = Sampler::new(11, 5);
    for taken in 0..40 {
        let text = serde_json::to_string(sampler.order()).unwrap();
        let mut resumed = Sampler::resume(11, serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(
            resumed.next_batch(30),
            sampler.clone().next_batch(30),
            "after {taken}"
        );
        sampler.next_batch(1);
    }
}

#[test]
fn a_position_of_another_data_set_is_refused() {
    let order = |position, problems| DataOrder {
        seed: 0,
        epoch: 1,
        position,
        problems,
    };
    assert!(Sampler::resume(10, order(9, 10)).is_ok());
    let error = Sampler::resume(12, order(9, 10)).unwrap_err().to_string();
    assert!(
        error.contains("number 9 of 10 problems, but the data set has 12"),
        "{error}"
    );
    assert!(Sampler::resume(10, order(10, 10)).is_err());
    assert!(Sampler::resume(0, order(0, 0)).is_err());
}

#[test]
fn every_order_of_three_is_about_as_frequent() {
    let mut counts = std::collections::HashMap::new();
    let mut sampler = Sampler::new(3, 9);
    for _ in 0..6000 {
        *counts.entry(sampler.next_batch(3)).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 6);
    // Mean 1000, standard deviation 29: five of them.
    assert!(
        counts.values().all(|&n| (855..=1145).contains(&n)),
        "{counts:?}"
    );
}
