//! Numbers worked by hand.

use ferrotune_graph::DType;
use ferrotune_nn::EntropyUse;

use crate::case::{Case, Numbers, distance};
use crate::oracle::forms;

/// Logits 2, 1, 0, −1 at temperature ½, target 1: largest 4, sum 1.15612967.
#[test]
fn four_logits_at_half_temperature() {
    let mut n = Numbers::new([1, 1, 1, 4]);
    n.x = vec![1.0];
    n.w = vec![2.0, 1.0, 0.0, -1.0];
    n.targets = vec![1];
    n.slopes = [vec![1.0], vec![0.0]];
    for form in forms() {
        for compute in [DType::F32, DType::F64] {
            let case = Case {
                temperature: 0.5,
                compute,
                entropy: EntropyUse::Reported,
                ..form.clone()
            };
            let found = case.run(&n);
            let what = format!("{:?} {compute}", case.settings);
            let near = |found: &[f64], expected: &[f64]| {
                assert!(
                    distance(found, expected) < 1e-6,
                    "{what}: {found:?}, not {expected:?}"
                );
            };
            near(&found.logprob, &[-2.145_077_94]);
            near(&found.entropy, &[0.455_428_62]);
            // Hidden state 1, so that the gradient by a weight is the one by its logit.
            near(
                &found.dw,
                &[-1.729_909_75, 1.765_882_17, -0.031_684_40, -0.004_288_02],
            );
            assert_eq!(found.hit, [false]);
        }
    }
}

#[test]
fn equal_logits_have_the_entropy_of_their_number_and_all_are_the_largest() {
    let mut n = Numbers::new([1, 4, 3, 32]);
    n.w = vec![0.0; n.w.len()];
    for form in forms() {
        let found = form.run(&n);
        assert!(distance(&found.entropy, &[32_f64.ln(); 4]) < 1e-6);
        assert!(distance(&found.logprob, &[-(32_f64.ln()); 4]) < 1e-6);
        assert_eq!(found.hit, [true; 4]);
    }
}

#[test]
fn logits_far_from_zero_do_not_overflow() {
    for by in [-2000.0, 2000.0] {
        let mut n = Numbers::new([1, 1, 1, 4]);
        n.x = vec![1.0];
        n.w = vec![by, by + 1.0, by - 1.0, by + 0.5];
        n.targets = vec![1];
        let total: f64 = [-1.0_f64, 0.0, -2.0, -0.5].iter().map(|v| v.exp()).sum();
        for form in forms() {
            let found = form.run(&n);
            assert!(
                distance(&found.logprob, &[-total.ln()]) < 1e-6,
                "{:?}",
                form.settings
            );
            assert!(found.dw.iter().all(|v| v.is_finite()));
        }
    }
}

#[test]
#[should_panic(expected = "cannot be divided by the temperature 0")]
fn temperature_zero_is_refused() {
    let n = Numbers::new([1, 1, 1, 4]);
    let case = Case {
        temperature: 0.0,
        ..forms()[3].clone()
    };
    case.run(&n);
}
