//! The load-balance loss, and experts that the rows name.

use std::collections::HashMap;

use ferrotune_batch::{Aggregation, Packing, Rows, Trajectory};
use ferrotune_engine::{Engine, EngineConfig, Error, Loss, RouterSettings};
use ferrotune_models::export_gradients;
use safetensors::SafeTensors;

use crate::setup::{config, documents, engine, engine_on, fixture, rows};

fn with_router(load_balance: f64, replay: bool) -> EngineConfig {
    EngineConfig {
        router: RouterSettings {
            load_balance,
            replay,
            capacity_factor: None,
        },
        ..config()
    }
}

/// The two rows that transformers read.
pub(crate) fn reference_rows(family: &str) -> Rows {
    let bytes = std::fs::read(fixture(family).join("reference.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let ids = tensors.tensor("input_ids").unwrap();
    let (width, data) = (ids.shape()[1], ids.data());
    let ids: Vec<u32> = data
        .as_chunks()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    let docs = ids
        .chunks(width)
        .map(|ids| Trajectory::document(ids.to_vec()));
    let docs: Vec<Trajectory> = docs.collect();
    let weights = Aggregation::TokenMean.weights(&docs).unwrap();
    Packing::padded(width).pack(&docs, &weights).unwrap()
}

/// Gradients by the names of transformers, and the metric `load_balance`.
fn gradients(engine: &mut Engine, batches: &[Rows]) -> (HashMap<String, Vec<f32>>, Option<f64>) {
    for rows in batches {
        engine
            .forward_backward(rows, &Loss::cross_entropy())
            .unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gradients.safetensors");
    export_gradients(&file, engine.model(), &engine.gradients_to_host().unwrap()).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |data: &[u8]| -> Vec<f32> {
        data.as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    };
    let found = tensors
        .iter()
        .map(|(n, t)| (n.to_owned(), floats(t.data())));
    let found = found.collect();
    let report = engine.update(0.0).unwrap().read().unwrap();
    let metric = report.metrics.get("load_balance").copied();
    (found, metric)
}

#[test]
fn the_load_balance_loss_is_that_of_transformers() {
    let text = std::fs::read_to_string(fixture("qwen3_moe").join("load_balance.json")).unwrap();
    let reference: serde_json::Value = serde_json::from_str(&text).unwrap();
    let batch = [reference_rows("qwen3_moe")];
    let (without, none) = gradients(&mut engine("qwen3_moe"), &batch);
    assert_eq!(none, None);
    let mut balanced = engine_on("qwen3_moe", 1, 1, with_router(3.0, false));
    let (with, metric) = gradients(&mut balanced, &batch);
    let expected = reference["loss"].as_f64().unwrap();
    assert!(
        (metric.unwrap() - expected).abs() < 1e-5,
        "{metric:?} {expected}"
    );
    for (name, values) in reference["gradients"].as_object().unwrap() {
        let values: Vec<f64> = serde_json::from_value(values.clone()).unwrap();
        let pairs = with[name].iter().zip(&without[name]).zip(&values);
        let error = pairs.map(|((a, b), c)| (f64::from(a - b) / 3.0 - c).powi(2));
        let size = values.iter().map(|v| v * v);
        let relative = (error.sum::<f64>() / size.sum::<f64>()).sqrt();
        assert!(relative < 1e-3, "{name}: {relative}");
    }
}

#[test]
fn rows_without_tokens_and_padding_do_not_move_the_balance() {
    let docs = documents(&[30, 12, 18]);
    let settings = || with_router(1.0, false);
    let (one, metric) = gradients(
        &mut engine_on("qwen3_next", 1, 1, settings()),
        &[rows(&docs, 60, 1)],
    );
    let (two, other) = gradients(
        &mut engine_on("qwen3_next", 1, 1, settings()),
        &[rows(&docs, 75, 2), rows(&docs, 60, 1).empty_like(1)],
    );
    assert!((metric.unwrap() - other.unwrap()).abs() < 1e-5);
    let name = "model.layers.0.mlp.gate.weight";
    let pairs = one[name].iter().zip(&two[name]);
    assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-6);
}

#[test]
fn rows_say_which_experts_tokens_go_to() {
    let docs = documents(&[20, 13]);
    // Two layers, two experts of each token.
    let named = |ids: &[i16]| {
        let name = |doc: &Trajectory| {
            let all: Vec<i16> = ids.iter().copied().cycle().take(4 * doc.len()).collect();
            doc.clone().with_expert_ids(4, &all)
        };
        rows(&docs.iter().map(name).collect::<Vec<_>>(), 40, 1)
    };
    let mut replayed = engine_on("qwen3_moe", 1, 1, with_router(0.0, true));
    let mut score = |ids: &[i16]| replayed.score(&named(ids)).map(|it| it.logprob);
    let own = engine("qwen3_moe").score(&rows(&docs, 40, 1)).unwrap();
    assert_eq!(score(&[-1]).unwrap(), own.logprob);
    let (a, b) = (score(&[0, 1, 2, 3]).unwrap(), score(&[0, 1, 3, 2]).unwrap());
    assert_ne!(a, own.logprob);
    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
    assert!(
        worst.fold(0.0, f32::max) < 1e-5,
        "the order of experts is nothing"
    );

    let error = score(&[0, 4, -1, 2]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::ExpertId {
                id: 4,
                count: 4,
                ..
            }
        ),
        "{error}"
    );
    let wide = named(&[0]);
    let error = engine_on("qwen3_next", 1, 1, with_router(0.0, true))
        .score(&wide)
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("name 4 experts") && text.contains("4 layers"),
        "{text}"
    );
    let error = replayed.score(&rows(&docs, 40, 1)).unwrap_err();
    assert!(error.to_string().contains("expert_ids"), "{error}");
}
