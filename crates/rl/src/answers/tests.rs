//! From completions to rewards, advantages, trajectories and metrics.

use ferrotune_batch::Field;
use ferrotune_rollout::{FilterSettings, Routes};

use super::*;
use crate::dataset::Dataset;
use crate::words::Words;

fn problems() -> (tempfile::TempDir, Tokenizer, Problems) {
    let (dir, tokenizer) = crate::words::tests::characters("abc");
    let path = dir.path().join("data.jsonl");
    std::fs::write(
        &path,
        "{\"prompt\": \"ab\", \"answer\": \"c\"}\n{\"prompt\": \"b\", \"answer\": \"a\"}\n",
    )
    .unwrap();
    let words = Words {
        tokenizer: tokenizer.clone(),
        template: "{prompt}".to_owned(),
        vocab_size: 4,
        max_prompt_tokens: 8,
        row_tokens: 8,
    };
    let problems = Problems::new(&Dataset::read(&path).unwrap(), &words, None).unwrap();
    (dir, tokenizer, problems)
}

fn completion(tokens: &[u32]) -> Completion {
    let finish = if tokens.last() == Some(&0) {
        Finish::StopToken
    } else {
        Finish::Length
    };
    let logprobs: Vec<f32> = (0..tokens.len()).map(|i| -0.5 - i as f32).collect();
    Completion {
        tokens: tokens.to_vec(),
        raw_logprobs: logprobs.clone(),
        logprobs,
        routes: None,
        finish,
    }
}

#[test]
fn requests_are_groups_with_seeds_of_their_own() {
    let (_dir, _, problems) = problems();
    let asked = Asked {
        problems: &problems,
        chosen: &[1, 0, 1],
        group_size: 2,
    };
    let request = Request {
        temperature: 0.5,
        max_new_tokens: 4,
        ..Request::default()
    };
    let requests = asked.requests(7, 3, &request);
    let prompts: Vec<&[u32]> = requests.iter().map(|it| it.prompt.as_slice()).collect();
    assert_eq!(prompts, [&[2][..], &[2], &[1, 2], &[1, 2], &[2], &[2]]);
    let mut seeds: Vec<u64> = requests.iter().map(|it| it.seed).collect();
    assert_eq!(seeds[3], answer_seed(7, 3, 1, 1));
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(
        seeds.len(),
        6,
        "the same problem twice in a step is sampled anew"
    );
    assert!(
        requests
            .iter()
            .all(|it| it.temperature == 0.5 && it.max_new_tokens == 4)
    );
}

