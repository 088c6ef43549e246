//! Decoding with a cache gives what full forward passes give.

use ferrotune_graph::DType;
use ferrotune_rollout::{Completion, Finish, Request, SamplerConfig};

use crate::setup::{Fixture, config, log_softmax, request};

/// Log-probs (f64, at the request's temperature and raw) of every entry of the vocabulary, for each token of the answer.
fn full_pass(
    fixture: &Fixture,
    request: &Request,
    answer: &Completion,
    temperature: f64,
) -> Vec<[Vec<f64>; 2]> {
    let row: Vec<u32> = request
        .prompt
        .iter()
        .chain(&answer.tokens)
        .copied()
        .collect();
    let logits = fixture.logits(&[row]).remove(0);
    let at = |i: usize| &logits[request.prompt.len() - 1 + i];
    (0..answer.tokens.len())
        .map(|i| [log_softmax(at(i), temperature), log_softmax(at(i), 1.0)])
        .collect()
}

fn argmax(values: &[f64]) -> u32 {
    (0..values.len())
        .max_by(|a, b| values[*a].total_cmp(&values[*b]))
        .unwrap() as u32
}

#[test]
fn greedy_decoding_is_the_argmax_of_full_passes() {
    for family in ["llama", "qwen3"] {
        let fixture = Fixture::load(family);
        let requests: Vec<Request> = (0..8).map(|i| request(i, 0.0)).collect();
        for (request, answer) in requests
            .iter()
            .zip(fixture.answers(&fixture.sampler(config()), &requests))
        {
            assert_eq!((answer.tokens.len(), answer.finish), (12, Finish::Length));
            for (i, [_, raw]) in full_pass(&fixture, request, &answer, 1.0)
                .iter()
                .enumerate()
            {
                let token = answer.tokens[i];
                assert_eq!(
                    token,
                    argmax(raw),
                    "{family}, prompt {:?}, token {i}",
                    request.prompt
                );
                assert!((f64::from(answer.raw_logprobs[i]) - raw[token as usize]).abs() < 1e-4);
                assert_eq!(
                    answer.logprobs[i], answer.raw_logprobs[i],
                    "greedy decoding reports the model's distribution"
                );
            }
        }
    }
}

#[test]
fn logprobs_of_long_samples_equal_those_of_a_full_pass() {
    for family in ["llama", "qwen3"] {
        let fixture = Fixture::load(family);
        let config = SamplerConfig {
            max_new_tokens: 64,
            tokens_per_dispatch: 16,
            ..config()
        };
        let requests: Vec<Request> = (0..8)
            .map(|i| Request {
                max_new_tokens: 64,
                ..request(i, 0.7)
            })
            .collect();
        for (request, answer) in requests
            .iter()
            .zip(fixture.answers(&fixture.sampler(config), &requests))
        {
            assert_eq!(answer.tokens.len(), 64);
            for (i, [scaled, raw]) in full_pass(&fixture, request, &answer, 0.7)
                .iter()
                .enumerate()
            {
                let token = answer.tokens[i] as usize;
                assert!(
                    (f64::from(answer.logprobs[i]) - scaled[token]).abs() < 1e-4,
                    "{family}, token {i}"
                );
                assert!(
                    (f64::from(answer.raw_logprobs[i]) - raw[token]).abs() < 1e-4,
                    "{family}, token {i}"
                );
            }
        }
    }
}

#[test]
fn half_width_decoding_stays_near_the_full_pass() {
    for compute in [DType::BF16, DType::F16] {
        let fixture = Fixture::load("qwen3");
        let requests: Vec<Request> = (0..8).map(|i| request(i, 1.0)).collect();
        let answers = fixture.answers(
            &fixture.sampler(SamplerConfig {
                compute,
                ..config()
            }),
            &requests,
        );
        for (request, answer) in requests.iter().zip(answers) {
            for (i, [scaled, _]) in full_pass(&fixture, request, &answer, 1.0)
                .iter()
                .enumerate()
            {
                let off = (f64::from(answer.logprobs[i]) - scaled[answer.tokens[i] as usize]).abs();
                assert!(off < 0.1, "{compute}: off by {off}");
            }
        }
    }
}
