//! Rotary scaling that holds for texts up to a length: rows may be longer, documents may not.

use ferrotune_engine::{Engine, Error};
use ferrotune_models::{ModelConfig, RotaryScaling};

use crate::setup::{config, documents, engine, engine_of, fixture, rows};

/// A Llama whose scaling divides by `short` in documents of up to 20 tokens.
fn scaled(short: f64) -> Engine {
    let mut model = ModelConfig::load(fixture("llama")).unwrap();
    let params = ferrotune_models::load(fixture("llama"), &model).unwrap();
    model.rotary.scaling = RotaryScaling::LongRope {
        short: vec![short; model.rotary.dims / 2],
        attention: 1.0,
        original: 20.0,
    };
    engine_of(model, &params.params, 1, 1, config())
}

#[test]
fn documents_are_no_longer_than_the_factors_hold_and_rows_may_be() {
    // Two rows of 40: documents of 20 tokens, one behind the other.
    let batch = rows(&documents(&[20, 20, 20, 11]), 40, 2);
    let plain = engine("llama").score(&batch).unwrap().logprob;
    let mut same = scaled(1.0);
    let found = same.score(&batch).unwrap().logprob;
    let worst = found.iter().zip(&plain).map(|(a, b)| (a - b).abs());
    assert!(worst.fold(0.0, f32::max) < 1e-6);
    assert_ne!(scaled(2.0).score(&batch).unwrap().logprob, found);

    let long = rows(&documents(&[5, 21]), 40, 2);
    let error = same.score(&long).unwrap_err();
    assert!(
        matches!(error, Error::LongDocument { longest: 20, .. }),
        "{error}"
    );
}
