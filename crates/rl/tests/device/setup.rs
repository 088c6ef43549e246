//! A trainer and a sampler of one model.

use std::path::PathBuf;

use ferrotune_engine::{
    Engine, EngineConfig, HeadMode, HeadSettings, Offload, Optimizer, OrderKind, RouterSettings,
    ShardOverData, Trains,
};
use ferrotune_graph::{DType, Mesh, Policy, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_nn::LOGICAL_AXES;
use ferrotune_rollout::{Sampler, SamplerConfig};

use crate::traced::client;

pub(crate) fn config() -> EngineConfig {
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
        router: RouterSettings::default(),
        order: OrderKind::default(),
    }
}

/// A trainer of a fixture model on devices that share rows and weights.
pub(crate) fn engine(family: &str, devices: usize, config: EngineConfig) -> Engine {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/hf")
        .join(family);
    let model = ModelConfig::load(&dir).unwrap();
    let params = ferrotune_models::load(&dir, &model).unwrap().params;
    let mesh = Mesh::new(&[("fsdp", devices)]).unwrap();
    Engine::new(client(), &mesh, &rules(), model, config, &params).unwrap()
}

fn rules() -> Rules {
    let over = |axis: &str| match axis {
        "batch" | "embed" => vec!["fsdp".to_owned()],
        _ => Vec::new(),
    };
    Rules::new(LOGICAL_AXES.map(|axis| (axis, over(axis))))
}

/// A sampler of the trainer's model, of so many rows that each device of a mesh reads several prompts at a time.
pub(crate) fn sampler(engine: &Engine, routes: bool) -> Sampler {
    let config = SamplerConfig {
        batch: 16,
        max_prompt_tokens: 7,
        max_new_tokens: 9,
        tokens_per_dispatch: 4,
        compute: DType::F32,
        stop_ids: vec![],
        adapter_scale: 1.0,
        routes,
        pad_id: 0,
    };
    Sampler::new(
        client(),
        &rules(),
        engine.model(),
        &engine.layouts(),
        config,
    )
    .unwrap()
}

/// A prompt of 1 to 7 tokens.
pub(crate) fn prompt(i: usize) -> Vec<u32> {
    let token = |k: usize| ((i * 31 + k * 17) % 128) as u32;
    (0..1 + i * 5 % 7).map(token).collect()
}
