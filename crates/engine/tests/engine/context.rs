//! Devices that share the tokens of a row: every order on every mesh gives the numbers of one device.

use std::collections::BTreeMap;

use ferrotune_batch::{Rows, Trajectory};
use ferrotune_engine::{Engine, EngineConfig, Error, Loss, OrderKind, Scores};
use ferrotune_graph::HostArray;
use ferrotune_models::ModelConfig;
use ferrotune_nn::ParamSpec;

use crate::setup::{config, documents, fixture, relative, rows, try_engine_of};

/// Documents that cross shards, of one token, and rows without any.
const LENGTHS: [usize; 9] = [30, 12, 1, 7, 21, 3, 1, 30, 9];
const WIDTH: usize = 32;
const ROWS: usize = 8;

/// `data`, `fsdp`, `context`.
const MESHES: [[usize; 3]; 5] = [[1, 1, 2], [1, 1, 4], [2, 1, 2], [1, 2, 2], [2, 1, 4]];

fn try_engine(family: &str, mesh: [usize; 3], order: OrderKind) -> Result<Engine, Error> {
    let model = ModelConfig::load(fixture(family)).unwrap();
    let params = ferrotune_models::load(fixture(family), &model)
        .unwrap()
        .params;
    let config = EngineConfig { order, ..config() };
    try_engine_of(model, &params, mesh, config)
}

fn engine(family: &str, mesh: [usize; 3], order: OrderKind) -> Engine {
    try_engine(family, mesh, order).unwrap()
}

/// What an engine makes of rows.
struct Found {
    scores: Scores,
    gradients: Vec<(ParamSpec, HostArray)>,
    metrics: BTreeMap<String, f64>,
    evaluated: BTreeMap<String, f64>,
}

fn run(engine: &mut Engine, batch: &Rows) -> Found {
    let loss = Loss::cross_entropy();
    engine.forward_backward(batch, &loss).unwrap();
    let gradients = engine.gradients_to_host().unwrap();
    Found {
        scores: engine.score(batch).unwrap(),
        evaluated: engine.evaluate(batch, &loss).unwrap(),
        metrics: engine.update(0.0).unwrap().read().unwrap().metrics,
        gradients,
    }
}

/// The largest difference between numbers, relative to their size or to 1.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let each = a.iter().zip(b);
    each.map(|(a, b)| f64::from((a - b).abs() / a.abs().max(1.0)))
        .fold(0.0, f64::max)
}

/// How far two runs differ: scores, gradients, sums.
fn differences(a: &Found, b: &Found) -> [f64; 3] {
    let scores = apart(&a.scores.logprob, &b.scores.logprob);
    let sums = |a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>| {
        assert!(a.keys().eq(b.keys()));
        let each = a.iter().map(|(name, value)| (value - b[name]).abs() / value.abs().max(1.0));
        each.fold(0.0, f64::max)
    };
    [
        scores.max(apart(&a.scores.entropy, &b.scores.entropy)),
        relative(&a.gradients, &b.gradients),
        sums(&a.metrics, &b.metrics).max(sums(&a.evaluated, &b.evaluated)),
    ]
}

/// The same documents in rows of their own order: what another order of the same sums costs.
fn null_control(family: &str, docs: &[Trajectory], expected: &Found, batch: &Rows) -> [f64; 3] {
    let turned: Vec<Trajectory> = docs.iter().rev().cloned().collect();
    let other = rows(&turned, WIDTH, ROWS);
    let mut found = run(&mut engine(family, [1, 1, 1], OrderKind::Contiguous), &other);
    for scores in [&mut found.scores.logprob, &mut found.scores.entropy] {
        let mut of_documents = other.unpack(&scores[..]).unwrap();
        of_documents.reverse();
        for place in batch.places() {
            let at = place.row * WIDTH + place.start;
            let own = &of_documents[place.trajectory];
            scores[at..at + own.len()].copy_from_slice(own);
        }
    }
    differences(expected, &found)
}

fn check(family: &str, meshes: &[[usize; 3]], orders: &[OrderKind], limit: f64) {
    let docs = documents(&LENGTHS);
    let batch = rows(&docs, WIDTH, ROWS);
    let expected = run(&mut engine(family, [1, 1, 1], OrderKind::Contiguous), &batch);
    let null = null_control(family, &docs, &expected, &batch);
    println!("{family}: null {null:?}");
    for mesh in meshes {
        for order in orders {
            let found = run(&mut engine(family, *mesh, *order), &batch);
            let apart = differences(&expected, &found);
            println!("{family} {mesh:?} {}: {apart:?}", order.name());
            let worst = apart.into_iter().fold(0.0, f64::max);
            assert!(
                worst < limit,
                "{family} {mesh:?} {}: {apart:?}, another packing: {null:?}",
                order.name()
            );
        }
    }
}

#[test]
fn every_order_on_every_mesh_has_the_numbers_of_one_device() {
    check("qwen3", &MESHES, &OrderKind::ALL, 1e-6);
}

#[test]
fn experts_have_the_tokens_of_every_device() {
    check("qwen3_moe", &[[2, 1, 2]], &[OrderKind::DualChunkSwap], 1e-6);
}

/// Attention alone is in another order, and the rule's heads are shared, or, by four devices, are on all of them.
#[test]
fn hybrids_read_rows_in_their_natural_order() {
    let orders = [OrderKind::Contiguous, OrderKind::DualChunkSwap];
    check("qwen3_next", &[[1, 1, 2], [1, 1, 4], [2, 1, 2]], &orders, 1e-5);
}
