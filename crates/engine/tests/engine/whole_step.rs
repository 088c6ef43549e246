//! A step as one program gives the numbers of its parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrotune_batch::Rows;
use ferrotune_engine::{
    Engine, EngineConfig, Error, HeadMode, Loss, LossInputs, Metric, Optimizer, Rule, Sgd,
};
use ferrotune_graph::HostArray;
use ferrotune_nn::{Combine, ParamSpec};

use crate::setup::{config, documents, engine_on, relative, rows};

fn batches(micro_batches: usize) -> Vec<Rows> {
    let documents = documents(&[12, 30, 7, 21, 3, 16, 30, 9]);
    let all = rows(&documents, 32, 8);
    all.micro_batches(8 / micro_batches).unwrap()
}

/// Plain momentum: what it keeps after an update is the gradient, so nothing hides a wrong one.
fn momentum() -> EngineConfig {
    let rule = Rule::Sgd(Sgd {
        momentum: 0.9,
        nesterov: false,
    });
    EngineConfig {
        optimizer: Optimizer {
            rule,
            ..config().optimizer
        },
        ..config()
    }
}

#[derive(Debug, PartialEq)]
struct Trained {
    params: Vec<(ParamSpec, HostArray)>,
    momentum: Vec<(ParamSpec, HostArray)>,
    reports: Vec<(f64, BTreeMap<String, f64>)>,
}

/// Two updates from the same micro-batches.
fn trained(engine: &mut Engine, micro_batches: &[Rows], whole: bool) -> Trained {
    let loss = Loss::cross_entropy();
    let mut reports = Vec::new();
    for _ in 0..2 {
        let pending = if whole {
            engine.train(micro_batches, &loss, 1e-2)
        } else {
            for rows in micro_batches {
                engine.forward_backward(rows, &loss).unwrap();
            }
            engine.update(1e-2)
        };
        let report = pending.unwrap().read().unwrap();
        assert_eq!(report.step, engine.step());
        reports.push((report.grad_norm, report.metrics));
    }
    let params = engine.params_to_host().unwrap();
    let kept = engine.optimizer_to_host().unwrap();
    let specs = params.iter().map(|(spec, _)| spec.clone());
    Trained {
        momentum: specs
            .zip(kept.into_iter().map(|(_, array)| array))
            .collect(),
        params,
        reports,
    }
}

fn assert_equal(found: &Trained, expected: &Trained, what: &str) {
    for (kind, found, expected) in [
        ("parameters", &found.params, &expected.params),
        ("momentum", &found.momentum, &expected.momentum),
    ] {
        let error = relative(expected, found);
        assert!(error < 1e-6, "{what}: {kind} differ by {error}");
    }
    for ((norm, metrics), (wanted, expected)) in found.reports.iter().zip(&expected.reports) {
        assert!(
            (norm - wanted).abs() <= 1e-6 * wanted,
            "{what}: {norm} {wanted}"
        );
        assert_eq!(metrics.len(), expected.len());
        for (name, value) in metrics {
            let wanted = expected[name];
            assert!(
                (value - wanted).abs() <= 1e-6 * wanted.abs(),
                "{what}, {name}: {value} {wanted}"
            );
        }
    }
}

#[test]
fn one_program_gives_the_numbers_of_its_parts() {
    for (data, fsdp, count) in [(1, 1, 1), (1, 1, 4), (2, 2, 2)] {
        let new = || engine_on("qwen3", data, fsdp, momentum());
        let (mut parts, mut whole) = (new(), new());
        let expected = trained(&mut parts, &batches(count), false);
        let found = trained(&mut whole, &batches(count), true);
        assert_equal(&found, &expected, &format!("{count} on {data}x{fsdp}"));
        let names: Vec<&str> = whole.programs().map(|p| p.name()).collect();
        assert_eq!(names, ["step_cross_entropy"], "nothing else was compiled");
    }
}