#[test]
fn answers_are_judged_and_weighed_within_their_groups() {
    let (_dir, tokenizer, problems) = problems();
    let asked = Asked {
        problems: &problems,
        chosen: &[0, 1],
        group_size: 2,
    };
    // Right; right but for its end; wrong; wrong.
    let completions = vec![
        completion(&[3, 0]),
        Completion {
            routes: Some(Routes {
                per_token: 2,
                experts: (0..8).collect(),
            }),
            ..completion(&[1, 2, 3])
        },
        completion(&[2, 0]),
        completion(&[0]),
    ];
    let answers = Answers::judge(
        &asked,
        completions,
        &Request::default(),
        &tokenizer,
        Checker::Exact,
        Estimator::GroupMean,
    )
    .unwrap();
    let metrics = answers.metrics();
    let expected = [
        ("reward", 0.25),
        ("reward_std", 0.5_f64.sqrt() / 2.0),
        ("frac_reward_zero_std", 0.5),
        ("completions/mean_length", 2.0),
        ("completions/min_length", 1.0),
        ("completions/max_length", 3.0),
        ("completions/clipped_ratio", 0.25),
        ("completions/mean_terminated_length", 5.0 / 3.0),
        ("completions/min_terminated_length", 1.0),
        ("completions/max_terminated_length", 2.0),
    ];
    assert_eq!(metrics.len(), expected.len());
    for (name, value) in expected {
        assert!(
            (metrics[name].as_f64().unwrap() - value).abs() < 1e-12,
            "{name}: {}",
            metrics[name]
        );
    }

    let trajectories = answers.trajectories(9);
    assert_eq!(trajectories[1].tokens, [1, 2, 1, 2, 3]);
    assert_eq!(trajectories[1].loss_mask, [false, false, true, true, true]);
    assert_eq!(
        trajectories[1].fields.get(Field::Advantage).unwrap(),
        [0.0, 0.0, -0.5, -0.5, -0.5]
    );
    for field in [Field::OldLogprob, Field::SamplerLogprob] {
        assert_eq!(
            trajectories[1].fields.get(field).unwrap(),
            [0.0, 0.0, -0.5, -1.5, -2.5]
        );
    }
    let named = |it: &Trajectory| it.fields.column(Field::ExpertIds).is_some();
    let named: Vec<bool> = trajectories.iter().map(named).collect();
    assert_eq!(named, [false, true, false, false]);
    let column = trajectories[1].fields.column(Field::ExpertIds).unwrap();
    assert_eq!(column.per_token(), 2);
    // The last token went nowhere.
    assert_eq!(column.s16().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, -1, -1]);
    let groups: Vec<usize> = trajectories.iter().map(|it| it.group).collect();
    assert_eq!(groups, [0, 0, 1, 1]);

    let samples = answers.into_samples();
    let shown: Vec<(&str, f32, f32)> = samples
        .iter()
        .map(|it| (it.answer.as_str(), it.reward, it.advantage))
        .collect();
    assert_eq!(
        shown,
        [
            ("c", 1.0, 0.5),
            ("abc", 0.0, -0.5),
            ("b", 0.0, 0.0),
            ("", 0.0, 0.0)
        ]
    );
}

#[test]
fn a_text_shows_stray_special_tokens_and_ids_without_a_token() {
    let (_dir, tokenizer, _) = problems();
    let text = |tokens: &[u32]| answer_text(&tokenizer, &completion(tokens), &[]).unwrap();
    assert_eq!(text(&[1, 2, 0]), "ab");
    assert_eq!(text(&[1, 0, 2]), "a<eos>b");
    assert_eq!(text(&[1, 99, 98, 2]), "a\u{fffd}\u{fffd}b");
    assert_eq!(text(&[0]), "");
}

#[test]
fn a_text_ends_before_its_stop_string() {
    let (_dir, tokenizer, _) = problems();
    let stopped = Completion {
        finish: Finish::StopString(1),
        ..completion(&[1, 2, 3])
    };
    let strings = ["x".to_owned(), "bc".to_owned()];
    assert_eq!(answer_text(&tokenizer, &stopped, &strings).unwrap(), "a");
}

#[test]
fn where_filters_were_used_the_old_logprobs_are_the_models() {
    let (_dir, tokenizer, problems) = problems();
    let asked = Asked {
        problems: &problems,
        chosen: &[0],
        group_size: 2,
    };
    let drawn = Completion {
        raw_logprobs: vec![-7.0, -8.0],
        ..completion(&[3, 0])
    };
    let old = |request: &Request| {
        let answers = Answers::judge(
            &asked,
            vec![drawn.clone(), drawn.clone()],
            request,
            &tokenizer,
            Checker::Exact,
            Estimator::GroupMean,
        );
        let trajectories = answers.unwrap().trajectories(1);
        let fields = &trajectories[0].fields;
        let read = |field| fields.get(field).unwrap()[2..].to_vec();
        assert_eq!(read(Field::OldLogprob), read(Field::SamplerLogprob));
        read(Field::OldLogprob)
    };
    assert_eq!(old(&Request::default()), [-0.5, -1.5]);
    let filtered = Request {
        filters: FilterSettings {
            top_p: 0.9,
            ..FilterSettings::default()
        },
        ..Request::default()
    };
    assert_eq!(old(&filtered), [-7.0, -8.0]);
}
