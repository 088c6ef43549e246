//! Decoding with a cache gives what a full forward pass over prompt and answer gives.

use ferrotune_graph::DType;
use ferrotune_rollout::{Completion, Finish, Request, SamplerConfig};

use crate::setup::{Fixture, config, log_softmax, narrow, request, request_of_any_length};

const FAMILIES: [&str; 7] = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
];

/// For each token of each answer: the log-probs (f64) of the whole vocabulary, raw and at the temperature.
fn full_pass(
    fixture: &Fixture,
    requests: &[Request],
    answers: &[Completion],
    temperature: f64,
) -> Vec<Vec<[Vec<f64>; 2]>> {
    let whole =
        |(r, a): (&Request, &Completion)| r.prompt.iter().chain(&a.tokens).copied().collect();
    let rows: Vec<Vec<u32>> = requests.iter().zip(answers).map(whole).collect();
    let logits = fixture.logits(&rows);
    let scored = requests
        .iter()
        .zip(answers)
        .zip(&logits)
        .map(|((request, answer), logits)| {
            // Token i of the answer is predicted by the token before it.
            let before = logits[request.prompt.len() - 1..]
                .iter()
                .take(answer.tokens.len());
            before
                .map(|z| [log_softmax(z, 1.0), log_softmax(z, temperature)])
                .collect()
        });
    scored.collect()
}

fn argmax(values: &[f64]) -> u32 {
    (0..values.len())
        .max_by(|a, b| values[*a].total_cmp(&values[*b]))
        .unwrap() as u32
}

#[test]
fn greedy_decoding_is_the_argmax_of_a_full_pass() {
    for family in ["llama", "qwen3"] {
        let fixture = Fixture::load(family);
        let requests: Vec<Request> = (0..8).map(|i| request(i, 0.0)).collect();
        let answers = fixture.answers(&fixture.sampler(config()), &requests);
        for (answer, scored) in answers
            .iter()
            .zip(full_pass(&fixture, &requests, &answers, 1.0))
        {
            assert_eq!((answer.tokens.len(), answer.finish), (12, Finish::Length));
            assert_eq!(
                answer.logprobs, answer.raw_logprobs,
                "greedy decoding reports the model's distribution"
            );
            for (i, [raw, _]) in scored.iter().enumerate() {
                let token = answer.tokens[i];
                assert_eq!(token, argmax(raw), "{family}, token {i}");
                let off = f64::from(answer.raw_logprobs[i]) - raw[token as usize];
                assert!(off.abs() < 1e-4, "{family}, token {i}: off by {off}");
            }
        }
    }
}

/// Both log-probs of every token must be those of one pass over prompt and answer.
fn check_logprobs(fixture: &Fixture, requests: &[Request], answers: &[Completion], t: f64) {
    for (answer, scored) in answers.iter().zip(full_pass(fixture, requests, answers, t)) {
        for (i, [raw, scaled]) in scored.iter().enumerate() {
            let token = answer.tokens[i] as usize;
            let off = f64::from(answer.logprobs[i]) - scaled[token];
            let off_raw = f64::from(answer.raw_logprobs[i]) - raw[token];
            assert!(
                off.abs() < 1e-4 && off_raw.abs() < 1e-4,
                "{:?}, token {i}: {off} {off_raw}",
                fixture.config.family
            );
        }
    }
}

#[test]
fn logprobs_of_long_samples_equal_those_of_a_full_pass() {
    for family in FAMILIES {
        let fixture = Fixture::load(family);
        let config = SamplerConfig {
            max_new_tokens: 64,
            tokens_per_dispatch: 16,
            ..config()
        };
        let long = |i| Request {
            max_new_tokens: 64,
            ..request(i, 0.7)
        };
        let requests: Vec<Request> = (0..8).map(long).collect();
        let answers = fixture.answers(&fixture.sampler(config), &requests);
        assert!(answers.iter().all(|answer| answer.tokens.len() == 64));
        check_logprobs(&fixture, &requests, &answers, 0.7);
    }
}

#[test]
fn logprobs_equal_those_of_a_full_pass_whenever_a_row_begins() {
    for family in ["llama", "qwen3_next"] {
        let fixture = Fixture::load(family);
        let requests: Vec<Request> = (0..40).map(|i| request_of_any_length(i, 0.9)).collect();
        let answers = fixture.answers(&fixture.sampler(narrow()), &requests);
        for (request, answer) in requests.iter().zip(&answers) {
            assert_eq!(answer.tokens.len(), request.max_new_tokens);
        }
        check_logprobs(&fixture, &requests, &answers, 0.9);
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
        for (answer, scored) in answers
            .iter()
            .zip(full_pass(&fixture, &requests, &answers, 1.0))
        {
            for (i, [raw, _]) in scored.iter().enumerate() {
                let off = f64::from(answer.logprobs[i]) - raw[answer.tokens[i] as usize];
                assert!(off.abs() < 0.1, "{compute}, token {i}: off by {off}");
            }
        }
    }
}

#[test]
fn weights_in_two_groups_with_adapters_decode_as_one_pass_scores_them() {
    let lora = ferrotune_models::Lora {
        rank: 2,
        alpha: 3.0,
        targets: vec!["q_proj".to_owned(), "down_proj".to_owned()],
        experts: false,
    };
    let fixture = Fixture::load("llama").with_adapter(&lora);
    let config = SamplerConfig {
        adapter_scale: lora.scale(),
        ..config()
    };
    let requests: Vec<Request> = (0..8).map(|i| request(i, 0.0)).collect();
    let answers = fixture.answers(&fixture.sampler(config), &requests);
    let plain = Fixture::load("llama");
    let other = plain.answers(&plain.sampler(crate::setup::config()), &requests);
    assert_ne!(answers, other, "the adapters say something");
    for (answer, scored) in answers
        .iter()
        .zip(full_pass(&fixture, &requests, &answers, 1.0))
    {
        for (i, [raw, _]) in scored.iter().enumerate() {
            let token = answer.tokens[i];
            assert_eq!(token, argmax(raw), "token {i}");
            let off = f64::from(answer.raw_logprobs[i]) - raw[token as usize];
            assert!(off.abs() < 1e-4, "token {i}: off by {off}");
        }
    }
}
