//! Devices that share the tokens of a row: every order on every mesh gives the numbers of one device.

use std::collections::BTreeMap;

use ferrotune_batch::{Rows, Trajectory};
use ferrotune_engine::{Engine, EngineConfig, Error, Loss, OrderKind, RouterSettings, Scores};
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
    let routed = family == "qwen3_moe";
    let router = RouterSettings {
        load_balance: if routed { 0.5 } else { 0.0 },
        replay: routed,
        capacity_factor: None,
    };
    let config = EngineConfig {
        order,
        router,
        ..config()
    };
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

/// Each token names experts of its own, of which there are four; two layers send it to two, or one is left to the router.
fn with_experts(document: Trajectory) -> Trajectory {
    let named = |t: usize| {
        let (a, b) = ((t % 4) as i16, (t / 4 % 4) as i16);
        [a, (a + 1) % 4, b, if a == b { -1 } else { a }]
    };
    let ids: Vec<i16> = (0..document.len()).flat_map(named).collect();
    document.with_expert_ids(4, &ids)
}

fn check(family: &str, meshes: &[[usize; 3]], orders: &[OrderKind]) {
    let mut docs = documents(&LENGTHS);
    if family == "qwen3_moe" {
        docs = docs.into_iter().map(with_experts).collect();
    }
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
fn tokens_go_to_their_experts_from_every_device() {
    check("qwen3_moe", &[[2, 1, 2]], &[OrderKind::DualChunkSwap]);
}

/// Attention alone is in another order, and the rule's heads are shared, or, by four devices, are on all of them.
#[test]
fn hybrids_read_rows_in_their_natural_order() {
    let orders = [OrderKind::Contiguous, OrderKind::DualChunkSwap];
    check("qwen3_next", &[[1, 1, 2], [1, 1, 4]], &orders);
}

/// Collectives of the program whose name begins so: kind, bytes on a device, layer.
fn collectives(engine: &Engine, name: &str) -> Vec<(String, u64, String)> {
    let program = engine.programs().find(|p| p.name().starts_with(name));
    let made = program.unwrap().operations().unwrap().unwrap();
    let each = made.collectives.into_iter();
    each.map(|it| (it.kind, it.bytes, it.scope)).collect()
}

#[test]
fn keys_and_values_are_gathered_once_a_layer_and_activations_never() {
    let (rows, width) = (2, 512);
    let mut engine = engine("qwen3", [1, 1, 2], OrderKind::DualChunkSwap);
    engine.score(&Rows::empty(rows, width, &[])).unwrap();
    let sent = collectives(&engine, "score");
    let model = engine.model();
    let of_token = |values: usize| (rows * width * values * size_of::<f32>()) as u64;
    let keys = of_token(model.num_key_value_heads * model.head_dim);
    // One layer stands in the program, in a loop. Places are gathered before it.
    let places = of_token(1);
    let (of_attention, others): (Vec<_>, Vec<_>) = sent
        .into_iter()
        .partition(|(_, _, scope)| scope.ends_with("attn"));
    let mut found: Vec<u64> = of_attention.iter().map(|(_, bytes, _)| *bytes).collect();
    found.sort();
    assert_eq!(found, [places, places, keys, keys], "{of_attention:?}");
    // The others are weights.
    let largest = (model.vocab_size * model.hidden_size * size_of::<f32>()) as u64;
    for (kind, bytes, scope) in others {
        assert_eq!(kind, "all-gather", "{scope}");
        assert!(
            bytes <= largest && largest < keys,
            "{bytes} bytes in {scope}"
        );
    }
}

#[test]
fn a_document_leaves_the_bits_of_the_others_on_any_device() {
    let mut docs = documents(&LENGTHS);
    let mut engine = engine("qwen3", [1, 1, 4], OrderKind::Balanced);
    let mut scores = |docs: &[Trajectory]| {
        let batch = rows(docs, WIDTH, ROWS);
        let found = engine.score(&batch).unwrap();
        batch.unpack(&found.logprob).unwrap()
    };
    let before = scores(&docs);
    for token in &mut docs[4].tokens {
        *token = (*token + 1) % 128;
    }
    let after = scores(&docs);
    for (d, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(before == after, d != 4, "document {d}");
    }
}

#[test]
fn rows_that_cannot_be_shared_are_refused_by_name() {
    let docs = documents(&[9]);
    let mut swapped = engine("qwen3", [1, 1, 2], OrderKind::DualChunkSwap);
    let refused = swapped.score(&rows(&docs, 34, 1)).unwrap_err();
    assert!(
        refused.to_string().contains("nearest are 32 and 36"),
        "{refused}"
    );
    // Places are those of the rows that were given, not of the order on the devices.
    let mut docs = documents(&[30]);
    docs[0].tokens[23] = 128;
    let refused = swapped.score(&rows(&docs, WIDTH, 1)).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::TokenId {
                row: 0,
                column: 23,
                ..
            }
        ),
        "{refused}"
    );
    let refused = try_engine("qwen3_next", [1, 1, 2], OrderKind::Balanced).err();
    let refused = refused
        .expect("the order differs from row to row")
        .to_string();
    assert!(refused.contains("qwen3_next") && refused.contains("dual_chunk_swap"));
    // Where no row is shared there is no order to refuse.
    try_engine("qwen3_next", [1, 2, 1], OrderKind::Balanced).unwrap();
}
