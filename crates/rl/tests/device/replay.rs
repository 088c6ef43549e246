//! Trainer and sampler with the same experts for the same tokens.

use ferrotune_batch::{Aggregation, Packing, Trajectory};
use ferrotune_engine::{Engine, EngineConfig, RouterSettings};
use ferrotune_rollout::{Completion, Request};

use crate::setup::{config, engine, prompt, sampler};

/// More than there are rows, of many lengths; two have the same prompt.
fn requests() -> Vec<Request> {
    let request = |i: usize| Request {
        prompt: prompt(i),
        seed: 7 + i as u64,
        max_new_tokens: 1 + i * 7 % 9,
        ..Request::default()
    };
    let mut requests: Vec<Request> = (0..20).map(request).collect();
    requests[3].prompt = requests[2].prompt.clone();
    requests
}

/// What the trainer says of the answers' tokens, which go to the experts that `ids` are.
fn scored(
    engine: &mut Engine,
    answers: &[(Request, Completion)],
    ids: impl Fn(&[i16]) -> Vec<i16>,
) -> Vec<Vec<f32>> {
    let trajectory = |(request, answer): &(Request, Completion)| {
        let routes = answer.routes.as_ref().unwrap();
        Trajectory::from_prompt(&request.prompt, &answer.tokens)
            .with_expert_ids(routes.per_token, &ids(&routes.experts))
    };
    let trajectories: Vec<Trajectory> = answers.iter().map(trajectory).collect();
    let weights = Aggregation::TokenMean.weights(&trajectories).unwrap();
    // A row each.
    let rows = Packing::padded(16).pack(&trajectories, &weights).unwrap();
    let scores = engine.score(&rows).unwrap().logprob;
    let rows = scores.chunks(16).zip(answers);
    rows.map(|(row, (request, answer))| row[request.prompt.len()..][..answer.tokens.len()].to_vec())
        .collect()
}

fn worst(found: &[Vec<f32>], answers: &[(Request, Completion)]) -> f32 {
    let pairs = found.iter().zip(answers);
    let pairs = pairs.flat_map(|(found, (_, answer))| found.iter().zip(&answer.raw_logprobs));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn tokens_go_in_training_where_the_sampler_sent_them() {
    for (family, devices) in [("qwen3_moe", 1), ("qwen3_next", 2)] {
        let replaying = EngineConfig {
            router: RouterSettings {
                replay: true,
                ..RouterSettings::default()
            },
            ..config()
        };
        let mut engine = engine(family, devices, replaying);
        let sampler = sampler(&engine, true);
        let requests = requests();
        let weights = sampler.weights(&engine.weights().unwrap()).unwrap();
        let answers = sampler.generate(&weights, &requests, &mut |_, _| ());
        let answers: Vec<(Request, Completion)> =
            requests.into_iter().zip(answers.unwrap()).collect();
        for (request, answer) in &answers {
            let routes = answer.routes.as_ref().unwrap();
            let read = request.prompt.len() + answer.tokens.len() - 1;
            assert_eq!(Some(routes.per_token), engine.experts_per_token());
            assert_eq!(routes.experts.len(), read * routes.per_token);
            assert!(routes.experts.iter().all(|id| (0..4).contains(id)));
        }
        let same = scored(&mut engine, &answers, |ids| ids.to_vec());
        assert!(worst(&same, &answers) < 1e-5, "{family}");
        // The first token of each prompt goes elsewhere in the first layer: what the rows name is what is read.
        let moved = scored(&mut engine, &answers, |ids| {
            let mut ids = ids.to_vec();
            ids.iter_mut().take(2).for_each(|id| *id = 3 - *id);
            ids
        });
        assert!(worst(&moved, &answers) > 1e-3, "{family}");
    }
}
