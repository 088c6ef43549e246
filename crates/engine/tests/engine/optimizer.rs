//! Optimizers and clipping against float64 versions on the host.

use ferrotune_engine::{
    AdamW, Engine, EngineConfig, EntropyUse, Error, Loss, LossInputs, LossTerms, Muon, OnNonFinite,
    Optimizer, Rule, Sgd, Skipped, SpikeGuard,
};
use ferrotune_graph::{DType, HostArray};
use ferrotune_nn::ParamSpec;
use std::sync::Arc;

use crate::oracle::{Oracle, wide};
use crate::setup::{config, documents, engine_on, rows};

fn with(optimizer: Optimizer) -> EngineConfig {
    EngineConfig {
        optimizer,
        ..config()
    }
}

fn of(optimizer: Optimizer) -> Engine {
    engine_on("llama", 1, 1, with(optimizer))
}

/// Norm of the difference of each parameter from its float64 version after 50 updates, over the norm of the latter.
fn errors_after_50(optimizer: Optimizer) -> Vec<(String, f64)> {
    let mut engine = of(optimizer);
    let batch = rows(&documents(&[30, 20]), 32, 1);
    let mut oracle = Oracle::new(optimizer, &engine.params_to_host().unwrap());
    for k in 0..50 {
        let rate = 1e-3 * f64::from(k % 7 + 1);
        engine
            .forward_backward(&batch, &Loss::cross_entropy())
            .unwrap();
        let norm = oracle.step(&engine.gradients_to_host().unwrap(), rate);
        let report = engine.update(rate).unwrap().read().unwrap();
        assert!(
            (report.grad_norm - norm).abs() < 1e-6 * norm,
            "{} {norm}",
            report.grad_norm
        );
    }
    let norm = |it: &mut dyn Iterator<Item = f64>| it.map(|v| v * v).sum::<f64>().sqrt();
    let found = engine.params_to_host().unwrap().into_iter();
    let error = |((spec, found), expected): ((ParamSpec, HostArray), &Vec<f64>)| {
        let both = wide(&found).into_iter().zip(expected);
        let difference = norm(&mut both.map(|(f, e)| f - e));
        (spec.path, difference / norm(&mut expected.iter().copied()))
    };
    found.zip(&oracle.params).map(error).collect()
}

/// The largest of them.
fn error_after_50(optimizer: Optimizer) -> f64 {
    let errors = errors_after_50(optimizer).into_iter();
    errors.map(|(_, error)| error).fold(0.0, f64::max)
}

fn adamw() -> AdamW {
    AdamW::default()
}

#[test]
fn adamw_follows_a_float64_version_with_clipping_on_and_off() {
    for max_grad_norm in [f64::INFINITY, 0.05] {
        let error = error_after_50(Optimizer {
            rule: Rule::AdamW(adamw()),
            weight_decay: 0.1,
            max_grad_norm,
            ..Optimizer::default()
        });
        assert!(error < 1e-6, "{error}");
    }
}

#[test]
fn sgd_follows_a_float64_version() {
    for nesterov in [false, true] {
        let error = error_after_50(Optimizer {
            rule: Rule::Sgd(Sgd {
                momentum: 0.9,
                nesterov,
            }),
            weight_decay: 0.1,
            ..Optimizer::default()
        });
        assert!(error < 1e-6, "{error}");
    }
}

#[test]
fn muon_follows_a_float64_version() {
    let errors = errors_after_50(Optimizer {
        rule: Rule::Muon(Muon {
            momentum: 0.95,
            others: adamw(),
        }),
        weight_decay: 0.1,
        ..Optimizer::default()
    });
    for (path, error) in errors {
        // Five steps of the iteration in f32 multiply the rounding of a small singular value by up to 3.4445⁵, about 485.
        let limit = if path.contains("_proj") { 5e-6 } else { 1e-6 };
        assert!(error < limit, "{path}: {error}");
    }
}

