//! The five aggregations against worked numbers and a 64-bit oracle.

use ferrotune_batch::{Aggregation, BatchError, Trajectory};
use proptest::prelude::*;

/// A batch with these masks. One token that is not trained on goes before each, since nothing predicts it.
fn batch(masks: &[&[u8]]) -> Vec<Trajectory> {
    let mask = |mask: &&[u8]| {
        [&[0], *mask]
            .concat()
            .iter()
            .map(|&on| on == 1)
            .collect::<Vec<_>>()
    };
    masks
        .iter()
        .map(mask)
        .map(|mask| Trajectory::new(vec![0; mask.len()], mask))
        .collect()
}

fn aggregate(mode: Aggregation, losses: &[&[f64]], masks: &[&[u8]]) -> f64 {
    let weights = mode.weights(&batch(masks)).unwrap();
    let rows = losses.iter().zip(&weights.per_token);
    rows.flat_map(|(losses, weights)| losses.iter().zip(&weights[1..]))
        .map(|(&loss, &weight)| loss * f64::from(weight))
        .sum()
}

const LOSSES: [&[f64]; 2] = [&[0.1, 0.2, 0.3], &[0.4, 0.5, 0.6]];
const MASKS: [&[u8]; 2] = [&[1, 1, 0], &[1, 1, 1]];

#[track_caller]
fn close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
}

#[test]
fn worked_numbers() {
    use Aggregation::*;
    close(aggregate(TokenMean, &LOSSES, &MASKS), 0.36);
    close(aggregate(SequenceMeanTokenMean, &LOSSES, &MASKS), 0.325);
    close(aggregate(SequenceMeanTokenSum, &LOSSES, &MASKS), 0.9);
    close(aggregate(TokenSum { constant: 2.0 }, &LOSSES, &MASKS), 0.9);
    close(aggregate(TokenSum { constant: 4.0 }, &LOSSES, &MASKS), 0.45);
    // Row sums over the row width of 3, then the mean of the 2 rows.
    close(aggregate(TokenSum { constant: 6.0 }, &LOSSES, &MASKS), 0.3);
    close(aggregate(SequenceMean, &LOSSES, &MASKS), 0.325);
}

#[test]
fn empty_sequences_count_only_where_they_should() {
    use Aggregation::*;
    let losses: [&[f64]; 2] = [&[0.1, 0.2], &[0.3, 0.4]];
    let masks: [&[u8]; 2] = [&[1, 1], &[0, 0]];
    close(aggregate(TokenMean, &losses, &masks), 0.15);
    close(aggregate(SequenceMeanTokenMean, &losses, &masks), 0.15);
    close(aggregate(SequenceMeanTokenSum, &losses, &masks), 0.3);
    close(aggregate(TokenSum { constant: 2.0 }, &losses, &masks), 0.15);
    close(aggregate(SequenceMean, &losses, &masks), 0.075);
}

#[test]
fn policy_gradient_anchor() {
    // Advantages 1.5 over 3 tokens and 3 over 1 token, ratio 1. Per-row aggregation would give -1.875.
    let losses: [&[f64]; 2] = [&[-1.5, -1.5, -1.5], &[-3.0]];
    let masks: [&[u8]; 2] = [&[1, 1, 1], &[1]];
    close(
        aggregate(Aggregation::SequenceMeanTokenMean, &losses, &masks),
        -2.25,
    );
    close(aggregate(Aggregation::TokenMean, &losses, &masks), -1.875);
}

#[test]
fn all_masked_is_zero_and_counted() {
    use Aggregation::*;
    for mode in [
        TokenMean,
        SequenceMeanTokenMean,
        SequenceMeanTokenSum,
        TokenSum { constant: 3.0 },
        SequenceMean,
    ] {
        let weights = mode.weights(&batch(&[&[0, 0], &[0]])).unwrap();
        assert_eq!(weights.per_token, [vec![0.0; 3], vec![0.0; 2]], "{mode}");
        assert_eq!(
            (weights.trained_tokens, weights.masked_trajectories),
            (0, 2)
        );
        assert_eq!(mode.weights(&[]).unwrap().per_token, Vec::<Vec<f32>>::new());
    }
}

