//! What is read of an engine in training is right at any moment, and leaves no trace.

use ferrotune_engine::{Engine, EngineConfig, HeadMode, HeadSettings, Loss};
use ferrotune_graph::HostArray;
use ferrotune_nn::ParamSpec;
use serde_json::json;

use crate::setup::{config, documents, engine, engine_on, rows};

type Params = Vec<(ParamSpec, HostArray)>;

/// Three updates of two micro-batches each; `look` is called between any two calls.
fn train(engine: &mut Engine, look: &mut dyn FnMut(&mut Engine)) -> (Params, Vec<f64>) {
    let batches = rows(&documents(&[14, 9, 11, 5]), 16, 4)
        .micro_batches(2)
        .unwrap();
    let mut losses = Vec::new();
    for _ in 0..3 {
        for batch in &batches {
            look(engine);
            engine
                .forward_backward(batch, &Loss::cross_entropy())
                .unwrap();
        }
        look(engine);
        let report = engine.update(1e-2).unwrap().read().unwrap();
        losses.push(report.metrics["loss"]);
    }
    look(engine);
    (engine.params_to_host().unwrap(), losses)
}

#[test]
fn evaluation_at_any_point_leaves_the_trajectory_bit_unchanged() {
    let held_out = rows(&documents(&[13, 6]), 16, 2);
    let expected = train(&mut engine("qwen3"), &mut |_| {});
    let mut seen = Vec::new();
    let mut watched = engine("qwen3");
    let found = train(&mut watched, &mut |engine| {
        let terms = engine.evaluate(&held_out, &Loss::cross_entropy()).unwrap();
        engine.score(&held_out).unwrap();
        seen.push((engine.step(), terms));
    });
    assert_eq!(found, expected);
    // Right values: the same within one update, others after it, and those of a fresh engine with the same weights.
    for pair in seen.windows(2) {
        assert_eq!(pair[0].0 == pair[1].0, pair[0].1 == pair[1].1);
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-3");
    watched.save(&dir, &json!(null)).unwrap();
    let mut restored = engine("qwen3");
    restored.restore(&dir).unwrap();
    let last = &seen.last().unwrap().1;
    let loss = Loss::cross_entropy();
    assert_eq!(&restored.evaluate(&held_out, &loss).unwrap(), last);
}

#[test]
fn evaluation_says_what_the_gradient_program_says_of_the_same_rows() {
    let batch = rows(&documents(&[14, 9]), 16, 2);
    for mode in [HeadMode::Fused, HeadMode::SinglePass] {
        let settings = EngineConfig {
            head: HeadSettings {
                mode,
                ..config().head
            },
            ..config()
        };
        let mut engine = engine_on("llama", 1, 2, settings);
        let loss = Loss::cross_entropy();
        let evaluated = engine.evaluate(&batch, &loss).unwrap();
        engine.forward_backward(&batch, &loss).unwrap();
        engine.abandon();
        assert_eq!(engine.evaluate(&batch, &loss).unwrap(), evaluated);
        engine.forward_backward(&batch, &loss).unwrap();
        let trained = engine.update(0.0).unwrap().read().unwrap().metrics;
        assert_eq!(trained.len(), evaluated.len());
        for (name, value) in &trained {
            let found = evaluated[name];
            assert!(
                (value - found).abs() <= 1e-6 * value.abs(),
                "{name}: {value} {found}"
            );
        }
    }
}

#[test]
fn a_snapshot_stays_as_it_is_when_the_weights_move_on() {
    let mut engine = engine_on("llama", 1, 2, config());
    let values = |arrays: Vec<HostArray>| -> Vec<Vec<u8>> {
        arrays.iter().map(|a| a.bytes().to_vec()).collect()
    };
    let before = values(engine.weights().unwrap()[0].to_host().unwrap());
    let snapshot = engine.snapshot().unwrap();
    train(&mut engine, &mut |_| {});
    assert_eq!(values(snapshot.to_host().unwrap()), before);
    assert_ne!(
        values(engine.weights().unwrap()[0].to_host().unwrap()),
        before
    );
}
