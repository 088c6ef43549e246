//! Whatever a run is in the middle of, what goes on from its checkpoint does the same.

use std::path::Path;

use ferrotune_batch::{Aggregation, LossWeights, Packing, Rows};
use ferrotune_engine::{
    AdamW, Engine, EngineConfig, Error, Loss, Optimizer, Rule, ShardOverData, Skipped, SpikeGuard,
    UpdateReport,
};
use ferrotune_graph::DType;
use serde_json::json;

use crate::setup::{config, documents, engine, engine_on, relative, rows};

fn learn(engine: &mut Engine, batches: &[Rows]) -> UpdateReport {
    for batch in batches {
        engine
            .forward_backward(batch, &Loss::cross_entropy())
            .unwrap();
    }
    engine.update(1e-2).unwrap().read().unwrap()
}

/// Four micro-batches of one row.
fn batches() -> Vec<Rows> {
    let rows = rows(&documents(&[14, 9, 11, 16]), 16, 1);
    rows.micro_batches(1).unwrap()
}

fn restored(config: EngineConfig, dir: &Path) -> Engine {
    let mut engine = engine_on("qwen3", 1, 1, config);
    engine.restore(dir).unwrap();
    engine
}

#[test]
fn an_accumulation_goes_on_from_where_it_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let (batches, loss) = (batches(), Loss::cross_entropy());
    let mut whole = engine("qwen3");
    learn(&mut whole, &batches);
    for batch in &batches[..2] {
        whole.forward_backward(batch, &loss).unwrap();
    }
    whole.save(&dir, &json!(null)).unwrap();
    let gathered = whole.gradients_to_host().unwrap();

    let mut resumed = restored(config(), &dir);
    assert_eq!(resumed.gradients_to_host().unwrap(), gathered);
    let mut split = engine_on("qwen3", 2, 2, config());
    split.restore(&dir).unwrap();
    assert_eq!(split.gradients_to_host().unwrap(), gathered);
    // It remembers of what loss the gradients are.
    let other = Loss {
        name: "other".to_owned(),
        ..Loss::cross_entropy()
    };
    let refused = resumed.forward_backward(&batches[2], &other);
    assert!(
        matches!(&refused, Err(Error::MixedLosses { accumulating, .. }) if *accumulating == loss.name)
    );
    // The report is of all four micro-batches, and so is the update.
    let expected = learn(&mut whole, &batches[2..]);
    assert!(expected.metrics["token_count"] > 40.0);
    assert_eq!(learn(&mut resumed, &batches[2..]), expected);
    assert_eq!(
        learn(&mut resumed, &batches),
        learn(&mut whole, &batches),
        "the next update"
    );
    assert_eq!(
        resumed.params_to_host().unwrap(),
        whole.params_to_host().unwrap()
    );
}

#[test]
fn gradients_of_data_shards_go_on_as_they_lay_or_from_their_sum() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let rows = rows(&documents(&[14, 9, 11, 16, 12, 8, 15, 10]), 16, 8);
    let (batches, loss) = (rows.micro_batches(4).unwrap(), Loss::cross_entropy());
    let on = |data, shard_over_data| {
        let settings = EngineConfig {
            shard_over_data,
            ..config()
        };
        engine_on("qwen3", data, 1, settings)
    };
    let mut whole = on(2, ShardOverData::Nothing);
    learn(&mut whole, &batches);
    whole.forward_backward(&batches[0], &loss).unwrap();
    whole.save(&dir, &json!(null)).unwrap();
    let gathered = whole.gradients_to_host().unwrap();
    let mut other = on(4, ShardOverData::Moments);
    for run in [
        &mut on(1, ShardOverData::Nothing),
        &mut on(2, ShardOverData::MomentsAndGradients),
        &mut other,
    ] {
        run.restore(&dir).unwrap();
        assert_eq!(run.gradients_to_host().unwrap(), gathered);
    }
    let mut same = on(2, ShardOverData::Nothing);
    same.restore(&dir).unwrap();
    let expected = learn(&mut whole, &batches[1..]);
    assert_eq!(learn(&mut same, &batches[1..]), expected);
    let params = whole.params_to_host().unwrap();
    assert_eq!(same.params_to_host().unwrap(), params);
    let (found, wanted) = (
        learn(&mut other, &batches[1..]).grad_norm,
        expected.grad_norm,
    );
    assert!((found - wanted).abs() < 1e-5 * wanted, "{found} {wanted}");
    let error = relative(&params, &other.params_to_host().unwrap());
    assert!(error < 1e-4, "parameters differ by {error}");
}

/// Second moments in half width are rounded by chance, which the number of updates made decides.
#[test]
fn random_draws_go_on_where_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-3");
    let config = EngineConfig {
        optimizer: Optimizer {
            rule: Rule::AdamW(AdamW {
                moments: DType::BF16,
                ..AdamW::default()
            }),
            ..Optimizer::default()
        },
        ..config()
    };
    let batches = batches();
    let mut whole = engine_on("qwen3", 1, 1, config.clone());
    for _ in 0..3 {
        learn(&mut whole, &batches);
    }
    whole.save(&dir, &json!(null)).unwrap();
    let mut resumed = restored(config, &dir);
    for _ in 0..3 {
        assert_eq!(learn(&mut resumed, &batches), learn(&mut whole, &batches));
    }
    assert_eq!(
        resumed.optimizer_to_host().unwrap(),
        whole.optimizer_to_host().unwrap()
    );
}

#[test]
fn norms_that_judge_spikes_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-3");
    let config = EngineConfig {
        optimizer: Optimizer {
            spike: Some(SpikeGuard {
                window: 3,
                factor: 10.0,
            }),
            ..Optimizer::default()
        },
        ..config()
    };
    let docs = documents(&[14, 9]);
    let weights = Aggregation::TokenMean.weights(&docs).unwrap();
    let large = LossWeights {
        per_token: weights
            .per_token
            .iter()
            .map(|of| of.iter().map(|w| w * 1000.0).collect())
            .collect(),
        ..weights
    };
    let spike = [Packing::packed(32).pack(&docs, &large).unwrap()];
    let mut whole = engine_on("qwen3", 1, 1, config.clone());
    for _ in 0..3 {
        learn(&mut whole, &batches());
    }
    whole.save(&dir, &json!(null)).unwrap();
    let expected = learn(&mut whole, &spike);
    assert_eq!(expected.skipped, Some(Skipped::Spike));
    assert_eq!(learn(&mut restored(config, &dir), &spike), expected);
}
