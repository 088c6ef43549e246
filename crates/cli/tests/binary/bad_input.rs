//! Recipes and data that cannot be used: each with its place and its cure, exit code 2, nothing left half-written.

use crate::tiny::Tiny;

/// A run with something changed is refused before it starts.
#[track_caller]
fn refused(tiny: &Tiny, words: &str, parts: &[&str]) {
    tiny.run(&format!("train recipe.toml run.dir=out {words}"))
        .refused(2, parts);
    let recorded = std::fs::read_to_string(tiny.path("out/metrics.jsonl")).unwrap_or_default();
    assert_eq!(recorded, "", "nothing was started");
}

#[test]
fn keys_and_values() {
    let tiny = Tiny::new();
    refused(
        &tiny,
        "rl.group_sise=4",
        &["rl.group_sise", "did you mean `rl.group_size`"],
    );
    refused(&tiny, "colour=1", &["unknown key", "colour"]);
    refused(&tiny, "seed=x", &["seed"]);
    refused(&tiny, "rl.steps=1.5", &["rl.steps"]);
    refused(&tiny, "rl.group_size=1", &["rl.group_size", "at least 2"]);
    refused(&tiny, "nonsense", &["nonsense"]);
    refused(
        &tiny,
        "rollout.temperature=1e-5",
        &["rollout.temperature", "0.001"],
    );
    refused(
        &tiny,
        "optimizer.offload=moments",
        &["nothing can be offloaded", "the memory of a CPU device"],
    );
    tiny.run("train absent.toml").refused(2, &["absent.toml"]);
    tiny.write("broken.toml", "[rl\n");
    tiny.run("train broken.toml").refused(2, &["broken.toml"]);
}

#[test]
fn the_command_line() {
    let tiny = Tiny::new();
    for words in [
        "",
        "trian recipe.toml",
        "train",
        "sample model",
        "score model",
        "train recipe.toml --resum",
        "config",
    ] {
        let done = tiny.run(words);
        assert_eq!(done.code, Some(2), "{words}: {}", done.err);
        assert!(done.err.contains("Usage"), "{words}: {}", done.err);
    }
}

#[test]
fn files() {
    let tiny = Tiny::new();
    refused(
        &tiny,
        "data.train=trian.jsonl",
        &["trian.jsonl", "does not exist", "train.jsonl"],
    );
    refused(&tiny, "model.path=nowhere", &["model.path", "nowhere"]);
    refused(
        &tiny,
        "model.init=pretrained",
        &["model.safetensors", "random"],
    );
    refused(&tiny, "data.heldout=train.jsonl", &["data.heldout"]);
}

#[test]
fn every_bad_line_of_every_data_file_at_once() {
    let tiny = Tiny::new();
    let good = tiny.read("train.jsonl");
    tiny.write(
        "train.jsonl",
        &format!("{good}not json\n{{\"prompt\": \"1 =\"}}\n[]\n"),
    );
    tiny.write("heldout.jsonl", "{\"prompt\": 3, \"answer\": \"3\"}\n");
    tiny.write("demonstrations.jsonl", "{\"prompt\": \"1 =\"}\n");
    let parts = [
        "train.jsonl:61: not JSON",
        "train.jsonl:62: has no \"answer\"",
        "train.jsonl:63: must be a JSON object",
        "heldout.jsonl:1: \"prompt\" must be a text",
        "demonstrations.jsonl:1: has no \"answer\"",
    ];
    refused(&tiny, "", &parts);
}

#[test]
fn data_that_does_not_fit() {
    let tiny = Tiny::new();
    let good = tiny.read("train.jsonl");
    tiny.write("train.jsonl", "\n\n");
    refused(&tiny, "", &["train.jsonl is empty"]);
    tiny.write(
        "train.jsonl",
        &format!("{good}{{\"prompt\": \"0123456789 =\", \"answer\": \"1\"}}\n"),
    );
    refused(
        &tiny,
        "",
        &[
            "train.jsonl:61",
            "12 tokens",
            "more than the 8",
            "rollout.max_prompt_tokens",
        ],
    );
    tiny.write(
        "train.jsonl",
        &format!("{good}{{\"prompt\": \"z =\", \"answer\": \"1\"}}\n"),
    );
    refused(&tiny, "", &["train.jsonl:61", "\"z\""]);
    tiny.write(
        "train.jsonl",
        &format!("{good}{{\"prompt\": \"80 =\", \"answer\": \"08\"}}\n"),
    );
    refused(&tiny, "", &["heldout.jsonl:1", "train.jsonl:61"]);
    tiny.write("train.jsonl", &good);
    let long = "0123456789".repeat(4);
    tiny.write(
        "demonstrations.jsonl",
        &format!("{{\"prompt\": \"1 =\", \"answer\": \"{long}\"}}\n"),
    );
    refused(
        &tiny,
        "",
        &[
            "demonstrations.jsonl:1",
            "44 tokens",
            "32",
            "packing.row_tokens",
        ],
    );
}

