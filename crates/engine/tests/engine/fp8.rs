//! Training with 8-bit products: what scales them is state, and no gradient.

use std::collections::BTreeMap;

use ferrotune_batch::Rows;
use ferrotune_engine::{Engine, EngineConfig, Error, Loss, Optimizer, UpdateReport};
use serde_json::json;

use crate::oracle::wide;
use crate::setup::{config, documents, engine_on, rows};

const REMEMBERED: usize = 3;

fn eight_bit() -> EngineConfig {
    EngineConfig {
        fp8_history: REMEMBERED,
        ..config()
    }
}

fn batches() -> Vec<Rows> {
    let rows = rows(&documents(&[14, 9, 11, 16, 12, 8, 15, 10]), 16, 8);
    rows.micro_batches(4).unwrap()
}

/// For each weight and each layer, and of it for input, weight and gradient, the magnitudes remembered.
fn histories(engine: &Engine) -> BTreeMap<String, Vec<[f32; REMEMBERED]>> {
    let of = engine.scaling_to_host().unwrap().into_iter();
    of.map(|(name, array)| {
        assert_eq!(array.dims()[1..], [3, REMEMBERED], "{name}");
        (name, array.as_slice::<f32>().as_chunks().0.to_vec())
    })
    .collect()
}

fn gather(engine: &mut Engine, batch: &Rows) {
    let loss = Loss::cross_entropy();
    engine.forward_backward(batch, &loss).unwrap();
}

fn learn(engine: &mut Engine, batches: &[Rows]) -> UpdateReport {
    for batch in batches {
        gather(engine, batch);
    }
    engine.update(2e-3).unwrap().read().unwrap()
}

#[test]
fn each_micro_batch_moves_every_history_on_and_nothing_else_does() {
    let settings = EngineConfig {
        // Whatever was taken for a gradient would be clipped to nothing, and counted.
        optimizer: Optimizer {
            max_grad_norm: 1e-3,
            ..config().optimizer
        },
        ..eight_bit()
    };
    let (batches, loss) = (batches(), Loss::cross_entropy());
    let mut engine = engine_on("llama", 1, 1, settings);
    let none = histories(&engine);
    assert_eq!(none.len(), 7, "of each linear layer: {none:?}");
    assert!(none.values().flatten().all(|of| *of == [0.0; REMEMBERED]));
    let before = engine.evaluate(&batches[0], &loss).unwrap()["loss"];
    gather(&mut engine, &batches[0]);
    let first = histories(&engine);
    assert_all_seen(&first);
    let between = engine.evaluate(&batches[1], &loss).unwrap()["loss"];
    engine.score(&batches[1]).unwrap();
    assert_eq!(histories(&engine), first);
    gather(&mut engine, &batches[1]);
    let second = histories(&engine);
    for (name, of) in &second {
        for (now, before) in of.iter().zip(&first[name]) {
            assert!(
                now[0] == 0.0 && now[1] == before[2] && now[2] > 0.0,
                "{name}"
            );
        }
    }
    assert!(first != second);
    let gradients = engine.gradients_to_host().unwrap();
    let squares = gradients.iter().flat_map(|(_, array)| wide(array));
    let norm = squares.map(|v| v * v).sum::<f64>().sqrt();
    let report = engine.update(1e-2).unwrap().read().unwrap();
    assert!((report.grad_norm - norm).abs() < 1e-6 * norm);
    // What is evaluated is scaled as the micro-batch after it.
    let evaluated = before + between;
    assert!((report.metrics["loss"] - evaluated).abs() < 1e-6 * evaluated);
    assert_eq!(histories(&engine), second, "neither decayed nor averaged");
    gather(&mut engine, &batches[0]);
    engine.abandon();
    assert_ne!(histories(&engine), second);
}

/// After one micro-batch each history has one magnitude of each kind.
fn assert_all_seen(histories: &BTreeMap<String, Vec<[f32; REMEMBERED]>>) {
    for (name, of) in histories {
        let seen = of.iter().all(|it| it[..2] == [0.0; 2] && it[2] > 0.0);
        assert!(seen, "{name}: {of:?}");
    }
}

