//! What the optimizer keeps rests with the host, and nothing else changes.

use std::path::Path;

use ferrotune_engine::{Engine, EngineConfig, Loss, Offload};

use crate::setup::{config, documents, engine_on, rows};

fn offloaded() -> EngineConfig {
    EngineConfig {
        offload: Offload::Moments,
        ..config()
    }
}

fn new(fsdp: usize, config: EngineConfig) -> Engine {
    engine_on("qwen3", 1, fsdp, config)
}

/// Updates from two micro-batches each; the norms of their gradients.
fn train(engine: &mut Engine, updates: usize) -> Vec<f64> {
    let batch = rows(&documents(&[12, 30, 7, 21]), 32, 4);
    let micro_batches = batch.micro_batches(2).unwrap();
    let update = |_| {
        for it in &micro_batches {
            let loss = Loss::cross_entropy();
            engine.forward_backward(it, &loss).unwrap();
        }
        let pending = engine.update(1e-2).unwrap();
        pending.read().unwrap().grad_norm
    };
    (0..updates).map(update).collect()
}

#[derive(Debug, PartialEq)]
struct State(
    Vec<(ferrotune_nn::ParamSpec, ferrotune_graph::HostArray)>,
    Vec<(String, ferrotune_graph::HostArray)>,
);

fn state(engine: &Engine) -> State {
    State(
        engine.params_to_host().unwrap(),
        engine.optimizer_to_host().unwrap(),
    )
}

#[test]
fn moments_that_rest_with_the_host_change_no_bit() {
    for fsdp in [1, 2] {
        let (mut with, mut without) = (new(fsdp, offloaded()), new(fsdp, config()));
        assert_eq!(train(&mut with, 3), train(&mut without, 3));
        assert_eq!(state(&with), state(&without), "fsdp {fsdp}");
        with.reset_optimizer().unwrap();
        without.reset_optimizer().unwrap();
        assert_eq!(train(&mut with, 1), train(&mut without, 1));
        assert_eq!(state(&with), state(&without), "after a new beginning");
    }
}

#[test]
fn devices_hold_the_moments_only_while_they_are_updated() {
    let (mut with, mut without) = (new(2, offloaded()), new(2, config()));
    let [params, moments, gradients] = with.state_bytes();
    let batch = rows(&documents(&[12, 30]), 32, 2);
    let loss = Loss::cross_entropy();
    for _ in 0..2 {
        assert_eq!(with.device_bytes(), params);
        assert_eq!(without.device_bytes(), params + moments);
        for engine in [&mut with, &mut without] {
            engine.forward_backward(&batch, &loss).unwrap();
        }
        assert_eq!(with.device_bytes(), params + gradients);
        assert_eq!(without.device_bytes(), params + moments + gradients);
        for engine in [&mut with, &mut without] {
            engine.update(1e-2).unwrap().read().unwrap();
        }
    }
}

#[test]
fn a_checkpoint_is_the_same_file_and_serves_either_setting() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let extra = serde_json::json!(null);
    for (name, config) in [("with", offloaded()), ("without", config())] {
        let mut engine = new(1, config);
        train(&mut engine, 2);
        engine.save(&at(name), &extra).unwrap();
    }
    let file = |dir: &Path| std::fs::read(dir.join("optimizer.safetensors")).unwrap();
    assert_eq!(file(&at("with")), file(&at("without")));
    let go_on = |name: &str, config| {
        let mut engine = new(2, config);
        engine.restore(&at(name)).unwrap();
        let bytes = engine.device_bytes();
        train(&mut engine, 1);
        (bytes, state(&engine))
    };
    let (with, from_without) = go_on("without", offloaded());
    let (without, from_with) = go_on("with", config());
    assert_eq!(from_without, from_with);
    assert!(with < without, "what was restored rests where it should");
}

#[test]
fn a_step_at_once_is_done_in_parts() {
    let (mut with, mut without) = (new(1, offloaded()), new(1, config()));
    let batch = rows(&documents(&[12, 30, 7, 21]), 32, 4);
    let (micro_batches, loss) = (batch.micro_batches(2).unwrap(), Loss::cross_entropy());
    with.compile_step(2, 2, 32, &loss).unwrap();
    with.train(&micro_batches, &loss, 1e-2).unwrap();
    train(&mut without, 1);
    assert_eq!(state(&with), state(&without));
    let names: Vec<&str> = with.programs().map(|it| it.name()).collect();
    assert!(!names.iter().any(|it| it.starts_with("step")), "{names:?}");
}
