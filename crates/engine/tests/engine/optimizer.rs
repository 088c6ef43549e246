//! AdamW and clipping against a float64 version on the host.

use ferrotune_engine::{AdamW, EngineConfig, EntropyUse, Loss, LossInputs, LossTerms};
use std::sync::Arc;

use crate::setup::{config, documents, engine_on, rows};

struct Oracle {
    m: Vec<f64>,
    v: Vec<f64>,
    t: i32,
}

impl Oracle {
    fn step(&mut self, p: &mut [f64], g: &[f64], s: &AdamW, lr: f64, decay: bool) {
        self.t += 1;
        for i in 0..p.len() {
            self.m[i] = s.beta1 * self.m[i] + (1.0 - s.beta1) * g[i];
            self.v[i] = s.beta2 * self.v[i] + (1.0 - s.beta2) * g[i] * g[i];
            let m = self.m[i] / (1.0 - s.beta1.powi(self.t));
            let v = self.v[i] / (1.0 - s.beta2.powi(self.t));
            let decay = if decay { s.weight_decay * p[i] } else { 0.0 };
            p[i] -= lr * (m / (v.sqrt() + s.eps) + decay);
        }
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn adamw_follows_a_float64_version_with_clipping_on_and_off() {
    for max_grad_norm in [f64::INFINITY, 0.05] {
        let settings = EngineConfig {
            max_grad_norm,
            adamw: AdamW {
                beta2: 0.999,
                ..config().adamw
            },
            ..config()
        };
        let mut engine = engine_on("llama", 1, 1, settings.clone());
        let batch = rows(&documents(&[30, 20]), 32, 1);
        let start = engine.params_to_host().unwrap();
        let mut params: Vec<Vec<f64>> = start
            .iter()
            .map(|(_, a)| wide(a.as_slice::<f32>()))
            .collect();
        let mut oracles: Vec<Oracle> = params
            .iter()
            .map(|p| Oracle {
                m: vec![0.0; p.len()],
                v: vec![0.0; p.len()],
                t: 0,
            })
            .collect();
        for k in 0..50 {
            let rate = 1e-3 * f64::from(k % 7 + 1);
            engine
                .forward_backward(&batch, &Loss::cross_entropy())
                .unwrap();
            let gradients = engine.gradients_to_host().unwrap();
            let norm = gradients
                .iter()
                .flat_map(|(_, a)| wide(a.as_slice::<f32>()))
                .map(|g| g * g)
                .sum::<f64>()
                .sqrt();
            let scale = if norm > max_grad_norm {
                max_grad_norm / norm
            } else {
                1.0
            };
            for (i, (spec, array)) in gradients.iter().enumerate() {
                let g: Vec<f64> = wide(array.as_slice::<f32>())
                    .iter()
                    .map(|g| g * scale)
                    .collect();
                oracles[i].step(
                    &mut params[i],
                    &g,
                    &settings.adamw,
                    rate,
                    !spec.path.contains("norm"),
                );
            }
            let report = engine.update(rate).unwrap().read().unwrap();
            assert!(
                (report.grad_norm - norm).abs() < 1e-5 * norm,
                "{} {norm}",
                report.grad_norm
            );
        }
        for ((spec, found), expected) in engine.params_to_host().unwrap().iter().zip(&params) {
            let scale = expected.iter().fold(0.0_f64, |a, b| a.max(b.abs()));
            for (f, e) in found.as_slice::<f32>().iter().zip(expected) {
                // 50 roundings of an f32 parameter and of its moments.
                assert!(
                    (f64::from(*f) - e).abs() < 1e-5 * scale,
                    "{}: {f} {e}",
                    spec.path
                );
            }
        }
    }
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

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_is_reported() {
    let batch = rows(&documents(&[10]), 16, 1);
    let mut engine = engine_on(
        "llama",
        1,
        1,
        EngineConfig {
            max_grad_norm: 1.0,
            ..config()
        },
    );
    engine
        .forward_backward(&batch, &Loss::cross_entropy())
        .unwrap();
    engine.update(1e-2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("step-1"), folder.path().join("step-2"));
    engine.save(&a, &serde_json::Value::Null).unwrap();
    for factor in [f64::INFINITY, f64::NAN] {
        engine
            .forward_backward(
                &batch,
                &scaled(&format!("times_{}", factor.to_bits()), factor),
            )
            .unwrap();
        assert!(engine.update(1e-2).unwrap().read().unwrap().skipped);
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
fn clipping_bounds_the_step_of_a_huge_gradient_and_leaves_a_small_one_alone() {
    let batch = rows(&documents(&[10]), 16, 1);
    let sgd_like = AdamW {
        beta1: 0.0,
        beta2: 0.0,
        eps: 1e3,
        weight_decay: 0.0,
    };
    let step = |factor: f64, limit: f64| {
        let mut engine = engine_on(
            "llama",
            1,
            1,
            EngineConfig {
                max_grad_norm: limit,
                adamw: sgd_like,
                ..config()
            },
        );
        let before = engine.params_to_host().unwrap();
        engine
            .forward_backward(&batch, &scaled("scaled", factor))
            .unwrap();
        let report = engine.update(1e3).unwrap().read().unwrap();
        let after = engine.params_to_host().unwrap();
        let moved: f64 = before
            .iter()
            .zip(&after)
            .flat_map(|((_, a), (_, b))| {
                a.as_slice::<f32>()
                    .iter()
                    .zip(b.as_slice::<f32>())
                    .map(|(x, y)| f64::from(x - y).powi(2))
                    .collect::<Vec<_>>()
            })
            .sum::<f64>()
            .sqrt();
        (report.grad_norm, moved)
    };
    // With a large eps the step is about lr / eps times the clipped gradient.
    let (norm, moved) = step(100.0, 0.5);
    assert!(norm > 0.5 && (moved - 0.5).abs() < 0.01, "{norm} {moved}");
    let (norm, moved) = step(1e-3, 0.5);
    assert!(
        norm < 0.5 && (moved - norm).abs() < 0.02 * norm,
        "{norm} {moved}"
    );
}
