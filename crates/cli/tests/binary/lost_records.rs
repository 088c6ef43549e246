//! Going on with a run whose own files are gone or cut short.

use crate::tiny::{Tiny, objects};

const TRAIN: &str = "train recipe.toml run.dir=out";

/// A file of the run, changed for one attempt to go on.
#[track_caller]
fn refused(tiny: &Tiny, name: &str, text: Option<&str>, code: i32, parts: &[&str]) {
    let path = tiny.path("out").join(name);
    let sound = std::fs::read(&path).unwrap();
    match text {
        Some(text) => std::fs::write(&path, text).unwrap(),
        None => std::fs::remove_file(&path).unwrap(),
    }
    tiny.run(&format!("{TRAIN} --resume")).refused(code, parts);
    std::fs::write(&path, sound).unwrap();
}

#[test]
fn a_record_that_is_gone_or_cut_is_named() {
    let tiny = Tiny::new();
    tiny.run(TRAIN).well();
    for name in ["config.resolved.toml", "metrics.jsonl", "samples.jsonl"] {
        refused(
            &tiny,
            name,
            None,
            2,
            &[name, "is missing", "restore that file"],
        );
    }
    let cut = |name: &str, part: f64| {
        let text = tiny.read(&format!("out/{name}"));
        text[..(text.len() as f64 * part) as usize].to_owned()
    };
    for name in ["metrics.jsonl", "samples.jsonl"] {
        for part in [0.0, 0.5, 0.97] {
            let parts = [name, "the checkpoint is of step 8", "restore that file"];
            refused(&tiny, name, Some(&cut(name, part)), 1, &parts);
        }
    }
    let name = "config.resolved.toml";
    // In the middle of a value, and behind a whole table.
    let text = tiny.read("out/config.resolved.toml");
    let value = text.find("heldout").unwrap() + 12;
    let parts = [name, "cannot be used any more", "put back what it lacks"];
    refused(&tiny, name, Some(&text[..value]), 2, &parts);
    let table = text.find("[rollout]").unwrap();
    let parts = [
        "config.resolved.toml lacks",
        "rollout.max_new_tokens",
        "cut short",
    ];
    refused(&tiny, name, Some(&text[..table]), 2, &parts);
    let before = tiny.metrics("out");
    tiny.run(&format!("{TRAIN} --resume")).well();
    assert_eq!(tiny.metrics("out"), before);
}

#[test]
fn what_a_run_begins_with_is_recorded_once() {
    let tiny = Tiny::new();
    let words = format!("{TRAIN} warmup.steps=0 rl.steps=2 checkpoint.every_steps=1");
    tiny.run(&words).well();
    let whole = tiny.read("out/metrics.jsonl");
    let steps = |text: &str| -> Vec<u64> {
        let step = |line: &serde_json::Map<String, serde_json::Value>| line["step"].as_u64();
        objects(text)
            .iter()
            .map(|line| step(line).unwrap())
            .collect()
    };
    assert_eq!(steps(&whole), [0, 1, 2]);
    std::fs::remove_dir_all(tiny.path("out/checkpoints/step-2")).unwrap();
    tiny.run(&format!("{words} --resume")).well();
    assert_eq!(steps(&tiny.read("out/metrics.jsonl")), [0, 1, 2]);
    // Killed before the first checkpoint, so before there was a trained model.
    for folder in ["out/checkpoints", "out/model"] {
        std::fs::remove_dir_all(tiny.path(folder)).unwrap();
    }
    let first = whole.lines().next().unwrap();
    tiny.write("out/metrics.jsonl", &format!("{first}\n"));
    tiny.write("out/samples.jsonl", "");
    tiny.run(&format!("{words} --resume")).well();
    assert_eq!(steps(&tiny.read("out/metrics.jsonl")), [0, 1, 2]);
    assert_eq!(
        tiny.read("out/metrics.jsonl").lines().next(),
        Some(first),
        "the line is the old one"
    );
}

#[test]
fn prompts_that_are_there_twice_are_counted() {
    let tiny = Tiny::new();
    let good = tiny.read("train.jsonl");
    let short = format!("{TRAIN} rl.steps=0 warmup.steps=1");
    let silent = tiny.run(&short).well().err;
    assert!(!silent.contains("more than once"), "{silent}");
    let first = good.lines().next().unwrap();
    tiny.write(
        "train.jsonl",
        &format!("{good}{first}\n{{\"prompt\": \" 21 =\", \"answer\": \"5\"}}\n"),
    );
    let err = tiny.run(&short.replace("out", "again")).well().err;
    assert!(
        err.contains("note: 2 of 62 prompts of data.train")
            && err.contains("1 of them with another answer")
            && err.contains("line 61 is that of line 1"),
        "{err}"
    );
}
