//! Rows with logits that are not finite, and tokens that are masked.

use ferrotune_nn::HeadMode;

use crate::case::{Case, Found, Numbers, distance, relative};
use crate::oracle::{assert_near, forms, oracle};

/// Hidden states 1 of one number each, so that the weights are the logits.
fn logits(values: &[f64], target: i32) -> Numbers {
    let mut n = Numbers::new([1, 1, 1, values.len()]);
    n.x = vec![1.0];
    n.w = values.to_vec();
    n.targets = vec![target];
    n
}

fn same(a: f64, b: f64) -> bool {
    (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() < 1e-6
}

fn scores(case: &Case, n: &Numbers) -> (f64, f64) {
    let Found {
        logprob, entropy, ..
    } = case.run(n);
    (logprob[0], entropy[0])
}

#[test]
fn rows_that_are_not_finite_score_as_documented_in_every_mode() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let half = 0.5_f64.ln();
    for (values, target, logprob, entropy) in [
        ([0.0, nan, 1.0, 2.0], 0, nan, nan),
        ([0.0, nan, 1.0, 2.0], 1, nan, nan),
        ([1.0, 1.0, -inf, -inf], 0, half, -half),
        ([1.0, 1.0, -inf, -inf], 2, -inf, -half),
        ([-inf, -inf, 1.0, 1.0], 3, half, -half),
        ([-inf, -inf, -inf, -inf], 1, nan, nan),
        ([0.0, 1.0, inf, 2.0], 2, nan, nan),
        ([0.0, 1.0, inf, 2.0], 1, -inf, nan),
        ([inf, 1.0, 0.0, 2.0], 1, -inf, nan),
        ([-200.0, -300.0, -200.0, -inf], 0, half, -half),
    ] {
        let n = logits(&values, target);
        for form in forms()
            .into_iter()
            .chain([Case::new(HeadMode::Fused, 1, 2)])
        {
            let found = scores(&form, &n);
            assert!(
                same(found.0, logprob) && same(found.1, entropy),
                "{:?}: {values:?} target {target} is {found:?}, not {:?}",
                form.settings,
                (logprob, entropy)
            );
        }
    }
}

#[test]
fn what_cannot_be_drawn_leaves_the_gradient_finite() {
    let n = logits(&[1.0, 1.0, f64::NEG_INFINITY, 0.5], 0);
    let plain = logits(&[1.0, 1.0, -1e4, 0.5], 0);
    let expected = oracle(&plain, 1.0, true);
    for form in forms() {
        let found = form.run(&n);
        assert!(
            relative(&found.dw, &expected.dw) < 2e-6,
            "{:?}: {:?}, not {:?}",
            form.settings,
            found.dw,
            expected.dw
        );
    }
}

#[test]
fn masked_tokens_may_hold_anything() {
    let mut n = Numbers::new([2, 6, 5, 24]);
    for token in [0, 4, 11] {
        n.mask[token] = false;
    }
    let expected = oracle(&n, 0.7, true);
    for garbage in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e38, 0.0] {
        let mut n = n.clone();
        for token in [0, 4, 11] {
            n.x[token * 5..(token + 1) * 5].fill(garbage);
            n.targets[token] = -7;
        }
        for form in forms() {
            let case = Case {
                temperature: 0.7,
                ..form
            };
            let found = case.run(&n);
            let what = format!("{:?}, {garbage}", case.settings);
            assert_near(&found, &expected, &what);
        }
    }
}

#[test]
fn a_cotangent_at_a_masked_token_goes_nowhere() {
    let mut n = Numbers::new([1, 4, 3, 7]);
    n.mask = vec![false; 4];
    for form in forms() {
        let found = form.run(&n);
        assert!(
            found.dx.iter().chain(&found.dw).all(|v| *v == 0.0),
            "{:?}",
            form.settings
        );
    }
}

#[test]
fn a_target_outside_of_the_vocabulary_scores_as_logit_zero() {
    let mut n = Numbers::new([1, 2, 3, 7]);
    for outside in [-1, 7, i32::MAX] {
        n.targets[1] = outside;
        for form in forms() {
            let off = forms()[0].run(&n);
            let found = form.run(&n);
            assert!(
                distance(&found.logprob, &off.logprob) < 1e-6,
                "{outside} {:?}",
                form.settings
            );
        }
    }
}