#[test]
fn every_linear_layer_of_a_hybrid_has_its_history() {
    let mut engine = engine_on("qwen3_next", 1, 1, eight_bit());
    gather(&mut engine, &batches()[0]);
    let histories = histories(&engine);
    for part in ["attn/q_proj", "delta/", "shared_expert/up_proj"] {
        assert!(histories.keys().any(|name| name.contains(part)), "{part}");
    }
    assert_all_seen(&histories);
}

#[test]
fn magnitudes_are_those_of_all_devices() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-0");
    let batches = batches();
    let mut one = engine_on("llama", 1, 1, eight_bit());
    let mut four = engine_on("llama", 2, 2, eight_bit());
    // From here on they scale by the same.
    gather(&mut one, &batches[0]);
    one.save(&dir, &json!(null)).unwrap();
    four.restore(&dir).unwrap();
    gather(&mut one, &batches[1]);
    gather(&mut four, &batches[1]);
    let (one, four) = (histories(&one), histories(&four));
    for (name, of) in &one {
        for (a, b) in of.iter().zip(&four[name]) {
            // A value on the border of two roundings may fall either way.
            assert!((a[2] - b[2]).abs() <= 0.02 * a[2], "{name}: {a:?} {b:?}");
        }
    }
}

#[test]
fn a_step_as_one_program_moves_histories_on_as_its_parts_do() {
    let (batches, loss) = (batches(), Loss::cross_entropy());
    let mut parts = engine_on("llama", 2, 1, eight_bit());
    let mut whole = engine_on("llama", 2, 1, eight_bit());
    for _ in 0..2 {
        let expected = learn(&mut parts, &batches).grad_norm;
        let pending = whole.train(&batches, &loss, 2e-3).unwrap();
        let found = pending.read().unwrap().grad_norm;
        assert!((found - expected).abs() < 1e-3 * expected);
        let (parts, whole) = (histories(&parts), histories(&whole));
        for (name, of) in &parts {
            let pairs = of.as_flattened().iter().zip(whole[name].as_flattened());
            for (a, b) in pairs {
                assert!((a - b).abs() <= 0.02 * a, "{name}: {a} {b}");
            }
        }
    }
}

#[test]
fn losses_stay_close_to_those_of_wide_products() {
    let batches = batches();
    let mut wide = engine_on("llama", 1, 1, config());
    let mut narrow = engine_on("llama", 1, 1, eight_bit());
    let mut losses = Vec::new();
    for _ in 0..30 {
        let reports = [learn(&mut wide, &batches), learn(&mut narrow, &batches)];
        losses.push(reports.map(|it| it.metrics["loss"]));
    }
    assert!(losses[29][0] < 0.8 * losses[0][0], "it learns: {losses:?}");
    for [wide, narrow] in &losses {
        assert!((wide - narrow).abs() <= 0.02 * wide, "{losses:?}");
    }
    assert!(losses.iter().any(|[wide, narrow]| wide != narrow));
}

#[test]
fn histories_are_part_of_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-2");
    let batches = batches();
    let mut whole = engine_on("llama", 1, 1, eight_bit());
    learn(&mut whole, &batches);
    gather(&mut whole, &batches[0]);
    whole.save(&dir, &json!(null)).unwrap();
    let mut resumed = engine_on("llama", 1, 1, eight_bit());
    resumed.restore(&dir).unwrap();
    assert_eq!(histories(&resumed), histories(&whole));
    for part in [&batches[1..], &batches] {
        assert_eq!(learn(&mut resumed, part), learn(&mut whole, part));
    }
    // A run without them, or with longer ones, is another run.
    let longer = EngineConfig {
        fp8_history: 5,
        ..config()
    };
    for (settings, part) in [(config(), "scaling"), (longer, "_fp8")] {
        let error = engine_on("llama", 1, 1, settings).restore(&dir);
        let error = error.unwrap_err();
        assert!(
            matches!(&error, Error::Incompatible { .. }) && error.to_string().contains(part),
            "{error}"
        );
    }
}
