//! Sampled tokens have the frequencies that the distribution says.

use ferrotune_rollout::{Request, SamplerConfig};

use crate::setup::{Fixture, config, log_softmax};

/// Draws the first token `count` times with seeds `seed(0..count)` and compares the frequencies with the softmax.
fn check(temperature: f64, count: usize, seed: impl Fn(u64) -> u64) {
    let fixture = Fixture::load("llama");
    let prompt = vec![3, 14, 15, 92];
    let sampler = fixture.sampler(SamplerConfig {
        batch: 500,
        max_new_tokens: 2,
        tokens_per_dispatch: 2,
        ..config()
    });
    let ask = |i: u64| Request {
        prompt: prompt.clone(),
        seed: seed(i),
        temperature,
        max_new_tokens: 1,
    };
    let answers = fixture.answers(&sampler, &(0..count as u64).map(ask).collect::<Vec<_>>());
    let logits = fixture
        .logits(std::slice::from_ref(&prompt))
        .remove(0)
        .pop()
        .unwrap();
    let probabilities: Vec<f64> = log_softmax(&logits, temperature)
        .iter()
        .map(|p| p.exp())
        .collect();

    let mut counts = vec![0_usize; probabilities.len()];
    answers
        .iter()
        .for_each(|a| counts[a.tokens[0] as usize] += 1);
    let mut chi_square = 0.0;
    let mut degrees = -1.0;
    for (found, p) in counts.iter().zip(&probabilities) {
        let (mean, variance) = (count as f64 * p, count as f64 * p * (1.0 - p));
        // Rare tokens are Poisson, not normal: allow for that with the 1.
        let off = (*found as f64 - mean).abs();
        assert!(
            off <= 4.0 * variance.sqrt() + 1.0,
            "temperature {temperature}: {found} times, expected {mean:.1}"
        );
        if mean >= 5.0 {
            chi_square += (*found as f64 - mean).powi(2) / mean;
            degrees += 1.0;
        }
    }
    // Mean `degrees`, variance 2·`degrees`.
    assert!(
        degrees > 3.0 && (chi_square - degrees).abs() < 4.0 * (2.0 * degrees).sqrt() + 2.0,
        "χ² {chi_square:.1} of {degrees}"
    );
}

#[test]
fn frequencies_are_those_of_the_softmax() {
    check(1.0, 4000, |i| i);
}

#[test]
fn frequencies_follow_the_temperature() {
    check(0.5, 4000, |i| i);
    check(2.0, 4000, |i| i);
}

#[test]
fn the_high_half_of_a_seed_is_as_good_as_the_low_one() {
    check(1.0, 4000, |i| i << 32);
}