#[test]
fn a_program_for_several_micro_batches_walks_through_as_many_as_there_are() {
    let new = || engine_on("llama", 2, 1, momentum());
    let (mut parts, mut whole) = (new(), new());
    let loss = Loss::cross_entropy();
    whole.compile_step(4, 2, 32, &loss).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start = folder.path().join("step-0");
    whole.save(&start, &serde_json::Value::Null).unwrap();
    for count in [1, 3] {
        let some = &batches(4)[..count];
        parts.restore(&start).unwrap();
        whole.restore(&start).unwrap();
        let expected = trained(&mut parts, some, false);
        let found = trained(&mut whole, some, true);
        assert_equal(&found, &expected, &format!("{count} of 4"));
    }
    assert_eq!(whole.programs().count(), 1, "it is enough for fewer");
    let five = [batches(4), batches(4)[..1].to_vec()].concat();
    whole.train(&five, &loss, 0.0).unwrap();
    assert_eq!(whole.programs().count(), 2, "but not for more");
}

/// Rows of padding would add nothing to a gradient, but cost as much as others.
#[test]
fn no_place_behind_the_last_micro_batch_is_walked_through() {
    let plain = Loss::cross_entropy();
    let build = plain.build.clone();
    let counting = move |inputs: &LossInputs| {
        let mut terms = build(inputs);
        let walked = Metric {
            name: "walked".to_owned(),
            value: terms.loss.scalar_like(1.0),
            combine: Combine::Sum,
        };
        terms.metrics.push(walked);
        terms
    };
    let loss = Loss {
        build: Arc::new(counting),
        separable: false,
        ..plain
    };
    let mut engine = engine_on("llama", 1, 1, momentum());
    engine.compile_step(4, 2, 32, &loss).unwrap();
    let pending = engine.train(&batches(4)[..3], &loss, 0.0).unwrap();
    assert_eq!(pending.read().unwrap().metrics["walked"], 3.0);
}

#[test]
fn balanced_experts_and_the_single_pass_are_walked_through_too() {
    let mut settings = momentum();
    settings.router.load_balance = 0.5;
    settings.router.capacity_factor = Some(0.75);
    settings.head.mode = HeadMode::SinglePass;
    let new = || engine_on("qwen3_moe", 2, 1, settings.clone());
    let expected = trained(&mut new(), &batches(2), false);
    let found = trained(&mut new(), &batches(2), true);
    assert_equal(&found, &expected, "experts");
}

#[test]
fn rows_of_several_shapes_are_a_step_too() {
    let several = [
        batches(2),
        rows(&documents(&[40, 11]), 48, 2).micro_batches(2).unwrap(),
    ]
    .concat();
    let expected = trained(&mut engine_on("llama", 1, 1, momentum()), &several, false);
    let found = trained(&mut engine_on("llama", 1, 1, momentum()), &several, true);
    assert_eq!(found, expected);
}

#[test]
fn a_step_needs_rows_and_no_accumulation_before_it_and_bad_rows_change_nothing() {
    let mut engine = engine_on("llama", 1, 1, momentum());
    let (loss, good) = (Loss::cross_entropy(), batches(2));
    assert!(matches!(
        engine.train(&[], &loss, 0.1).unwrap_err(),
        Error::NoGradient
    ));
    let before = engine.params_to_host().unwrap();
    let bad = rows(
        &[ferrotune_batch::Trajectory::document(vec![1, 200])],
        32,
        4,
    );
    for wrong in [
        vec![good[0].clone(), bad.clone()],
        vec![good[0].clone(), rows(&documents(&[3]), 8, 1), bad],
    ] {
        assert!(matches!(
            engine.train(&wrong, &loss, 0.1).unwrap_err(),
            Error::TokenId { .. }
        ));
        assert_eq!(engine.params_to_host().unwrap(), before);
        assert_eq!(engine.step(), 0);
    }
    engine.forward_backward(&good[0], &loss).unwrap();
    assert!(matches!(
        engine.train(&good, &loss, 0.1).unwrap_err(),
        Error::Unfinished
    ));
    engine.abandon();
    engine.train(&good, &loss, 0.1).unwrap().read().unwrap();
}
