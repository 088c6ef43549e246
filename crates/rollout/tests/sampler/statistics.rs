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
        ..Request::default()
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
    // Tokens that are too rare to be normally distributed are counted as one.
    let mut cells = vec![(0, 0.0)];
    for (found, p) in counts.iter().zip(&probabilities) {
        if count as f64 * p < 5.0 {
            cells[0] = (cells[0].0 + found, cells[0].1 + p);
        } else {
            cells.push((*found, *p));
        }
    }
    cells.retain(|(_, p)| *p > 0.0);
    let mut chi_square = 0.0;
    for (found, p) in &cells {
        let (off, mean) = (*found as f64 - count as f64 * p, count as f64 * p);
        let sigma = (mean * (1.0 - p)).sqrt();
        assert!(
            off.abs() <= 4.0 * sigma,
            "temperature {temperature}: {found} times, expected {mean:.1} ± {sigma:.1}"
        );
        chi_square += off * off / mean;
    }
    // χ² has mean n and variance 2n for n + 1 cells.
    let degrees = cells.len() as f64 - 1.0;
    assert!(
        degrees >= 8.0,
        "the distribution has too few cells to say anything: {degrees}"
    );
    let sigmas = (chi_square - degrees) / (2.0 * degrees).sqrt();
    assert!(
        sigmas.abs() < 4.0,
        "χ² is {chi_square:.1} for {degrees} degrees of freedom"
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
