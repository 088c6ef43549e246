//! The mean of a batch is in its weights: fractional ones, none at all, one token a micro-batch, rows of nothing.

use std::sync::Arc;

use ferrotune_batch::{Field, LossWeights, Packing, Rows, Trajectory};
use ferrotune_engine::{Engine, EntropyUse, Loss, LossInputs, LossTerms};
use ferrotune_graph::HostArray;
use ferrotune_nn::ParamSpec;

use crate::setup::{config, documents, engine, engine_on, relative};

type Gradient = Vec<(ParamSpec, HostArray)>;

/// −Σ weight · advantage · log-prob: a gradient that is a known multiple of that of one token.
fn scaled() -> Loss {
    let build = |x: &LossInputs| LossTerms {
        loss: -(&x.loss_weight * &x.fields[&Field::Advantage] * &x.logprob).sum_all(),
        metrics: Vec::new(),
    };
    Loss {
        name: "scaled".to_owned(),
        fields: vec![Field::Advantage],
        separable: true,
        entropy: EntropyUse::Unread,
        build: Arc::new(build),
    }
}

/// One document a row; `weights` has one number for each of its tokens.
fn padded(docs: &[Trajectory], weights: &[Vec<f32>], multiple: usize) -> Rows {
    let width = docs.iter().map(Trajectory::len).max().unwrap();
    let weights = LossWeights {
        per_token: weights.to_vec(),
        trained_tokens: docs.iter().map(Trajectory::trained_tokens).sum(),
        masked_trajectories: 0,
    };
    let packing = Packing {
        row_multiple: multiple,
        ..Packing::padded(width)
    };
    packing.pack(docs, &weights).unwrap()
}

fn gradient(engine: &mut Engine, batches: &[Rows], loss: &Loss) -> Gradient {
    for batch in batches {
        engine.forward_backward(batch, loss).unwrap();
    }
    let found = engine.gradients_to_host().unwrap();
    engine.abandon();
    found
}

fn times(gradient: &Gradient, factor: f32) -> Gradient {
    let scale = |(spec, array): &(ParamSpec, HostArray)| {
        let values: Vec<f32> = array.as_slice::<f32>().iter().map(|v| v * factor).collect();
        let array = HostArray::from_slice(array.dims(), &values).unwrap();
        (spec.clone(), array)
    };
    gradient.iter().map(scale).collect()
}

/// Numerators 1, 2, 3, 4 over denominators .05, .1, .2, .25 make 10 / 0.6 = 16.6666667. A denominator held at 1 or above gives
/// 10, the mean of the four quotients 17.75.
#[test]
fn numerators_and_fractional_denominators_are_summed_apart() {
    let (numerators, denominators) = ([1.0, 2.0, 3.0, 4.0], [0.05, 0.1, 0.2, 0.25]);
    let whole: f32 = denominators.iter().sum();
    let one = |advantage: f32| {
        Trajectory::from_prompt(&[5, 17, 40], &[9]).with_constant(Field::Advantage, advantage)
    };
    let mut engine = engine("llama");
    let unit = padded(&[one(1.0)], &[vec![0.0, 0.0, 0.0, 1.0]], 1);
    let unit = gradient(&mut engine, &[unit], &scaled());
    let pairs = numerators.iter().zip(&denominators);
    let docs: Vec<Trajectory> = pairs.map(|(n, d)| one(n / d)).collect();
    let weights: Vec<Vec<f32>> = denominators
        .iter()
        .map(|d| vec![0.0, 0.0, 0.0, d / whole])
        .collect();
    let rows = padded(&docs, &weights, 1);
    for size in [1, 2, 4] {
        let batches = rows.micro_batches(size).unwrap();
        assert_eq!(batches.len(), 4 / size);
        let found = gradient(&mut engine, &batches, &scaled());
        let error = relative(&times(&unit, 10.0 / 0.6), &found);
        assert!(error < 1e-6, "{size} a micro-batch: {error}");
    }
}

/// Fractional weights everywhere, two documents of one predicted token, one without any weight.
fn uneven() -> (Vec<Trajectory>, Vec<Vec<f32>>) {
    let docs: Vec<Trajectory> = documents(&[12, 2, 7, 9, 2, 16]);
    let weight = |d: usize, t: usize| match (d, t) {
        (_, 0) | (3, _) => 0.0,
        _ => ((d * 37 + t * 11) % 19 + 1) as f32 / 317.0,
    };
    let of = |(d, doc): (usize, &Trajectory)| (0..doc.len()).map(|t| weight(d, t)).collect();
    let weights = docs.iter().enumerate().map(of).collect();
    (docs, weights)
}

#[test]
fn micro_batches_of_one_token_or_none_change_nothing() {
    let (docs, weights) = uneven();
    let loss = Loss::cross_entropy();
    let mut engine = engine("qwen3");
    let rows = padded(&docs, &weights, 1);
    let expected = gradient(&mut engine, &rows.micro_batches(6).unwrap(), &loss);
    let single = rows.micro_batches(1).unwrap();
    let masked = |rows: &Rows| rows.loss_weight().iter().filter(|w| **w != 0.0).count();
    let counts: Vec<usize> = single.iter().map(masked).collect();
    assert_eq!(counts, [11, 1, 6, 0, 1, 15]);
    // Rows of nothing at the beginning, where an accumulation is not added to but made; in between; at the end.
    let empty = rows.empty_like(1);
    let mut between = vec![empty.clone()];
    for batch in &single {
        between.extend([batch.clone(), empty.clone()]);
    }
    let mut masked_first = single.clone();
    masked_first.swap(0, 3);
    for (what, batches) in [
        ("one row each", single),
        ("with rows of nothing", between),
        ("all masked first", masked_first),
    ] {
        let error = relative(&expected, &gradient(&mut engine, &batches, &loss));
        assert!(error < 1e-6, "{what}: {error}");
    }
}

#[test]
fn devices_with_nothing_to_learn_from_change_nothing() {
    let (docs, weights) = uneven();
    let loss = Loss::cross_entropy();
    // Eight rows, two of them of nothing: some devices have only these, or only what is masked.
    let rows = [padded(&docs, &weights, 8)];
    let expected = gradient(&mut engine("qwen3"), &rows, &loss);
    for (data, fsdp) in [(8, 1), (2, 4)] {
        let mut engine = engine_on("qwen3", data, fsdp, config());
        let error = relative(&expected, &gradient(&mut engine, &rows, &loss));
        assert!(error < 2e-6, "{data}x{fsdp}: {error}");
    }
}
