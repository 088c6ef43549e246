//! Top-k, top-p and min-p: what may be drawn, how often, and with which log-probs.

use ferrotune_rollout::{FilterSettings, Request, SamplerConfig};

use crate::setup::{Fixture, config, log_softmax, request};

/// Probabilities after temperature and filters, as Hugging Face orders them: found by sorting, in f64.
fn filtered(logits: &[f32], asked: &Request) -> Vec<f64> {
    let logprobs = log_softmax(logits, asked.temperature);
    let mut p: Vec<f64> = logprobs.iter().map(|l| l.exp()).collect();
    let normalise = |p: &mut Vec<f64>| {
        let total: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= total);
    };
    let order = |p: &[f64]| {
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        order
    };
    let FilterSettings {
        top_k,
        top_p,
        min_p,
    } = asked.filters;
    if top_k > 0 {
        order(&p).iter().skip(top_k).for_each(|i| p[*i] = 0.0);
        normalise(&mut p);
    }
    if top_p < 1.0 {
        let mut before = 0.0;
        for i in order(&p) {
            let own = p[i];
            if before >= top_p {
                p[i] = 0.0;
            }
            before += own;
        }
        normalise(&mut p);
    }
    let peak = p.iter().copied().fold(0.0, f64::max);
    p.iter_mut().for_each(|p| {
        if *p < min_p * peak {
            *p = 0.0;
        }
    });
    normalise(&mut p);
    p
}

/// All kinds of filters, alone and together, and none.
fn settings() -> Vec<Request> {
    let all = request(0, 1.0);
    let with = |temperature, top_k, top_p, min_p| Request {
        prompt: vec![3, 14, 15, 92],
        temperature,
        filters: FilterSettings {
            top_k,
            top_p,
            min_p,
        },
        max_new_tokens: 1,
        ..all.clone()
    };
    vec![
        with(1.0, 0, 1.0, 0.0),
        with(1.0, 5, 1.0, 0.0),
        with(1.0, 0, 0.7, 0.0),
        with(1.0, 0, 1.0, 0.7),
        with(1.7, 20, 0.8, 0.3),
        with(0.6, 500, 0.95, 0.0),
        with(1.0, 1, 1.0, 0.0),
        with(1.0, 0, 1e-12, 0.0),
        with(1.0, 0, 1.0, 1.0),
    ]
}

#[test]
fn draws_follow_the_filtered_distribution_whatever_other_rows_do() {
    const DRAWS: u64 = 1500;
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(SamplerConfig {
        batch: 450,
        max_new_tokens: 1,
        ..config()
    });
    let settings = settings();
    let requests: Vec<Request> = (0..DRAWS)
        .flat_map(|seed| settings.iter().map(move |it| (seed, it)))
        .map(|(seed, it)| Request { seed, ..it.clone() })
        .collect();
    let answers = fixture.answers(&sampler, &requests);
    let prompt = std::slice::from_ref(&settings[0].prompt);
    let logits = fixture.logits(prompt).remove(0).pop().unwrap();
    for (kind, setting) in settings.iter().enumerate() {
        let p = filtered(&logits, setting);
        let kept = p.iter().filter(|p| **p > 0.0).count();
        let mut counts = vec![0.0; p.len()];
        for answer in answers.iter().skip(kind).step_by(settings.len()) {
            let token = answer.tokens[0] as usize;
            assert!(p[token] > 0.0, "{setting:?}: token {token} is not kept");
            let off = f64::from(answer.logprobs[0]) - p[token].ln();
            let raw = f64::from(answer.raw_logprobs[0]) - log_softmax(&logits, 1.0)[token];
            assert!(
                off.abs() < 1e-4 && raw.abs() < 1e-4,
                "{setting:?}: {off} {raw}"
            );
            counts[token] += 1.0;
        }
        for (token, (found, p)) in counts.iter().zip(&p).enumerate() {
            let mean = DRAWS as f64 * p;
            let sigma = (mean * (1.0 - p)).sqrt();
            assert!(
                (found - mean).abs() <= 4.5 * sigma + 3.0,
                "{setting:?}: token {token} {found} times, expected {mean:.1} ± {sigma:.1}"
            );
        }
        let expected = [128, 5, 0, 0, 0, 0, 1, 1, 1][kind];
        assert!(
            expected == 0 || expected == kept,
            "{setting:?} keeps {kept}"
        );
        assert!(kind == 0 || kept < 128, "{setting:?} keeps everything");
    }
}

#[test]
fn a_row_without_filters_does_not_feel_those_of_others() {
    let fixture = Fixture::load("qwen3");
    let sampler = fixture.sampler(config());
    let plain: Vec<Request> = (0..4).map(|i| request(i, 0.5 * i as f64)).collect();
    let alone = fixture.answers(&sampler, &plain);
    let filtered = |i| Request {
        filters: FilterSettings {
            top_k: 3,
            top_p: 0.9,
            min_p: 0.01,
        },
        ..request(i, 1.2)
    };
    let mixed: Vec<Request> = (0..4)
        .flat_map(|i| [plain[i as usize].clone(), filtered(i)])
        .collect();
    let together = fixture.answers(&sampler, &mixed);
    for (i, alone) in alone.iter().enumerate() {
        assert_eq!(*alone, together[2 * i]);
    }
}

#[test]
fn equal_logits_are_kept_or_dropped_together() {
    let fixture = Fixture::flat("llama");
    let sampler = fixture.sampler(config());
    let asked = |top_k, top_p, min_p| Request {
        filters: FilterSettings {
            top_k,
            top_p,
            min_p,
        },
        ..request(1, 1.0)
    };
    let requests = [asked(1, 1.0, 0.0), asked(0, 0.01, 0.0), asked(0, 1.0, 1.0)];
    for answer in fixture.answers(&sampler, &requests) {
        for logprob in answer.logprobs {
            assert!((logprob + 128_f32.ln()).abs() < 1e-5, "{logprob}");
        }
    }
}

#[test]
fn the_most_likely_token_survives_every_filter() {
    let fixture = Fixture::load("llama");
    let sampler = fixture.sampler(config());
    let greedy = fixture.answers(&sampler, &[request(3, 0.0)]);
    let strict = |top_k, top_p, min_p, temperature| Request {
        filters: FilterSettings {
            top_k,
            top_p,
            min_p,
        },
        ..request(3, temperature)
    };
    let requests = [
        strict(1, 1.0, 0.0, 1.0),
        strict(0, 1e-300, 0.0, 0.7),
        strict(0, 1.0, 1.0, 3.0),
        strict(2, 0.5, 0.5, 0.0),
    ];
    let answers = fixture.answers(&sampler, &requests);
    for answer in &answers {
        assert_eq!(answer.tokens, greedy[0].tokens);
    }
    // What must be drawn has probability 1; greedy decoding reports the model's.
    assert!(answers[0].logprobs.iter().all(|l| *l == 0.0));
    assert_eq!(answers[3].logprobs, greedy[0].logprobs);
}
