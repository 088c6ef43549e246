//! What a loss returns beside its value, over chunks and devices.

use ferrotune_graph::{DType, Mesh};
use ferrotune_nn::{Combine, EntropyUse, HeadMode, PartialLoss};

use crate::case::{Case, Numbers, distance, values};
use crate::oracle::oracle;

/// Sum, largest and smallest log-prob, and the number of hits, over tokens that are not masked.
fn others(case: &Case, n: &Numbers) -> Vec<f64> {
    let program = case.compile(n, |_, args| {
        let told = case.single_pass(args, |scores, extra| {
            // Cotangents that are 1 mark tokens that are neither masked nor padding.
            let counted = extra[0].ne(&extra[0].zeros_like());
            let zero = scores.logprob.scalar_like(0.0);
            let low = scores.logprob.scalar_like(-1e9);
            let high = scores.logprob.scalar_like(1e9);
            let own = |otherwise| counted.select(&scores.logprob, otherwise);
            PartialLoss {
                loss: own(&zero).sum_all(),
                others: vec![
                    (scores.entropy.sum_all(), Combine::Sum),
                    (own(&low).max(&[0]), Combine::Max),
                    (own(&high).min(&[0]), Combine::Min),
                    (scores.hit.convert(DType::F32).sum_all(), Combine::Sum),
                ],
            }
        });
        let others = told.others.iter().map(|(t, _)| t.clone());
        std::iter::once(told.loss).chain(others).collect()
    });
    let found = case.call(&program, n);
    found.iter().map(|a| values(a)[0]).collect()
}

#[test]
fn other_numbers_are_combined_over_chunks_and_devices() {
    let mut n = Numbers::new([4, 6, 8, 24]);
    n.slopes[0] = vec![1.0; n.tokens()];
    for token in [0, 7, 23] {
        n.mask[token] = false;
        n.slopes[0][token] = 0.0;
    }
    let expected = oracle(&n, 1.0, false);
    let counted = (0..n.tokens()).filter(|t| n.mask[*t]);
    let logprobs: Vec<f64> = counted.map(|t| expected.logprob[t]).collect();
    let wanted = [
        logprobs.iter().sum(),
        expected.entropy.iter().sum(),
        logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        logprobs.iter().copied().fold(f64::INFINITY, f64::min),
        expected.hit.iter().filter(|h| **h).count() as f64,
    ];
    let alone = Case {
        entropy: EntropyUse::Reported,
        ..Case::new(HeadMode::SinglePass, 5, 9)
    };
    let placed = Case {
        mesh: Mesh::new(&[("fsdp", 2), ("tensor", 2)]).unwrap(),
        rules: vec![
            ("batch", vec!["fsdp"]),
            ("embed", vec!["fsdp"]),
            ("vocab", vec!["tensor"]),
        ],
        ..alone.clone()
    };
    for case in [alone, placed] {
        let found = others(&case, &n);
        let close = distance(&found, &wanted) < 1e-4;
        assert!(close, "{found:?}, not {wanted:?} on {}", case.mesh);
    }
}