#[test]
fn names_go_both_ways() {
    for name in [
        "token-mean",
        "sequence-mean-token-mean",
        "sequence-mean-token-sum",
        "sequence-mean",
    ] {
        assert_eq!(Aggregation::parse(name, None).unwrap().to_string(), name);
        let idle = Aggregation::parse(name, Some(2.0)).unwrap_err();
        assert_eq!(
            idle.to_string(),
            "constant 2 has no effect with an aggregation other than token-sum; remove one of them"
        );
    }
    let sum = Aggregation::TokenSum { constant: 2.0 };
    assert_eq!(Aggregation::parse("token-sum", Some(2.0)), Ok(sum));
    assert_eq!(sum.name(), "token-sum");
    assert_eq!(
        Aggregation::parse("token-sum", None),
        Err(BatchError::ConstantMissing)
    );
    let unknown = Aggregation::parse("seq-mean", None)
        .unwrap_err()
        .to_string();
    assert!(
        unknown.starts_with("unknown aggregation `seq-mean`; known: token-mean, "),
        "{unknown}"
    );
}

#[test]
fn constants_that_cannot_divide() {
    for constant in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, 1e-60, 1e60] {
        let mode = Aggregation::TokenSum { constant };
        assert!(
            matches!(mode.weights(&[]), Err(BatchError::Constant { .. })),
            "{constant}"
        );
        assert!(matches!(
            Aggregation::parse("token-sum", Some(constant)),
            Err(BatchError::Constant { .. })
        ));
    }
}

/// The definitions, read straight off a loss of which every token is worth 1 plus its index.
fn oracle(mode: Aggregation, masks: &[Vec<bool>]) -> f64 {
    let sums: Vec<(f64, f64)> = masks
        .iter()
        .map(|mask| {
            let on = mask.iter().zip(1..).filter(|(on, _)| **on);
            (
                on.clone().map(|(_, value)| f64::from(value)).sum(),
                on.count() as f64,
            )
        })
        .collect();
    let active = sums.iter().filter(|(_, count)| *count > 0.0).count() as f64;
    let total = |f: fn(&(f64, f64)) -> f64| sums.iter().map(f).sum::<f64>();
    let (numerator, denominator) = match mode {
        Aggregation::TokenMean => (total(|s| s.0), total(|s| s.1)),
        Aggregation::SequenceMeanTokenMean => (total(|s| s.0 / s.1.max(1.0)), active),
        Aggregation::SequenceMeanTokenSum => (total(|s| s.0), active),
        Aggregation::TokenSum { constant } => (total(|s| s.0), constant),
        Aggregation::SequenceMean => (total(|s| s.0 / s.1.max(1.0)), masks.len() as f64),
    };
    if denominator == 0.0 {
        0.0
    } else {
        numerator / denominator
    }
}

fn modes() -> impl Strategy<Value = Aggregation> {
    prop_oneof![
        Just(Aggregation::TokenMean),
        Just(Aggregation::SequenceMeanTokenMean),
        Just(Aggregation::SequenceMeanTokenSum),
        (0.01..1e4).prop_map(|constant| Aggregation::TokenSum { constant }),
        Just(Aggregation::SequenceMean),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn weighted_sum_is_the_definition(
        mode in modes(),
        masks in prop::collection::vec(prop::collection::vec(any::<bool>(), 1..12), 1..12),
    ) {
        let batch: Vec<_> = masks.iter().map(|mask| Trajectory::new(vec![0; mask.len()], mask.clone())).collect();
        let weights = mode.weights(&batch).unwrap();
        let values = weights.per_token.iter().flat_map(|row| row.iter().zip(1..));
        let sum: f64 = values.map(|(&weight, value)| f64::from(weight) * f64::from(value)).sum();
        let expected = oracle(mode, &masks);
        prop_assert!((sum - expected).abs() <= 1e-6 * expected.abs(), "{sum} is not {expected}");
        for (weights, mask) in weights.per_token.iter().zip(&masks) {
            prop_assert!(weights.iter().zip(mask).all(|(&weight, &on)| weight.is_finite() && (weight > 0.0) == on));
        }
        let total: f64 = weights.per_token.iter().flatten().copied().map(f64::from).sum();
        let active = masks.iter().filter(|mask| mask.contains(&true)).count();
        let trained = masks.iter().flatten().filter(|&&on| on).count();
        prop_assert_eq!(weights.trained_tokens, trained);
        prop_assert_eq!(weights.masked_trajectories, masks.len() - active);
        if trained > 0 {
            let expected = match mode {
                Aggregation::TokenMean | Aggregation::SequenceMeanTokenMean => 1.0,
                Aggregation::SequenceMeanTokenSum => trained as f64 / active as f64,
                Aggregation::TokenSum { constant } => trained as f64 / constant,
                Aggregation::SequenceMean => active as f64 / masks.len() as f64,
            };
            prop_assert!((total - expected).abs() <= 1e-6 * expected, "{total} is not {expected}");
        }
    }
}
