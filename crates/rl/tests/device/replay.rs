//! Trainer and sampler with the same experts for the same tokens.

use std::path::PathBuf;

use ferrotune_batch::{Aggregation, Packing, Trajectory};
use ferrotune_engine::{
    Engine, EngineConfig, HeadMode, HeadSettings, Offload, Optimizer, OrderKind, RouterSettings,
    ShardOverData, Trains,
};
use ferrotune_graph::{DType, Mesh, Policy, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_nn::LOGICAL_AXES;
use ferrotune_pjrt::{Client, Plugin};
use ferrotune_rollout::{Completion, Request, Sampler, SamplerConfig};

fn config() -> EngineConfig {
    EngineConfig {
        compute: DType::F32,
        fp8_history: 0,
        policy: Policy::keep_dots(),
        head: HeadSettings {
            mode: HeadMode::Fused,
            token_chunk: 1 << 20,
            vocab_chunk: 1 << 20,
        },
        temperature: 1.0,
        optimizer: Optimizer::default(),
        max_inflight: 2,
        max_shapes: 8,
        group_norms: Vec::new(),
        trains: Trains::All,
        shard_over_data: ShardOverData::Nothing,
        offload: Offload::Nothing,
        router: RouterSettings {
            replay: true,
            ..RouterSettings::default()
        },
        order: OrderKind::default(),
    }
}

/// A trainer and a sampler of a model with experts, on devices that share rows.
fn both(client: &Client, family: &str, devices: usize) -> (Engine, Sampler) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/hf")
        .join(family);
    let model = ModelConfig::load(&dir).unwrap();
    let params = ferrotune_models::load(&dir, &model).unwrap().params;
    let mesh = Mesh::new(&[("data", devices)]).unwrap();
    let rows = |axis: &str| match axis {
        "batch" => vec!["data".to_owned()],
        _ => Vec::new(),
    };
    let rules = Rules::new(LOGICAL_AXES.map(|axis| (axis, rows(axis))));
    let engine = Engine::new(client, &mesh, &rules, model, config(), &params).unwrap();
    let sampler = SamplerConfig {
        // So many that each device reads several prompts at a time.
        batch: 16,
        max_prompt_tokens: 7,
        max_new_tokens: 9,
        tokens_per_dispatch: 4,
        compute: DType::F32,
        stop_ids: vec![],
        adapter_scale: 1.0,
        routes: true,
        pad_id: 0,
    };
    let layouts = engine.layouts();
    let sampler = Sampler::new(client, &rules, engine.model(), &layouts, sampler).unwrap();
    (engine, sampler)
}

/// More than there are rows, of many lengths; two have the same prompt.
fn requests() -> Vec<Request> {
    let request = |i: usize| Request {
        prompt: (0..1 + i * 5 % 7)
            .map(|k| ((i * 31 + k * 17) % 128) as u32)
            .collect(),
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
    let plugin = Plugin::cpu(&mut |line| eprintln!("{line}")).expect("the CPU plugin");
    let client = Client::cpu(&plugin, 2).unwrap();
    for (family, devices) in [("qwen3_moe", 1), ("qwen3_next", 2)] {
        let (mut engine, sampler) = both(&client, family, devices);
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
