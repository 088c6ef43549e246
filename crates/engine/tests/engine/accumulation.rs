//! A gradient does not depend on how the batch is cut: into micro-batches, rows, or devices.

use ferrotune_batch::{Rows, Trajectory};
use ferrotune_engine::{Engine, Error, Loss};
use ferrotune_graph::HostArray;
use ferrotune_nn::ParamSpec;

use crate::setup::{config, documents, engine, engine_on, relative, rows};

const LENGTHS: [usize; 8] = [12, 30, 7, 21, 3, 16, 30, 9];

fn gradient(engine: &mut Engine, batches: &[Rows]) -> (Vec<(ParamSpec, HostArray)>, f64) {
    for batch in batches {
        engine
            .forward_backward(batch, &Loss::cross_entropy())
            .unwrap();
    }
    let gradients = engine.gradients_to_host().unwrap();
    let report = engine.update(0.0).unwrap().read().unwrap();
    (gradients, report.metrics["loss"])
}

/// One document a row, `size` rows a micro-batch.
fn micro_batches(docs: &[Trajectory], budget: usize, size: usize) -> Vec<Rows> {
    rows(docs, budget, 1).micro_batches(size).unwrap()
}

#[test]
fn micro_batches_and_packings_give_one_gradient() {
    let docs = documents(&LENGTHS);
    let mut engine = engine("qwen3");
    let (expected, loss) = gradient(&mut engine, &micro_batches(&docs, 30, 8));
    // 1 × 8 and other cuts of the rows; then packings into longer rows.
    for (budget, size) in [
        (30, 1),
        (30, 2),
        (30, 4),
        (30, 8),
        (64, 1),
        (64, 2),
        (128, 1),
    ] {
        let (found, other) = gradient(&mut engine, &micro_batches(&docs, budget, size));
        let error = relative(&expected, &found);
        assert!(
            error < 1e-6,
            "rows of {budget}, {size} a micro-batch: gradients differ by {error}"
        );
        assert!((loss - other).abs() < 1e-6 * loss.abs(), "{loss} {other}");
    }
}

#[test]
fn devices_give_the_gradient_of_one() {
    let docs = documents(&LENGTHS);
    let batches = rows(&docs, 32, 8).micro_batches(8).unwrap();
    let (expected, loss) = gradient(&mut engine("qwen3"), &batches);
    for (data, fsdp) in [(2, 1), (1, 2), (2, 2), (1, 8), (2, 4)] {
        let (found, other) = gradient(&mut engine_on("qwen3", data, fsdp, config()), &batches);
        let error = relative(&expected, &found);
        assert!(
            error < 2e-6,
            "data {data}, fsdp {fsdp}: gradients differ by {error}"
        );
        assert!((loss - other).abs() < 1e-6 * loss.abs(), "{loss} {other}");
    }
}

#[test]
fn hybrids_and_experts_have_one_gradient_on_any_mesh() {
    let docs = documents(&[30, 21, 9, 40, 12, 5, 17, 3]);
    for (family, meshes) in [
        ("qwen3_moe", &[(2, 2)][..]),
        ("qwen3_next", &[(4, 1), (2, 2)]),
    ] {
        let batches = [rows(&docs, 48, 4)];
        let (one, loss) = gradient(&mut engine(family), &batches);
        for &(data, fsdp) in meshes {
            let (found, other) = gradient(&mut engine_on(family, data, fsdp, config()), &batches);
            let error = relative(&one, &found);
            assert!(error < 1e-5, "{family} on {data}x{fsdp}: {error}");
            assert!((loss - other).abs() < 1e-6 * loss.abs());
        }
    }
}

#[test]
fn losses_are_not_mixed_and_an_update_needs_a_gradient() {
    let docs = documents(&[5]);
    let batch = rows(&docs, 8, 1);
    let mut engine = engine("llama");
    assert!(matches!(engine.update(0.1).unwrap_err(), Error::NoGradient));
    engine
        .forward_backward(&batch, &Loss::cross_entropy())
        .unwrap();
    let other = Loss {
        name: "other".into(),
        ..Loss::cross_entropy()
    };
    assert!(matches!(
        engine.forward_backward(&batch, &other).unwrap_err(),
        Error::MixedLosses { .. }
    ));
    engine.abandon();
    assert!(matches!(
        engine.gradients_to_host().unwrap_err(),
        Error::NoGradient
    ));
}

#[test]
fn rows_without_tokens_give_a_zero_gradient() {
    let mut engine = engine("llama");
    let before = engine.params_to_host().unwrap();
    engine
        .forward_backward(&Rows::empty(2, 16, &[]), &Loss::cross_entropy())
        .unwrap();
    let report = engine.update(0.1).unwrap().read().unwrap();
    assert_eq!(
        (report.grad_norm, report.skipped, report.metrics["loss"]),
        (0.0, None, 0.0)
    );
    // Decay moves matrices, nothing else moves anything.
    let after = engine.params_to_host().unwrap();
    for ((spec, a), (_, b)) in before.iter().zip(&after) {
        let factor = if spec.path.contains("norm") {
            1.0
        } else {
            1.0 - 0.1 * 0.1
        };
        for (x, y) in a.as_slice::<f32>().iter().zip(b.as_slice::<f32>()) {
            assert!(
                (x * factor - y).abs() <= 1e-7 + 1e-6 * x.abs(),
                "{}: {x} {y}",
                spec.path
            );
        }
    }
}

#[test]
fn a_token_outside_of_the_vocabulary_is_refused_with_its_place() {
    let docs = vec![Trajectory::document(vec![1, 2, 128])];
    let error = engine("llama")
        .forward_backward(&rows(&docs, 4, 1), &Loss::cross_entropy())
        .unwrap_err();
    assert!(
        error.to_string().contains("128") && error.to_string().contains("column 2"),
        "{error}"
    );
}
