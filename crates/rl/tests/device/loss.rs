//! The policy-gradient loss: value, gradient and metrics against [`ferrotune_rl::oracle`], and worked numbers.

use ferrotune_batch::{Aggregation, Field, Packing, Trajectory};
use ferrotune_graph::DType;
use ferrotune_rl::oracle::{self, Clip, Tokens};
use ferrotune_rl::{ClipRange, policy_gradient};

use crate::traced::{Numbers, Traced, run};

const CLIP: ClipRange = ClipRange {
    low: 0.2,
    high: 0.28,
};

/// Every kind of token: ratios below, inside and above the bounds and beyond the limit of the log-ratio, advantages of
/// both signs and zero, tokens that do not count.
fn tokens() -> Numbers {
    let log_ratios = [
        0.0, 0.1, -0.1, 0.26, 0.5, -0.5, 3.0, -3.0, 25.0, -25.0, 0.24, -0.22,
    ];
    let advantages = [1.5, -0.7, 0.0];
    let weights = [0.05, 0.011, 0.0];
    let mut numbers = Numbers {
        dims: vec![],
        logprob: vec![],
        entropy: vec![],
        loss_weight: vec![],
        advantage: vec![],
        old_logprob: vec![],
        sampler_logprob: vec![],
    };
    for (i, log_ratio) in log_ratios.into_iter().enumerate() {
        for (j, advantage) in advantages.into_iter().enumerate() {
            for (k, weight) in weights.into_iter().enumerate() {
                let old = -0.3 - 0.17 * (i + 2 * j + k) as f64;
                numbers.old_logprob.push(old);
                numbers.logprob.push(old + log_ratio);
                numbers.sampler_logprob.push(old - 0.01 * (1 + i) as f64);
                numbers.entropy.push(0.2 + 0.03 * (i + j) as f64);
                numbers.advantage.push(advantage);
                numbers.loss_weight.push(weight);
            }
        }
    }
    numbers.dims = vec![log_ratios.len(), advantages.len() * weights.len()];
    numbers
}

fn host(numbers: &Numbers) -> oracle::Loss {
    let tokens = Tokens {
        logprobs: &numbers.logprob,
        old_logprobs: &numbers.old_logprob,
        advantages: &numbers.advantage,
        weights: &numbers.loss_weight,
    };
    oracle::grpo_loss(
        tokens,
        Clip {
            low: CLIP.low,
            high: CLIP.high,
            dual: None,
        },
    )
}

fn close(found: f64, expected: f64, relative: f64) -> bool {
    (found - expected).abs() <= relative * (1.0 + expected.abs())
}

fn assert_agrees(traced: &Traced, numbers: &Numbers, relative: f64) {
    let host = host(numbers);
    assert!(
        close(traced.loss, host.loss, relative),
        "loss {} against {}",
        traced.loss,
        host.loss
    );
    for (n, (found, expected)) in traced.grad.iter().zip(&host.grad).enumerate() {
        assert!(
            close(*found, *expected, relative),
            "derivative by token {n}: {found} against {expected}"
        );
    }
    let counted: Vec<usize> = (0..numbers.logprob.len())
        .filter(|&n| numbers.loss_weight[n] != 0.0)
        .collect();
    let sum = |value: &dyn Fn(usize) -> f64| counted.iter().map(|&n| value(n)).sum::<f64>();
    let difference = |n: usize| (numbers.logprob[n] - numbers.sampler_logprob[n]).abs();
    let log_ratio = |n: usize| (numbers.logprob[n] - numbers.old_logprob[n]).clamp(-20.0, 20.0);
    let expected = [
        ("tokens", counted.len() as f64),
        ("entropy", sum(&|n| numbers.entropy[n])),
        ("clipped_low", host.clipped_low as f64),
        ("clipped_high", host.clipped_high as f64),
        ("kl", sum(&|n| log_ratio(n).exp() - 1.0 - log_ratio(n))),
        ("logp_difference", sum(&difference)),
        (
            "logp_difference_max",
            counted.iter().map(|&n| difference(n)).fold(0.0, f64::max),
        ),
    ];
    assert_eq!(traced.metrics.len(), expected.len());
    for (name, value) in expected {
        let found = traced.metrics[name];
        assert!(
            close(found, value, 10.0 * relative),
            "{name}: {found} against {value}"
        );
    }
}

