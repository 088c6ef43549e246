//! Engines over the fixture models, and batches of documents.

use std::path::PathBuf;
use std::sync::OnceLock;

use ferrotune_batch::{Aggregation, Packing, Rows, Trajectory};
use ferrotune_engine::{
    AdamW, Engine, EngineConfig, Error, Offload, Optimizer, OrderKind, RouterSettings, Rule,
    ShardOverData, Trains,
};
use ferrotune_graph::{DType, HostArray, Mesh, Policy, Rules};
use ferrotune_models::ModelConfig;
use ferrotune_nn::{HeadMode, HeadSettings, LOGICAL_AXES, ParamSpec};
use ferrotune_pjrt::{Client, Plugin};

pub(crate) fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))
            .expect("the CPU plugin is needed for these tests");
        Client::cpu(&plugin, 8).expect("a CPU client")
    })
}

pub(crate) fn fixture(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/hf")
        .join(family)
}

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
        optimizer: Optimizer {
            rule: Rule::AdamW(AdamW {
                beta2: 0.95,
                ..AdamW::default()
            }),
            weight_decay: 0.1,
            ..Optimizer::default()
        },
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

/// `data` × `fsdp` devices; rows over both, the embedding axis over fsdp.
pub(crate) fn engine_on(family: &str, data: usize, fsdp: usize, config: EngineConfig) -> Engine {
    let model = ModelConfig::load(fixture(family)).unwrap();
    let params = ferrotune_models::load(fixture(family), &model)
        .unwrap()
        .params;
    engine_of(model, &params, data, fsdp, config)
}

pub(crate) fn engine_of(
    model: ModelConfig,
    params: &[(ParamSpec, HostArray)],
    data: usize,
    fsdp: usize,
    config: EngineConfig,
) -> Engine {
    try_engine_of(model, params, [data, fsdp, 1], config).unwrap()
}

/// `data` × `fsdp` × `context` devices: the embedding axis over the last two, tokens over the last.
pub(crate) fn try_engine_of(
    model: ModelConfig,
    params: &[(ParamSpec, HostArray)],
    [data, fsdp, context]: [usize; 3],
    config: EngineConfig,
) -> Result<Engine, Error> {
    let mesh = Mesh::new(&[("data", data), ("fsdp", fsdp), ("context", context)]).unwrap();
    let over = |name: &str| {
        let axes: &[&str] = match name {
            "batch" => &["data", "fsdp"],
            "tokens" => &["context"],
            "embed" => &["fsdp", "context"],
            _ => &[],
        };
        axes.iter().map(|axis| (*axis).to_owned()).collect()
    };
    let rules = Rules::new(LOGICAL_AXES.iter().map(|name| (*name, over(name))));
    Engine::new(client(), &mesh, &rules, model, config, params)
}

pub(crate) fn engine(family: &str) -> Engine {
    engine_on(family, 1, 1, config())
}

/// Documents of the given lengths, with token ids below 128.
pub(crate) fn documents(lengths: &[usize]) -> Vec<Trajectory> {
    let token = |doc: usize, i: usize| ((doc * 7919 + i * 104_729 + i * i * 31 + 17) % 128) as u32;
    lengths
        .iter()
        .enumerate()
        .map(|(d, n)| Trajectory::document((0..*n).map(|i| token(d, i)).collect()))
        .collect()
}

/// Documents packed into rows of `budget`, weighted to the mean over all predicted tokens.
pub(crate) fn rows(docs: &[Trajectory], budget: usize, multiple: usize) -> Rows {
    let weights = Aggregation::TokenMean.weights(docs).unwrap();
    let packing = Packing {
        row_multiple: multiple,
        ..Packing::packed(budget)
    };
    packing.pack(docs, &weights).unwrap()
}

/// Largest difference of each array, relative to the norm of the first.
pub(crate) fn relative(a: &[(ParamSpec, HostArray)], b: &[(ParamSpec, HostArray)]) -> f64 {
    let norm = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let differ = |(a, b): (&(ParamSpec, HostArray), &(ParamSpec, HostArray))| {
        let (x, y) = (a.1.as_slice::<f32>(), b.1.as_slice::<f32>());
        let difference: Vec<f32> = x.iter().zip(y).map(|(x, y)| x - y).collect();
        norm(&difference) / norm(x).max(1e-30)
    };
    a.iter().zip(b).map(differ).fold(0.0, f64::max)
}