#[test]
fn moments_of_half_width_follow_the_wide_ones_within_their_rounding() {
    let error = error_after_50(Optimizer {
        rule: Rule::AdamW(AdamW {
            moments: DType::BF16,
            ..adamw()
        }),
        ..Optimizer::default()
    });
    assert!((1e-5..0.03).contains(&error), "{error}");
}

/// A loss whose gradient is multiplied by `factor`.
fn scaled(name: &str, factor: f64) -> Loss {
    let build = move |x: &LossInputs| LossTerms {
        loss: -(&x.loss_weight * &x.logprob).sum_all() * factor,
        metrics: Vec::new(),
    };
    Loss {
        name: name.into(),
        fields: Vec::new(),
        separable: true,
        entropy: EntropyUse::Unread,
        build: Arc::new(build),
    }
}

/// The norm, or why there was no update.
fn learn(engine: &mut Engine, factor: f64) -> (f64, Option<Skipped>) {
    let batch = rows(&documents(&[10]), 16, 1);
    let loss = scaled(&format!("times_{}", factor.to_bits()), factor);
    engine.forward_backward(&batch, &loss).unwrap();
    let report = engine.update(1e-6).unwrap().read().unwrap();
    (report.grad_norm, report.skipped)
}

#[test]
fn half_width_second_moments_come_down_again() {
    // One decay of 0.999 is less than half of the spacing of bf16: rounded to the nearest, nothing would ever change.
    let mut engine = of(Optimizer {
        rule: Rule::AdamW(AdamW {
            moments: DType::BF16,
            ..adamw()
        }),
        ..Optimizer::default()
    });
    let mean = |engine: &Engine| {
        let state = engine.optimizer_to_host().unwrap();
        let (_, array) = state.iter().find(|(n, _)| n == "second/embed").unwrap();
        let bits = |pair: &[u8]| u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16;
        let values = array
            .bytes()
            .chunks(2)
            .map(|it| f64::from(f32::from_bits(bits(it))));
        values.sum::<f64>()
    };
    learn(&mut engine, 1.0);
    let first = mean(&engine);
    for _ in 0..100 {
        learn(&mut engine, 0.0);
    }
    let ratio = mean(&engine) / first;
    assert!((ratio / 0.999_f64.powi(100) - 1.0).abs() < 0.01, "{ratio}");
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_is_reported() {
    let mut engine = of(Optimizer {
        max_grad_norm: 1.0,
        ..Optimizer::default()
    });
    learn(&mut engine, 1.0);
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("step-1"), folder.path().join("step-2"));
    engine.save(&a, &serde_json::Value::Null).unwrap();
    for factor in [f64::INFINITY, f64::NAN, 1e30] {
        let (_, skipped) = learn(&mut engine, factor);
        assert_eq!(skipped, Some(Skipped::NotFinite), "{factor}");
    }
    engine.save(&b, &serde_json::Value::Null).unwrap();
    for file in ["params.safetensors", "optimizer.safetensors"] {
        assert_eq!(
            std::fs::read(a.join(file)).unwrap(),
            std::fs::read(b.join(file)).unwrap(),
            "{file} is bit-unchanged"
        );
    }
}

#[test]
fn a_gradient_that_is_not_finite_may_end_the_run() {
    let mut engine = of(Optimizer {
        on_nonfinite: OnNonFinite::Stop,
        ..Optimizer::default()
    });
    let before = engine.params_to_host().unwrap();
    let batch = rows(&documents(&[10]), 16, 1);
    engine
        .forward_backward(&batch, &scaled("nan", f64::NAN))
        .unwrap();
    let error = engine.update(1e-2).unwrap().read().unwrap_err();
    assert!(matches!(error, Error::NotFinite { step: 1, .. }), "{error}");
    assert_eq!(engine.params_to_host().unwrap(), before);
}

