//! Trainer and sampler of one distribution: after temperature and filters.

use ferrotune_batch::{Aggregation, Packing, Trajectory};
use ferrotune_engine::{Engine, EngineConfig};
use ferrotune_rollout::{Completion, FilterSettings, Request};

use crate::setup::{config, engine, prompt, sampler};

const TEMPERATURE: f64 = 1.3;

/// None, every kind alone, and all together.
fn settings() -> [FilterSettings; 5] {
    let of = |top_k, top_p, min_p| FilterSettings {
        top_k,
        top_p,
        min_p,
    };
    [
        FilterSettings::default(),
        of(5, 1.0, 0.0),
        of(0, 0.7, 0.0),
        of(0, 1.0, 0.6),
        of(60, 0.8, 0.5),
    ]
}

/// More than there are rows, of many lengths.
fn requests(filters: FilterSettings) -> Vec<Request> {
    let request = |i: usize| Request {
        prompt: prompt(i),
        seed: 7 + i as u64,
        temperature: TEMPERATURE,
        filters,
        max_new_tokens: 1 + i * 7 % 9,
        ..Request::default()
    };
    (0..10).map(request).collect()
}

/// What a trainer says of the answers' tokens, one behind the other: log-probs, kept masses, log-probs under the filters.
fn said(
    engine: &mut Engine,
    packing: &Packing,
    answers: &[(Request, Completion)],
) -> [Vec<f32>; 3] {
    let trajectory = |(request, answer): &(Request, Completion)| {
        Trajectory::from_prompt(&request.prompt, &answer.tokens)
    };
    let trajectories: Vec<Trajectory> = answers.iter().map(trajectory).collect();
    let weights = Aggregation::TokenMean.weights(&trajectories).unwrap();
    let rows = packing.pack(&trajectories, &weights).unwrap();
    let scores = engine.score_filtered(&rows, &answers[0].0.filters).unwrap();
    let kept = scores.kept.unwrap();
    let under_filters = kept.sampling_logprob(&scores.logprob);
    [scores.logprob, kept.mass, under_filters].map(|values| {
        let of_documents = rows.unpack(&values).unwrap().into_iter().zip(answers);
        of_documents
            .flat_map(|(values, (request, _))| values[request.prompt.len()..].to_vec())
            .collect()
    })
}

/// The largest difference; infinite where a number is none.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let each = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    each.map(|it| if it.is_nan() { f32::INFINITY } else { it })
        .fold(0.0, f32::max)
}

#[test]
fn the_trainer_finds_the_sampler_s_log_probs_under_filters() {
    for devices in [1, 2] {
        let mut plain = engine("qwen3", devices, config());
        let settled = EngineConfig {
            temperature: TEMPERATURE,
            ..config()
        };
        let mut same = engine("qwen3", devices, settled);
        let sampler = sampler(&plain, false);
        for filters in settings() {
            let requests = requests(filters);
            let weights = sampler.weights(&plain.weights().unwrap()).unwrap();
            let answers = sampler.generate(&weights, &requests, &mut |_, _| ());
            let answers: Vec<(Request, Completion)> =
                requests.into_iter().zip(answers.unwrap()).collect();
            let told = |of: fn(&Completion) -> &Vec<f32>| -> Vec<f32> {
                answers.iter().flat_map(|it| of(&it.1)).copied().collect()
            };
            let (drawn, raw) = (told(|it| &it.logprobs), told(|it| &it.raw_logprobs));

            let alone = Packing::padded(16);
            let [logprob, mass, under_filters] = said(&mut same, &alone, &answers);
            let [unscaled, ..] = said(&mut plain, &alone, &answers);
            let what = format!("{filters:?} on {devices}");
            let off = [apart(&under_filters, &drawn), apart(&unscaled, &raw)];
            println!("{what}: {off:?}");
            assert!(off.iter().all(|it| *it < 1e-4), "{what}: {off:?}");
            // Filters and temperature make a difference.
            let least = mass.iter().copied().fold(1.0, f32::min);
            assert_eq!(least < 0.9, !filters.is_off(), "{what}: {least}");
            assert!(apart(&logprob, &unscaled) > 0.01, "{what}");

            let together = Packing {
                row_multiple: 2,
                ..Packing::packed(48)
            };
            let packed = said(&mut same, &together, &answers);
            for (packed, found) in packed.iter().zip([logprob, mass, under_filters]) {
                let off = apart(packed, &found);
                assert!(off < 1e-5, "{what}: {off} in packed rows");
            }
        }
    }
}
