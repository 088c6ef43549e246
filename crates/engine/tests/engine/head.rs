//! The head in a step: every mode gives the gradient and the metrics of plain logits, on every mesh.

use std::sync::Arc;

use ferrotune_engine::{
    EngineConfig, EntropyUse, Error, HeadMode, HeadSettings, Loss, LossInputs, LossTerms,
};

use crate::setup::{config, documents, engine_on, relative, rows};

fn settings(mode: HeadMode) -> EngineConfig {
    EngineConfig {
        head: HeadSettings {
            mode,
            token_chunk: 7,
            vocab_chunk: 48,
        },
        temperature: 0.7,
        ..config()
    }
}

#[test]
fn every_mode_gives_the_gradient_and_the_metrics_of_plain_logits() {
    let batch = rows(&documents(&[11, 17, 5, 23, 16]), 24, 2);
    let loss = Loss::cross_entropy();
    // One with tied weights, one without.
    for family in ["qwen3", "llama"] {
        let of = |mode, data, fsdp| {
            let mut engine = engine_on(family, data, fsdp, settings(mode));
            engine.forward_backward(&batch, &loss).unwrap();
            let gradients = engine.gradients_to_host().unwrap();
            (gradients, engine.update(0.0).unwrap().read().unwrap())
        };
        let (expected, report) = of(HeadMode::Off, 1, 1);
        for mode in [HeadMode::Local, HeadMode::Fused, HeadMode::SinglePass] {
            for (data, fsdp) in [(1, 1), (1, 2)] {
                let (found, own) = of(mode, data, fsdp);
                let apart = relative(&found, &expected);
                assert!(apart < 3e-5, "{family} {mode:?} {data}×{fsdp}: {apart}");
                for (name, value) in &report.metrics {
                    let apart = (own.metrics[name] - value).abs() / (1.0 + value.abs());
                    assert!(apart < 1e-5, "{family} {mode:?} {data}×{fsdp}: {name}");
                }
            }
        }
    }
}

#[test]
fn the_single_pass_refuses_a_loss_that_is_no_sum_over_tokens() {
    let build = |x: &LossInputs| LossTerms {
        loss: -(&x.loss_weight * &x.logprob).sum_all().exp(),
        metrics: Vec::new(),
    };
    let loss = Loss {
        name: "sequence_ratio".into(),
        fields: Vec::new(),
        separable: false,
        entropy: EntropyUse::Unread,
        build: Arc::new(build),
    };
    let batch = rows(&documents(&[10]), 16, 1);
    let mut engine = engine_on("llama", 1, 1, settings(HeadMode::SinglePass));
    let refused = engine.forward_backward(&batch, &loss).unwrap_err();
    assert!(matches!(&refused, Error::NotSeparable { loss } if loss == "sequence_ratio"));
    assert!(refused.to_string().contains("use the head mode `fused`"));
    let mut engine = engine_on("llama", 1, 1, settings(HeadMode::Fused));
    engine.forward_backward(&batch, &loss).unwrap();
}
