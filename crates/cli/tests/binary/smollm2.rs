//! A real model: SmolLM2-135M-Instruct answers greedily what transformers answers, token by token.
//!
//! The model is fetched once (93 MB) by the script that users run, into the place where the recipe looks for it. Where it
//! cannot be fetched, these tests fail and say why.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::tiny::{Done, Tiny, objects};

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn cases() -> PathBuf {
    repository().join("tests/fixtures/smollm2/greedy.jsonl")
}

/// The model's folder, complete.
fn model() -> PathBuf {
    let fetched = Command::new("python3")
        .arg(repository().join("tools/fetch_smollm2.py"))
        .output()
        .expect("python3 fetches the model");
    assert!(
        fetched.status.success(),
        "the model could not be fetched: {}",
        String::from_utf8_lossy(&fetched.stderr)
    );
    repository().join("recipes/smollm2-sums/model")
}

fn numbers(list: &Value) -> Vec<f64> {
    let numbers = list.as_array().expect("it is a list").iter();
    numbers.map(|it| it.as_f64().unwrap()).collect()
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        // Both are sums in f32 through 30 layers, and the file has five decimals.
        assert!(
            (a - b).abs() <= 1e-4,
            "{what}, token {i}: {a} instead of {b}"
        );
    }
}

#[test]
fn greedy_answers_and_scores_are_those_of_transformers() {
    let tiny = Tiny::new();
    let model = model();
    let run = |command: &mut Command| Done::of("smollm2", command.output().unwrap()).well().out;
    let sampled = run(tiny
        .command("sample --temperature 0 --max-new 24 --json --prompts")
        .arg(cases())
        .arg(&model));
    let expected = objects(&std::fs::read_to_string(cases()).unwrap());
    let found = objects(&sampled);
    assert_eq!(found.len(), expected.len());
    let mut documents = String::new();
    for (found, expected) in found.iter().zip(&expected) {
        let asked = expected.get("prompt").or(expected.get("messages"));
        let what = asked.expect("each case asks something").to_string();
        assert_eq!(found["prompt_ids"], expected["prompt_ids"], "{what}");
        assert_eq!(found["ids"], expected["answer_ids"], "{what}");
        let ended = numbers(&found["ids"]).last() == Some(&2.0);
        assert_eq!(
            found["finish"],
            if ended { "stop" } else { "length" },
            "{what}"
        );
        let wanted = numbers(&expected["answer_logprobs"]);
        assert_near(&numbers(&found["logprobs"]), &wanted, &what);
        let ids = [numbers(&found["prompt_ids"]), numbers(&found["ids"])].concat();
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        documents += &format!("{}\n", serde_json::json!({ "ids": ids }));
    }

    tiny.write("documents.jsonl", &documents);
    let scored = run(tiny
        .command("score")
        .arg(&model)
        .args(["documents.jsonl", "--pack", "512"]));
    let scored = objects(&scored);
    assert_eq!(scored.len(), expected.len());
    for (scored, expected) in scored.iter().zip(&expected) {
        let wanted = numbers(&expected["answer_logprobs"]);
        let scored = numbers(&scored["logprobs"]);
        let of_answer = &scored[scored.len() - wanted.len()..];
        assert_near(of_answer, &wanted, "scored");
    }
}
