//! The other commands: sample, doctor, config, bench; and a reader that goes away.

use std::process::Stdio;

use crate::tiny::Tiny;

#[test]
fn sampling_is_a_function_of_its_seed() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out rl.steps=0 warmup.steps=2")
        .well();
    let sample = |words: &str| {
        tiny.run(&format!("sample out/model --prompt 12 {words}"))
            .well()
            .out
    };
    assert_eq!(
        sample("--max-new 6 --seed 5 --n 4"),
        sample("--max-new 6 --seed 5 --n 4")
    );
    assert_ne!(
        sample("--max-new 6 --seed 5 --n 4"),
        sample("--max-new 6 --seed 50 --n 4")
    );
    let greedy = sample("--max-new 6 --temperature 0 --n 3");
    let lines: Vec<&str> = greedy.lines().collect();
    assert!(
        lines.len() == 3 && lines[0] == lines[1] && lines[1] == lines[2],
        "{greedy}"
    );
    // More answers than are decoded together.
    assert_eq!(sample("--n 18 --max-new 2").lines().count(), 18);
    tiny.run("sample out/model --prompt z")
        .refused(2, &["\"z\""]);
}

#[test]
fn the_doctor_names_what_is_there() {
    let tiny = Tiny::new();
    let done = tiny.run("doctor").well();
    for part in [
        "XLA plugin",
        "PJRT API",
        "SHA-256",
        "devices",
        "caches",
        "compiled",
        "python3",
        "nothing is missing",
    ] {
        assert!(done.out.contains(part), "no {part:?} in\n{}", done.out);
    }
}

#[test]
fn a_recipe_is_shown_with_its_defaults() {
    let tiny = Tiny::new();
    let shown = tiny.run("config recipe.toml seed=7").well().out;
    assert!(
        shown.contains("seed = 7") && shown.contains("override 1") && shown.contains("beta1 = 0.9"),
        "{shown}"
    );
    let reference = tiny.run("config --reference").well().out;
    assert!(reference.contains("group_size") && reference.contains("fsdp"));
    tiny.run("config recipe.toml rl.group_size=1")
        .refused(2, &["rl.group_size"]);
}

#[test]
fn benchmarks_give_numbers() {
    let tiny = Tiny::new();
    let object = |words: &str| {
        serde_json::from_str::<serde_json::Value>(&tiny.run(words).well().out).unwrap()
    };
    let dispatch = object("bench dispatch --calls 20 --json");
    let arrays: Vec<_> = dispatch["dispatch"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["arrays"].as_u64().unwrap())
        .collect();
    assert_eq!(arrays, [15, 300]);
    assert!(dispatch["dispatch"][1]["call_us"].as_f64().unwrap() > 0.0);
    let step =
        object("bench step --model model --rows 2 --width 32 --steps 2 --micro-batches 2 --json");
    for name in [
        "tokens_per_second",
        "host_share",
        "peak_bytes",
        "peak_over_needed",
        "temporary_bytes",
    ] {
        assert!(step[name].as_f64().unwrap() > 0.0, "{name} in {step}");
    }
    let engine =
        object("bench engine --layers 4 --hidden 16 --width 8 --micro-batches 2 --steps 2 --json");
    let models = engine["models"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    for (model, layers) in models.iter().zip(["in a loop", "written out"]) {
        assert_eq!(model["layers"], layers, "{engine}");
        for kind in ["parts", "whole"] {
            let step = &model["steps"][0][kind];
            for name in ["host_us", "engine_ms", "bare_ms", "engine_over_bare"] {
                assert!(
                    step[name].as_f64().unwrap() > 0.0,
                    "{kind} {name} in {engine}"
                );
            }
        }
        assert!(
            model["steps"][0]["host_us_per_micro_batch"]
                .as_f64()
                .unwrap()
                > 0.0
        );
        assert!(model["steps"][0]["host_us_per_update"].as_f64().unwrap() > 0.0);
    }
    let arrays = |at: usize| models[at]["arrays"].as_u64().unwrap();
    assert!(arrays(1) > arrays(0) + 20, "{engine}");
    for mode in ["off", "single_pass"] {
        let head = object(&format!(
            "bench head --mode {mode} --tokens 9 --width 8 --vocab 30 --runs 1 --json"
        ));
        assert_eq!(head["mode"], mode, "{head}");
        assert!(head["loss"].as_f64().unwrap() > 0.0, "{head}");
    }
    tiny.run("bench step --rows 3 --fsdp 2")
        .refused(2, &["--rows 3", "--fsdp 2"]);
}

#[test]
fn sizes_beyond_the_memory_of_the_machine_are_refused_before_anything_is_made() {
    let tiny = Tiny::new();
    tiny.write("t.jsonl", "{\"tokens\": [1, 2, 3]}\n");
    for (words, cure) in [
        ("bench head --tokens 1000000000", "lower --tokens"),
        (
            "bench head --vocab 1000000000 --width 1000000000",
            "lower --tokens",
        ),
        (
            "bench head --mode off --tokens 900000000 --width 1",
            "lower --tokens",
        ),
        ("bench engine --hidden 1600000", "lower --layers"),
        ("bench engine --layers 1000000000", "lower --layers"),
        (
            "bench engine --rows 1000000000 --width 1000000000",
            "--rows, --width",
        ),
        ("bench engine --micro-batches 1000000000", "--micro-batches"),
        ("bench sampler --batch 1000000000", "lower --batch"),
        ("bench sampler --prompt 1000000000 --batch 1", "--prompt"),
        ("bench sampler --new-tokens 1000000000", "--new-tokens"),
        ("bench step --rows 1000000000", "lower --rows"),
        ("bench step --width 1000000000", "--width"),
        ("bench step --micro-batches 1000000000", "--micro-batches"),
        (
            "bench attention --tokens 2000000 --heads 1 --head-size 1",
            "--tiled-only",
        ),
        (
            "bench attention --tokens 1000000000 --tiled-only",
            "lower --tokens",
        ),
        ("bench attention --heads 1000000000", "--heads"),
        ("bench attention --head-size 1000000000", "--head-size"),
        (
            "bench pack --tokens 1000000000 --budget 1000000000",
            "lower --tokens",
        ),
        ("bench pack --budget 1000000000", "--budget"),
        (
            "pack t.jsonl --budget 1000 --rows-per-micro-batch 1000000000",
            "lower --budget",
        ),
    ] {
        tiny.run(words)
            .refused(2, &["would take at least", "of memory", "are free", cure]);
    }
}

#[test]
fn sizes_of_a_benchmark_that_do_not_fit_each_other_are_refused() {
    let tiny = Tiny::new();
    for (words, part) in [
        (
            "bench attention --heads 8 --group 3",
            "--heads 8 does not divide by --group 3",
        ),
        ("bench attention --heads 2 --group 4", "--group 4"),
        (
            "bench pack --context 3",
            "--budget 65536 is not a multiple of --context 3; nearest are 65535 and 65538",
        ),
        ("bench pack --context 1000000", "the nearest is 1000000"),
        (
            "bench attention --tokens 8 --documents 2,9",
            "9 documents cannot share 8 tokens",
        ),
        (
            "bench step --model model --fsdp 3 --rows 3 --width 2",
            "make it a multiple of 3",
        ),
    ] {
        tiny.run(words).refused(2, &[part]);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let tiny = Tiny::new();
    let mut child = tiny
        .command("config --reference")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap()
        ),
        (Some(0), String::new())
    );
}
