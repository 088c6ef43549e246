//! What filters leave of the distributions that tokens are scored in.

use ferrotune_batch::Rows;
use ferrotune_engine::{EngineConfig, FilterSettings, Kept, OrderKind, Scores};
use ferrotune_models::ModelConfig;

use crate::setup::{config, documents, engine, fixture, rows, try_engine_of};

/// Documents of several lengths, of one token too, and padding.
fn batch() -> Rows {
    rows(&documents(&[30, 12, 1, 7, 21, 3]), 32, 2)
}

/// Scores and what is kept.
fn both(scores: Scores) -> (Scores, Kept) {
    let kept = scores.kept.clone().expect("filters were given");
    (scores, kept)
}

#[test]
fn kept_tokens_are_those_that_the_filters_name() {
    let (mut engine, batch) = (engine("qwen3"), batch());
    let mut under = |filters| both(engine.score_filtered(&batch, &filters).unwrap());
    let (scores, one) = under(FilterSettings {
        top_k: 1,
        ..FilterSettings::default()
    });
    // What the one token has that top-k leaves is the largest probability.
    let least = 0.6_f64;
    let (_, near) = under(FilterSettings {
        min_p: least,
        ..FilterSettings::default()
    });
    let (_, half) = under(FilterSettings {
        top_p: 0.5,
        ..FilterSettings::default()
    });
    let (_, all) = under(FilterSettings::default());
    let mut found = [0, 0];
    let predicted = |at: &usize| batch.segment_ids()[*at] != 0 && batch.positions()[*at] != 0;
    for at in 0..batch.token_ids().len() {
        let kept = [&one, &near, &half, &all];
        if !predicted(&at) {
            assert!(
                kept.iter().all(|it| it.mass[at] == 1.0 && !it.token[at]),
                "{at}"
            );
            continue;
        }
        let share = scores.logprob[at] - one.mass[at].ln();
        let expected = f64::from(share) >= least.ln();
        assert_eq!(near.token[at], expected, "{at}");
        found[usize::from(expected)] += 1;
        assert!(
            one.mass[at] <= near.mass[at] && near.mass[at] <= 1.0,
            "{at}"
        );
        assert!(
            half.mass[at] >= 0.5 && half.mass[at] < 0.5 + one.mass[at],
            "{at}"
        );
        assert!(all.mass[at] == 1.0 && all.token[at], "{at}");
    }
    assert!(found.iter().all(|it| *it > 5), "{found:?}");
    let drawn = near.sampling_logprob(&scores.logprob);
    for (at, drawn) in drawn.iter().enumerate().filter(|it| predicted(&it.0)) {
        let whole = f64::from(scores.logprob[at].exp()) / f64::from(near.mass[at]);
        let expected = if near.token[at] { whole } else { 0.0 };
        assert!((f64::from(drawn.exp()) - expected).abs() < 1e-6, "{at}");
    }
    // One program, whatever the settings.
    assert_eq!(engine.programs().count(), 1);
}

#[test]
fn tokens_without_weight_are_scored_like_others() {
    let mut engine = engine("qwen3");
    let docs = documents(&[30, 12, 1, 7, 21, 3]);
    let mut masked = docs.clone();
    for doc in &mut masked {
        let half = doc.len() / 2;
        doc.loss_mask[..half].fill(false);
    }
    let scores = engine.score(&rows(&docs, 32, 2)).unwrap();
    let found = engine.score(&rows(&masked, 32, 2)).unwrap();
    assert!(scores.logprob.iter().filter(|it| **it < 0.0).count() > 60);
    assert_eq!(found.logprob, scores.logprob);
    assert_eq!(found.entropy, scores.entropy);
}

#[test]
fn filters_leave_the_scores_as_they_are() {
    let (mut engine, batch) = (engine("qwen3"), batch());
    let plain = engine.score(&batch).unwrap();
    assert_eq!(plain.kept, None);
    let filters = FilterSettings {
        top_p: 0.9,
        ..FilterSettings::default()
    };
    let (mut scores, _) = both(engine.score_filtered(&batch, &filters).unwrap());
    scores.kept = None;
    assert_eq!(scores, plain);
}

#[test]
fn what_is_kept_comes_back_to_its_token_from_devices_that_share_rows() {
    let model = ModelConfig::load(fixture("qwen3")).unwrap();
    let params = ferrotune_models::load(fixture("qwen3"), &model)
        .unwrap()
        .params;
    let batch = batch();
    let filters = FilterSettings {
        top_k: 60,
        top_p: 0.8,
        min_p: 0.2,
    };
    let on = |context, order| {
        let config = EngineConfig { order, ..config() };
        let mut engine = try_engine_of(model.clone(), &params, [1, 1, context], config).unwrap();
        both(engine.score_filtered(&batch, &filters).unwrap()).1
    };
    let one = on(1, OrderKind::Contiguous);
    let two = on(2, OrderKind::Balanced);
    assert_eq!(one.token, two.token);
    let masses = one.mass.iter().zip(&two.mass);
    let apart = masses.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-6, "{apart}");
}

#[test]
#[should_panic(expected = "top_p = 0 and min_p = 0 are not shares")]
fn a_share_that_is_none_is_no_filter() {
    let filters = FilterSettings {
        top_p: 0.0,
        ..FilterSettings::default()
    };
    let _ = engine("qwen3").score_filtered(&batch(), &filters);
}