#[test]
fn run_directories() {
    let tiny = Tiny::new();
    tiny.write("file", "");
    tiny.run("train recipe.toml run.dir=file")
        .refused(2, &["is a file", "run.dir"]);
    tiny.run("train recipe.toml run.dir=file/below")
        .refused(2, &["cannot be written", "run.dir"]);
    tiny.run("train recipe.toml run.dir=/proc/ferrotune")
        .refused(2, &["cannot be written", "run.dir"]);
    tiny.write("taken/notes.txt", "");
    tiny.run("train recipe.toml run.dir=taken")
        .refused(2, &["not empty", "notes.txt"]);
}

#[test]
fn plugins() {
    let tiny = Tiny::new();
    let library = std::path::Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let text = tiny.path("recipe.toml");
    for (file, part) in [
        (text.as_path(), "not a shared library"),
        (library, "not a PJRT plugin"),
        ("absent.so".as_ref(), "absent.so"),
    ] {
        if file == library && !file.exists() {
            continue;
        }
        let words = "train recipe.toml run.dir=out";
        let output = tiny
            .command(words)
            .env("FERROTUNE_PJRT_PLUGIN", file)
            .output()
            .unwrap();
        crate::tiny::Done::of(words, output).refused(2, &[part]);
        let output = tiny
            .command("doctor")
            .env("FERROTUNE_PJRT_PLUGIN", file)
            .output()
            .unwrap();
        let done = crate::tiny::Done::of("doctor", output).refused(1, &["missing"]);
        assert!(
            done.out.contains(part) && done.out.contains("FERROTUNE_PJRT_PLUGIN"),
            "{}",
            done.out
        );
    }
}

#[test]
fn a_mesh_that_the_model_does_not_divide_over() {
    let tiny = Tiny::new();
    refused(
        &tiny,
        "mesh.fsdp=3 packing.rows_per_micro_batch=3",
        &["mesh", "32"],
    );
    refused(&tiny, "mesh.fsdp=4", &["packing.rows_per_micro_batch"]);
}

#[test]
fn steps_that_do_not_fit_into_memory() {
    let tiny = Tiny::new();
    refused(
        &tiny,
        "packing.row_tokens=1048576 packing.rows_per_micro_batch=4000",
        &["memory", "packing.row_tokens"],
    );
}

#[test]
fn every_file_of_lines_may_begin_with_a_mark_and_has_each_key_once() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out rl.steps=0 warmup.steps=1")
        .well();
    let begin = "train recipe.toml run.dir=on rl.steps=0 warmup.steps=1 data.train=lines.jsonl";
    for (words, line, twice) in [
        (
            "pack lines.jsonl --budget 8",
            "{\"tokens\": [3, 4]}",
            "tokens",
        ),
        ("score out/model lines.jsonl", "{\"ids\": [3, 4]}", "ids"),
        (
            "sample out/model --prompts lines.jsonl --max-new 1",
            "{\"prompt\": \"12\"}",
            "prompt",
        ),
        (begin, "{\"prompt\": \"12\", \"answer\": \"21\"}", "prompt"),
    ] {
        tiny.write("lines.jsonl", &format!("\u{feff}{line}\r\n\u{feff}\r\n"));
        tiny.run(words).well();
        let again = line.replacen('{', &format!("{{\"{twice}\": 0, "), 1);
        tiny.write("lines.jsonl", &format!("{line}\n{again}\n"));
        let why = format!("lines.jsonl:2: the key \"{twice}\" is there twice: keep one of them");
        tiny.run(words).refused(2, &[&why]);
    }
    tiny.write(
        "recipe.toml",
        &format!("\u{feff}{}", tiny.read("recipe.toml")),
    );
    tiny.run("config recipe.toml").well();
}
