//! Devices with the same weights: what they exchange and when, and that it changes no number.

use ferrotune_batch::Rows;
use ferrotune_engine::{Engine, EngineConfig, Error, Loss, ShardOverData};
use ferrotune_graph::HostArray;
use ferrotune_nn::ParamSpec;

use crate::setup::{config, documents, engine_on, relative, rows};

const LENGTHS: [usize; 8] = [12, 30, 7, 21, 3, 16, 30, 9];

/// Smaller arrays are metrics and norms.
const LARGE: u64 = 1 << 10;

fn sharded(shard_over_data: ShardOverData) -> EngineConfig {
    EngineConfig {
        shard_over_data,
        ..config()
    }
}

/// Large exchanges in the compiled program whose name begins so: of which kind, bytes of the result on a device.
fn exchanges(engine: &Engine, name: &str) -> Vec<(String, u64)> {
    let program = engine.programs().find(|p| p.name().starts_with(name));
    let made = program.unwrap().operations().unwrap().unwrap();
    let large = made.collectives.into_iter().filter(|it| it.bytes >= LARGE);
    let mut found: Vec<_> = large.map(|it| (it.kind, it.bytes)).collect();
    found.sort();
    found
}

fn is_sum((kind, _): &&(String, u64)) -> bool {
    kind == "all-reduce" || kind == "reduce-scatter"
}

/// The bytes of one device's part of all gradients of its data shard.
fn part(engine: &Engine, devices: usize) -> u64 {
    let [_, _, accumulators] = engine.state_bytes();
    (accumulators / devices) as u64
}

fn batches(micro_batches: usize) -> Vec<Rows> {
    let all = rows(&documents(&LENGTHS), 32, 8);
    all.micro_batches(8 / micro_batches).unwrap()
}

#[test]
fn gradients_travel_over_data_once_an_update_and_in_no_micro_batch() {
    for (data, fsdp) in [(4, 1), (2, 2)] {
        let compiled = |data: usize| {
            let mut engine = engine_on("qwen3", data, fsdp, config());
            let loss = Loss::cross_entropy();
            engine.compile(2 * data * fsdp, 32, &loss).unwrap();
            engine
        };
        let (shards, alone) = (compiled(data), compiled(1));
        // A data shard sends what it sends where there is no other, and nothing but over fsdp.
        for name in ["first", "more"] {
            let found = exchanges(&shards, name);
            assert_eq!(found, exchanges(&alone, name), "{name} on {data}x{fsdp}");
            assert_eq!(found.is_empty(), fsdp == 1);
        }
        assert_eq!(exchanges(&alone, "update"), []);
        let sent = exchanges(&shards, "update");
        assert!(sent.iter().all(|it| is_sum(&it)), "{sent:?}");
        let bytes: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
        let part = part(&shards, data * fsdp);
        assert!(
            bytes <= part + part / 8 && bytes >= part - part / 8,
            "{bytes} bytes are summed for {part} on {data}x{fsdp}"
        );
    }
}

/// An update of two micro-batches; what is left of the parameters, and the gradient.
fn trained(engine: &mut Engine) -> [Vec<(ParamSpec, HostArray)>; 2] {
    for batch in &batches(2) {
        let loss = Loss::cross_entropy();
        engine.forward_backward(batch, &loss).unwrap();
    }
    let gradients = engine.gradients_to_host().unwrap();
    engine.update(1e-3).unwrap().read().unwrap();
    [engine.params_to_host().unwrap(), gradients]
}

#[test]
fn what_is_split_over_data_changes_no_number_and_takes_less_of_a_device() {
    let (data, fsdp) = (2, 2);
    let kinds = [
        ShardOverData::Nothing,
        ShardOverData::Moments,
        ShardOverData::MomentsAndGradients,
    ];
    let mut expected: Option<[Vec<(ParamSpec, HostArray)>; 2]> = None;
    let mut arguments = Vec::new();
    for kind in kinds {
        let mut engine = engine_on("qwen3", data, fsdp, sharded(kind));
        let found = trained(&mut engine);
        let memory = engine.program_memory();
        let update = memory.iter().find(|(name, _)| name == "update").unwrap().1;
        arguments.push(update.argument as f64);
        let [params, gradients] = expected.get_or_insert_with(|| found.clone());
        for (what, expected, found) in [
            ("parameters", params, &found[0]),
            ("gradients", gradients, &found[1]),
        ] {
            let error = relative(expected, found);
            assert!(error < 1e-6, "{kind:?}: {what} differ by {error}");
        }
    }
    // Parameters, two moments, a gradient; each is split among `data` or not. Norms may not divide.
    let whole = arguments[0] / 4.0;
    let split = 1.0 / data as f64;
    for (found, wanted) in arguments[1..]
        .iter()
        .zip([2.0 + 2.0 * split, 1.0 + 3.0 * split])
    {
        let found = found / whole;
        assert!((found - wanted).abs() < 0.05, "{found} of {wanted}");
    }
}

#[test]
fn split_moments_are_updated_in_parts_and_parameters_gathered_once() {
    let mut engine = engine_on("qwen3", 4, 1, sharded(ShardOverData::Moments));
    engine.compile(8, 32, &Loss::cross_entropy()).unwrap();
    assert_eq!(exchanges(&engine, "more"), []);
    let sent = exchanges(&engine, "update");
    let part = part(&engine, 4);
    let total = |of: &dyn Fn(&&(String, u64)) -> bool| -> u64 {
        sent.iter().filter(of).map(|(_, bytes)| bytes).sum()
    };
    let gathered = total(&|(kind, _)| kind == "all-gather");
    assert!(
        gathered <= part && gathered > part - part / 8,
        "{gathered} {part}: {sent:?}"
    );
    assert!(total(&is_sum) <= part, "{sent:?}");
}

#[test]
fn nothing_is_split_over_data_where_there_is_no_copy_of_the_weights() {
    let model = ferrotune_models::ModelConfig::load(crate::setup::fixture("qwen3")).unwrap();
    let params = ferrotune_models::load(crate::setup::fixture("qwen3"), &model).unwrap();
    let engine = crate::setup::try_engine_of(
        model,
        &params.params,
        [1, 2, 1],
        sharded(ShardOverData::Moments),
    );
    assert!(matches!(engine.err(), Some(Error::NotOverData)));
}

#[test]
fn the_load_of_experts_is_counted_over_all_shards() {
    let gathered = |data: usize| {
        let mut settings = config();
        settings.router.load_balance = 0.5;
        let mut engine = engine_on("qwen3_moe", data, 1, settings);
        let batch = &batches(1)[0];
        engine
            .forward_backward(batch, &Loss::cross_entropy())
            .unwrap();
        let gradients = engine.gradients_to_host().unwrap();
        let report = engine.update(0.0).unwrap().read().unwrap();
        (gradients, report.metrics["load_balance"])
    };
    let ((expected, balance), (found, of_shards)) = (gathered(1), gathered(2));
    let error = relative(&expected, &found);
    assert!(error < 1e-5, "gradients differ by {error}");
    assert!(
        (balance - of_shards).abs() < 1e-6 * balance,
        "{balance} {of_shards}"
    );
}
