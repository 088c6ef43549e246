//! The oracle against worked numbers and against finite differences of itself.

use super::*;

const CLIP: Clip = Clip {
    low: 0.2,
    high: 0.28,
    dual: None,
};

fn one(log_ratio: f64, advantage: f64, clip: Clip) -> Loss {
    let tokens = Tokens {
        logprobs: &[log_ratio - 1.0],
        old_logprobs: &[-1.0],
        advantages: &[advantage],
        weights: &[1.0],
    };
    grpo_loss(tokens, clip)
}

fn assert_close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance,
        "{found} against {expected}"
    );
}

#[test]
fn a_token_is_scored_as_worked_out_by_hand() {
    let score = score_token(&[2.0, 1.0, 0.0, -1.0], 1, 0.5);
    assert_close(score.logprob, -2.14507794, 5e-9);
    assert_close(score.entropy, 0.45542862, 5e-9);
    for (found, expected) in
        score
            .grad
            .iter()
            .zip([-1.72990975, 1.76588217, -0.03168440, -0.00428802])
    {
        assert_close(*found, expected, 5e-9);
    }
    let uniform = score_token(&[1e4; 8], 3, 1.0);
    assert_close(uniform.entropy, 8f64.ln(), 1e-12);
    assert_close(uniform.logprob, -(8f64.ln()), 1e-12);
}

#[test]
fn the_derivative_of_a_score_is_its_finite_difference() {
    let logits = [0.3, -1.2, 2.5, 0.0, 0.7];
    let score = score_token(&logits, 4, 0.7);
    for i in 0..logits.len() {
        let at = |step: f64| {
            let mut moved = logits;
            moved[i] += step;
            score_token(&moved, 4, 0.7).logprob
        };
        assert_close(score.grad[i], (at(1e-5) - at(-1e-5)) / 2e-5, 1e-9);
    }
}

#[test]
fn sequence_means_and_token_means_are_a_matter_of_weights() {
    // Two answers: three tokens of advantage 1.5, one of advantage 3; all ratios 1.
    let logprobs = [-0.5, -1.5, -0.1, -2.0];
    let loss = |weights: &[f64]| {
        let advantages = &[1.5, 1.5, 1.5, 3.0];
        grpo_loss(
            Tokens {
                logprobs: &logprobs,
                old_logprobs: &logprobs,
                advantages,
                weights,
            },
            CLIP,
        )
    };
    let sixth = 1.0 / 6.0;
    assert_close(loss(&[sixth, sixth, sixth, 0.5]).loss, -2.25, 1e-12);
    let tokens = loss(&[0.25; 4]);
    assert_close(tokens.loss, -1.875, 1e-12);
    assert_eq!(tokens.grad, [-0.375, -0.375, -0.375, -0.75]);
    assert_eq!(tokens.ratios, [1.0; 4]);
}

#[test]
fn each_side_is_clipped_by_its_own_bound_and_only_where_it_pays() {
    for (ratio, advantage, loss, grad, low, high) in [
        (1.1f64, 2.0, -2.2, -2.2, 0, 0),
        (1.5, 2.0, -2.56, 0.0, 0, 1),
        (0.5, 2.0, -1.0, -1.0, 0, 0),
        (0.5, -2.0, 1.6, 0.0, 1, 0),
        (1.5, -2.0, 3.0, 3.0, 0, 0),
        (1.5, 0.0, 0.0, 0.0, 0, 0),
    ] {
        let found = one(ratio.ln(), advantage, CLIP);
        assert_close(found.loss, loss, 1e-12);
        assert_close(found.grad[0], grad, 1e-12);
        assert_close(found.ratios[0], ratio, 1e-12);
        assert_eq!(
            (found.clipped_low, found.clipped_high, found.clipped_dual),
            (low, high, 0),
            "{ratio} {advantage}"
        );
    }
}

#[test]
fn the_dual_clip_bounds_the_loss_of_bad_answers() {
    let dual = Clip {
        dual: Some(3.0),
        ..CLIP
    };
    let held = one(5f64.ln(), -2.0, dual);
    assert_close(held.loss, 6.0, 1e-12);
    assert_eq!((held.grad[0], held.clipped_dual), (0.0, 1));
    assert_close(one(5f64.ln(), -2.0, CLIP).loss, 10.0, 1e-12);
    for (log_ratio, advantage) in [(2.9f64.ln(), -2.0), (5f64.ln(), 2.0), (0.5f64.ln(), -2.0)] {
        assert_eq!(
            one(log_ratio, advantage, dual),
            one(log_ratio, advantage, CLIP)
        );
    }
}

#[test]
fn far_away_log_ratios_stay_finite_and_get_no_gradient() {
    let far = one(1000.0, -1.0, CLIP);
    assert_close(far.loss, 20f64.exp(), 1e-3);
    assert_eq!(far.grad, [0.0]);
    assert_eq!(one(-1000.0, 1.0, CLIP).grad, [0.0]);
    assert!(one(19.9, -1.0, CLIP).grad[0] > 0.0);
}

#[test]
fn tokens_of_weight_zero_count_for_nothing() {
    let weights = [1.0, 0.0];
    let tokens = Tokens {
        logprobs: &[-1.0, -9.0],
        old_logprobs: &[-1.0, -1.0],
        advantages: &[1.0, -1.0],
        weights: &weights,
    };
    let loss = grpo_loss(tokens, CLIP);
    assert_eq!((loss.loss, loss.clipped_low), (-1.0, 0));
    assert_eq!(loss.grad, [-1.0, 0.0]);
}

#[test]
fn the_derivative_of_the_loss_is_its_finite_difference() {
    let old = [-1.0, -0.7, -2.0, -1.3, -0.2, -3.0, -1.1, -0.4];
    let logprobs = [-1.1, -0.2, -2.9, -1.25, -0.9, -0.8, -1.1, -0.6];
    let advantages = [1.0, 2.0, -0.5, -1.5, 0.3, -2.0, -1.0, 0.0];
    let weights = [0.1, 0.2, 0.3, 0.4, 0.0, 0.25, 0.5, 0.6];
    let clip = Clip {
        dual: Some(4.0),
        ..CLIP
    };
    let loss = |logprobs: &[f64]| {
        grpo_loss(
            Tokens {
                logprobs,
                old_logprobs: &old,
                advantages: &advantages,
                weights: &weights,
            },
            clip,
        )
    };
    let here = loss(&logprobs);
    assert_eq!(
        (here.clipped_low, here.clipped_high, here.clipped_dual),
        (1, 1, 1),
        "every branch is taken"
    );
    for n in 0..old.len() {
        let at = |step: f64| {
            let mut moved = logprobs;
            moved[n] += step;
            loss(&moved).loss
        };
        assert_close(here.grad[n], (at(1e-6) - at(-1e-6)) / 2e-6, 1e-8);
    }
}
