//! Experts with room for some tokens: what is dropped is counted, and does not depend on the devices.

use std::collections::BTreeMap;

use ferrotune_batch::{Field, Rows, Trajectory};
use ferrotune_engine::{DROPPED, Engine, EngineConfig, Error, Loss, RouterSettings};
use ferrotune_graph::HostArray;
use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;

use crate::setup::{config, documents, engine_on, fixture, relative, rows};

const WIDTH: usize = 32;
const LAYERS: usize = 2;
const TOP_K: usize = 2;
const EXPERTS: usize = 4;

fn settings(capacity_factor: Option<f64>, replay: bool) -> EngineConfig {
    EngineConfig {
        router: RouterSettings {
            load_balance: 0.5,
            replay,
            capacity_factor,
        },
        ..config()
    }
}

/// Four rows that name all experts: those of the first layer are 0 and 1, those of the second change from token to token.
fn batch() -> Rows {
    let name = |doc: Trajectory| {
        let of_token = |t: usize| [0, 1, (t % 4) as i16, ((t + 2) % 4) as i16];
        let ids: Vec<i16> = (0..doc.len()).flat_map(of_token).collect();
        doc.with_expert_ids(LAYERS * TOP_K, &ids)
    };
    let docs = documents(&[12, 30, 7, 21, 3, 16]);
    rows(&docs.into_iter().map(name).collect::<Vec<_>>(), WIDTH, 4)
}

/// What a loop over the rows drops in each layer.
fn dropped(batch: &Rows, places: usize) -> Vec<f64> {
    let ids = batch.column(Field::ExpertIds).unwrap().s16().unwrap();
    let in_layer = |layer: usize| {
        let mut load = vec![0_usize; batch.row_count() * EXPERTS];
        for (token, segment) in batch.segment_ids().iter().enumerate() {
            let chosen = &ids[token * LAYERS * TOP_K + layer * TOP_K..][..TOP_K];
            for id in chosen.iter().filter(|_| *segment > 0) {
                load[token / WIDTH * EXPERTS + *id as usize] += 1;
            }
        }
        let over = load.iter().map(|n| n.saturating_sub(places));
        over.sum::<usize>() as f64
    };
    (0..LAYERS).map(in_layer).collect()
}

/// Gradients and metrics of an update.
fn gathered(
    engine: &mut Engine,
    batch: &Rows,
) -> (Vec<(ParamSpec, HostArray)>, BTreeMap<String, f64>) {
    let loss = Loss::cross_entropy();
    engine.forward_backward(batch, &loss).unwrap();
    let gradients = engine.gradients_to_host().unwrap();
    let report = engine.update(0.0).unwrap().read().unwrap();
    (gradients, report.metrics)
}

#[test]
fn what_is_dropped_is_counted_exactly_on_any_number_of_data_shards() {
    let batch = batch();
    assert_eq!(batch.row_count(), 4);
    // Half of the even share: 8 of the 16 choices that a row has for each expert.
    let expected = dropped(&batch, 8);
    assert!(expected.iter().all(|n| *n > 0.0), "{expected:?}");
    let mut first: Option<Vec<(ParamSpec, HostArray)>> = None;
    for (data, fsdp) in [(1, 1), (2, 2), (4, 1)] {
        let mut engine = engine_on("qwen3_moe", data, fsdp, settings(Some(0.5), true));
        let (gradients, metrics) = gathered(&mut engine, &batch);
        let found: Vec<f64> = (0..LAYERS)
            .map(|layer| metrics[&format!("{DROPPED}{layer}")])
            .collect();
        assert_eq!(found, expected, "{data}x{fsdp}");
        let error = relative(first.get_or_insert_with(|| gradients.clone()), &gradients);
        assert!(error < 1e-5, "{data}x{fsdp}: gradients differ by {error}");
    }
}

#[test]
fn with_room_for_all_nothing_is_dropped_and_nothing_changes() {
    let batch = batch();
    let free = engine_on("qwen3_moe", 1, 1, settings(None, false));
    let roomy = engine_on("qwen3_moe", 1, 1, settings(Some(100.0), false));
    let [(expected, plain), (found, metrics)] =
        [free, roomy].map(|mut engine| gathered(&mut engine, &batch));
    let error = relative(&expected, &found);
    assert!(error < 1e-5, "gradients differ by {error}");
    for layer in 0..LAYERS {
        assert_eq!(metrics[&format!("{DROPPED}{layer}")], 0.0);
    }
    assert!(plain.keys().all(|name| !name.starts_with(DROPPED)));
}

#[test]
fn a_capacity_is_a_number_above_0_of_a_model_with_experts() {
    let model = |family| ModelConfig::load(fixture(family)).unwrap();
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = settings(Some(factor), false)
            .router
            .check(&model("qwen3_moe"));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("above 0"), "{text}");
    }
    let router = RouterSettings {
        capacity_factor: Some(1.0),
        ..RouterSettings::default()
    };
    let error = router.check(&model("llama")).unwrap_err();
    assert!(matches!(error, Error::NoExperts { .. }), "{error}");
    router.check(&model("qwen3_next")).unwrap();
}