#[test]
fn a_spike_is_skipped_once_the_window_is_full_and_a_lasting_rise_is_not() {
    let mut engine = of(Optimizer {
        spike: Some(SpikeGuard {
            window: 4,
            factor: 5.0,
        }),
        ..Optimizer::default()
    });
    let factors = [
        // The window fills, and refuses nothing.
        [1.0, 20.0, 1.0, 1.0],
        // 20 is far above the median of 20, 1, 1, 1.
        [1.0, 20.0, 1.0, f64::NAN],
        // A zero is not remembered.
        [0.0, 1.0, 1.0, 20.0],
        // Of 1, 1, 1, 20 the median is 1, and then half of the window is 20.
        [20.0, 20.0, 20.0, 1.0],
    ];
    let seen: Vec<Option<Skipped>> = factors
        .concat()
        .into_iter()
        .map(|factor| learn(&mut engine, factor).1)
        .collect();
    let (spike, nan) = (Some(Skipped::Spike), Some(Skipped::NotFinite));
    let expected = [
        [None; 4],
        [None, spike, None, nan],
        [None, None, None, spike],
        [spike, None, None, None],
    ];
    assert_eq!(seen, expected.concat());
}

#[test]
fn a_window_of_one_compares_with_the_norm_before() {
    let mut engine = of(Optimizer {
        spike: Some(SpikeGuard {
            window: 1,
            factor: 5.0,
        }),
        ..Optimizer::default()
    });
    let seen = [1.0, 20.0, 20.0].map(|factor| learn(&mut engine, factor).1);
    assert_eq!(seen, [None, Some(Skipped::Spike), None]);
}

#[test]
fn a_spike_changes_nothing_but_the_window() {
    let mut engine = of(Optimizer {
        spike: Some(SpikeGuard {
            window: 1,
            factor: 5.0,
        }),
        ..Optimizer::default()
    });
    learn(&mut engine, 1.0);
    let state = |engine: &Engine| {
        let (window, others): (Vec<_>, Vec<_>) = engine
            .optimizer_to_host()
            .unwrap()
            .into_iter()
            .partition(|(name, _)| name == "recent_norms");
        (engine.params_to_host().unwrap(), others, window)
    };
    let before = state(&engine);
    assert_eq!(learn(&mut engine, 20.0).1, Some(Skipped::Spike));
    let after = state(&engine);
    assert_eq!((after.0, after.1), (before.0, before.1));
    assert_ne!(after.2, before.2);
}

#[test]
fn clipping_bounds_the_step_of_a_huge_gradient_and_leaves_a_small_one_alone() {
    let batch = rows(&documents(&[10]), 16, 1);
    let step = |factor: f64, limit: f64| {
        let mut engine = of(Optimizer {
            rule: Rule::Sgd(Sgd {
                momentum: 0.0,
                nesterov: false,
            }),
            max_grad_norm: limit,
            ..Optimizer::default()
        });
        let before = engine.params_to_host().unwrap();
        engine
            .forward_backward(&batch, &scaled("scaled", factor))
            .unwrap();
        let report = engine.update(1.0).unwrap().read().unwrap();
        let after = engine.params_to_host().unwrap();
        let squares = before.iter().zip(&after).flat_map(|((_, a), (_, b))| {
            let (a, b) = (wide(a), wide(b));
            a.into_iter().zip(b).map(|(x, y)| (x - y).powi(2))
        });
        (
            report.grad_norm,
            squares.collect::<Vec<_>>().iter().sum::<f64>().sqrt(),
        )
    };
    let (norm, moved) = step(100.0, 0.5);
    assert!(norm > 0.5 && (moved - 0.5).abs() < 1e-4, "{norm} {moved}");
    let (norm, moved) = step(1e-3, 0.5);
    assert!(
        norm < 0.5 && (moved - norm).abs() < 1e-3 * norm,
        "{norm} {moved}"
    );
    assert_eq!(step(0.0, 0.5), (0.0, 0.0));
}
