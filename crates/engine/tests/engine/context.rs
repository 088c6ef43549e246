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
}

fn run(engine: &mut Engine, batch: &Rows) -> Found {
    let loss = Loss::cross_entropy();
    engine.forward_backward(batch, &loss).unwrap();
    let gradients = engine.gradients_to_host().unwrap();
    Found {
        scores: engine.score(batch).unwrap(),
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
    assert!(a.metrics.keys().eq(b.metrics.keys()));
    let sums = a.metrics.iter();
    let sums = sums.map(|(name, value)| (value - b.metrics[name]).abs() / value.abs().max(1.0));
    [
        scores.max(apart(&a.scores.entropy, &b.scores.entropy)),
        relative(&a.gradients, &b.gradients),
        sums.fold(0.0, f64::max),
    ]
}

/// What the order of sums costs: the same documents packed in another order, and rows apart on two devices.
fn null_control(family: &str, docs: &[Trajectory], expected: &Found, batch: &Rows) -> f64 {
    let turned: Vec<Trajectory> = docs.iter().rev().cloned().collect();
    let other = rows(&turned, WIDTH, ROWS);
    let mut found = run(
        &mut engine(family, [1, 1, 1], OrderKind::Contiguous),
        &other,
    );
    for scores in [&mut found.scores.logprob, &mut found.scores.entropy] {
        let mut of_documents = other.unpack(&scores[..]).unwrap();
        of_documents.reverse();
        for place in batch.places() {
            let at = place.row * WIDTH + place.start;
            let own = &of_documents[place.trajectory];
            scores[at..at + own.len()].copy_from_slice(own);
        }
    }
    let apart = run(&mut engine(family, [1, 2, 1], OrderKind::Contiguous), batch);
    let each = [found, apart].map(|found| differences(expected, &found));
    println!(
        "{family}: packed otherwise {:?}, rows apart {:?}",
        each[0], each[1]
    );
    each.into_iter().flatten().fold(0.0, f64::max)
}

fn check(family: &str, meshes: &[[usize; 3]], orders: &[OrderKind]) {
    let docs = documents(&LENGTHS);
    let batch = rows(&docs, WIDTH, ROWS);
    let expected = run(
        &mut engine(family, [1, 1, 1], OrderKind::Contiguous),
        &batch,
    );
    let null = null_control(family, &docs, &expected, &batch);
    let limit = f64::max(1e-6, 2.0 * null);
    for mesh in meshes {
        for order in orders {
            let found = run(&mut engine(family, *mesh, *order), &batch);
            let apart = differences(&expected, &found);
            println!("{family} {mesh:?} {}: {apart:?}", order.name());
            let worst = apart.into_iter().fold(0.0, f64::max);
            assert!(
                worst < limit,
                "{family} {mesh:?} {}: {apart:?}; the order of sums alone: {null:e}",
                order.name()
            );
        }
    }
}

#[test]
fn every_order_on_every_mesh_has_the_numbers_of_one_device() {
    check("qwen3", &MESHES, &OrderKind::ALL);
}

#[test]
fn experts_have_the_tokens_of_every_device() {
    check("qwen3_moe", &[[2, 1, 2]], &[OrderKind::DualChunkSwap]);
}

/// Attention alone is in another order, and the rule's heads are shared, or, by four devices, are on all of them.
#[test]
fn hybrids_read_rows_in_their_natural_order() {
    let orders = [OrderKind::Contiguous, OrderKind::DualChunkSwap];
    check("qwen3_next", &[[1, 1, 2], [1, 1, 4]], &orders);
}

/// Collectives of the program whose name begins so: kind, bytes, whether in a loop.
fn collectives(engine: &Engine, name: &str) -> Vec<(String, u64, bool)> {
    let program = engine.programs().find(|p| p.name().starts_with(name));
    let made = program.unwrap().operations().unwrap().unwrap();
    for it in &made.collectives {
        println!(
            "{name} {} {} {} {}",
            it.kind, it.bytes, it.in_loop, it.scope
        );
    }
    let each = made.collectives.into_iter();
    each.map(|it| (it.kind, it.bytes, it.in_loop)).collect()
}

#[test]
fn keys_and_values_are_gathered_once_a_layer_and_activations_never() {
    let (rows, width) = (2, 512);
    for family in ["qwen3", "qwen3_next"] {
        let mut engine = engine(family, [1, 1, 2], OrderKind::DualChunkSwap);
        engine.compile(rows, width, &Loss::cross_entropy()).unwrap();
        engine.score(&Rows::empty(rows, width, &[])).unwrap();
        collectives(&engine, "score");
        collectives(&engine, "first");
    }
}