#[test]
fn value_gradient_and_metrics_are_the_hosts_in_f64() {
    let numbers = tokens();
    let clipped = host(&numbers);
    assert!(
        0 < clipped.clipped_low && clipped.clipped_low < clipped.clipped_high,
        "the tokens try both bounds, and tell them apart"
    );
    assert_agrees(
        &run(&policy_gradient(CLIP), &numbers, DType::F64),
        &numbers,
        1e-12,
    );
}

#[test]
fn value_gradient_and_metrics_are_the_hosts_in_f32() {
    let mut numbers = tokens();
    // What f32 holds, so that both sides see the same numbers.
    for column in [
        &mut numbers.logprob,
        &mut numbers.old_logprob,
        &mut numbers.sampler_logprob,
        &mut numbers.loss_weight,
    ] {
        column.iter_mut().for_each(|v| *v = f64::from(*v as f32));
    }
    assert_agrees(
        &run(&policy_gradient(CLIP), &numbers, DType::F32),
        &numbers,
        2e-5,
    );
}

#[test]
fn the_gradient_at_a_ratio_of_one_is_whole() {
    // Bounds of zero width put the ratio on both of them: still the unclipped term counts, with its whole gradient.
    let mut numbers = tokens();
    numbers.logprob.clone_from(&numbers.old_logprob);
    let edge = ClipRange {
        low: 0.0,
        high: 0.0,
    };
    let traced = run(&policy_gradient(edge), &numbers, DType::F64);
    for (n, found) in traced.grad.iter().enumerate() {
        let expected = -numbers.loss_weight[n] * numbers.advantage[n];
        assert!(
            close(*found, expected, 1e-12),
            "token {n}: {found} against {expected}"
        );
    }
}

/// Two answers: three tokens with an advantage of 1.5, one with 3; all ratios 1.
fn two_answers() -> Vec<Trajectory> {
    let answer = |prompt: &[u32], ids: &[u32], advantage| {
        let logprobs = vec![-0.5; ids.len()];
        Trajectory::from_prompt(prompt, ids)
            .with_constant(Field::Advantage, advantage)
            .with_tail(Field::OldLogprob, &logprobs)
            .with_tail(Field::SamplerLogprob, &logprobs)
    };
    vec![answer(&[1, 2], &[3, 4, 5], 1.5), answer(&[6], &[7], 3.0)]
}

fn loss_of(aggregation: Aggregation, packing: &Packing) -> f64 {
    let batch = two_answers();
    let weights = aggregation.weights(&batch).unwrap();
    let rows = packing.pack(&batch, &weights).unwrap();
    // The model agrees with the sampler on answers, and says something on prompts too, which must not count.
    let logprob = rows
        .loss_weight()
        .iter()
        .map(|w| if *w == 0.0 { -7.0 } else { -0.5 })
        .collect();
    run(
        &policy_gradient(CLIP),
        &Numbers::of_rows(&rows, logprob),
        DType::F64,
    )
    .loss
}

#[test]
fn packed_or_not_two_answers_have_the_loss_worked_out_by_hand() {
    // (-1.5 - 3) / 2, and over tokens (-1.5 * 3 - 3) / 4.
    for packing in [
        Packing::packed(16),
        Packing::packed(9),
        Packing::padded(5),
        Packing::packed(5),
    ] {
        let by_answer = loss_of(Aggregation::SequenceMeanTokenMean, &packing);
        assert!(close(by_answer, -2.25, 1e-6), "{packing:?}: {by_answer}");
        let by_token = loss_of(Aggregation::TokenMean, &packing);
        assert!(close(by_token, -1.875, 1e-6), "{packing:?}: {by_token}");
    }
}

#[test]
fn a_batch_in_which_nothing_counts_has_no_loss_and_no_gradient() {
    let mut numbers = tokens();
    numbers.loss_weight.fill(0.0);
    let traced = run(&policy_gradient(CLIP), &numbers, DType::F64);
    assert_eq!(traced.loss, 0.0);
    assert!(traced.grad.iter().all(|d| *d == 0.0));
    assert!(traced.metrics.values().all(|v| *v == 0.0));
}
