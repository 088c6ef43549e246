//! Stopping and going on: killed, interrupted, damaged.

use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::tiny::{Done, Tiny};

const LONG: &str = "train recipe.toml rl.steps=40";

/// Starts a run and waits until it has recorded `steps` steps.
fn start(tiny: &Tiny, words: &str, steps: usize) -> Child {
    let mut command = tiny.command(words);
    let mut child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let path = tiny.path("out/metrics.jsonl");
    let begun = Instant::now();
    loop {
        let lines = std::fs::read_to_string(&path).map_or(0, |text| text.lines().count());
        if lines >= steps {
            return child;
        }
        if child.try_wait().unwrap().is_some() || begun.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            panic!(
                "it did not get to step {steps}: {:?}",
                Done::of(words, child.wait_with_output().unwrap())
            );
        }
        sleep(Duration::from_millis(2));
    }
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_killed_run_goes_on_as_if_it_had_never_stopped() {
    let tiny = Tiny::new();
    tiny.run(&format!("{LONG} run.dir=straight")).well();
    for steps in [2, 8, 21] {
        let mut child = start(
            &tiny,
            &format!("{LONG} run.dir=out --resume")
                .replace(" --resume", if steps == 2 { "" } else { " --resume" }),
            steps,
        );
        child.kill().unwrap();
        assert_eq!(
            child.wait().unwrap().code(),
            None,
            "it was killed, not done"
        );
    }
    tiny.run(&format!("{LONG} run.dir=out --resume")).well();
    assert_eq!(tiny.metrics("straight"), tiny.metrics("out"));
    assert_eq!(
        tiny.read("straight/samples.jsonl"),
        tiny.read("out/samples.jsonl")
    );
    let weights = |run| std::fs::read(tiny.path(run).join("model/model.safetensors")).unwrap();
    assert!(
        weights("straight") == weights("out"),
        "the trained models differ"
    );
}

#[test]
fn ctrl_c_finishes_the_step_and_says_how_to_go_on() {
    let tiny = Tiny::new();
    tiny.run(&format!("{LONG} run.dir=straight checkpoint.every_steps=0"))
        .well();
    let child = start(
        &tiny,
        &format!("{LONG} run.dir=out checkpoint.every_steps=0"),
        7,
    );
    interrupt(&child);
    let stopped = Done::of("interrupted", child.wait_with_output().unwrap());
    assert_eq!(stopped.code, Some(130), "{}", stopped.err);
    let steps = tiny.metrics("out").len();
    assert!(steps < 44);
    assert!(
        stopped.err.contains(&format!("stopped after step {steps}")),
        "{}",
        stopped.err
    );
    assert!(stopped.err.contains("--resume"), "{}", stopped.err);
    assert!(
        tiny.path(&format!("out/checkpoints/step-{steps}/manifest.json"))
            .exists()
    );
    assert!(tiny.path("out/report.html").exists());

    let resumed = tiny
        .run(&format!(
            "{LONG} run.dir=out checkpoint.every_steps=0 --resume"
        ))
        .well();
    assert!(
        resumed.err.contains(&format!("after step {steps}")),
        "{}",
        resumed.err
    );
    assert_eq!(tiny.metrics("straight"), tiny.metrics("out"));
    // A run that is complete has nothing to go on with, which is no error.
    tiny.run(&format!(
        "{LONG} run.dir=out checkpoint.every_steps=0 --resume"
    ))
    .well();
    assert_eq!(tiny.metrics("straight"), tiny.metrics("out"));
}

#[test]
fn a_run_can_be_made_longer() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out").well();
    tiny.run("train recipe.toml run.dir=out rl.steps=6 --resume")
        .well();
    tiny.run("train recipe.toml run.dir=straight rl.steps=6")
        .well();
    let without = |run: &str| {
        let mut metrics = tiny.metrics(run);
        // The shorter run was measured at its end.
        metrics
            .iter_mut()
            .for_each(|line| drop(line.remove("eval/pass@1")));
        metrics
    };
    assert_eq!(without("out"), without("straight"));
}

#[test]
fn another_recipe_does_not_go_on_with_the_run() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out").well();
    let before = tiny.read("out/metrics.jsonl");
    tiny.run("train recipe.toml run.dir=out --resume seed=9 rl.learning_rate=0.5")
        .refused(
            2,
            &[
                "seed is 9, the run has 3",
                "rl.learning_rate is 0.5",
                "run.dir",
            ],
        );
    tiny.run("train recipe.toml run.dir=out")
        .refused(2, &["not empty", "--resume"]);
    tiny.run("train recipe.toml run.dir=nowhere --resume")
        .refused(2, &["no run to resume"]);
    assert_eq!(tiny.read("out/metrics.jsonl"), before);

    // The same settings, but the data is not what it was.
    let train = tiny.read("train.jsonl").replace("\"25 =\"", "\"55 =\"");
    tiny.write("train.jsonl", &train);
    tiny.run("train recipe.toml run.dir=out rl.steps=6 --resume")
        .refused(2, &["data.train changed"]);
    assert_eq!(tiny.read("out/metrics.jsonl"), before);
}

#[test]
fn a_damaged_checkpoint_is_named_and_never_taken_for_a_fresh_start() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out").well();
    let before = tiny.read("out/metrics.jsonl");
    for name in [
        "params.safetensors",
        "optimizer.safetensors",
        "manifest.json",
    ] {
        let path = tiny.path("out/checkpoints/step-8").join(name);
        let sound = std::fs::read(&path).unwrap();
        let mut damaged = sound.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        tiny.run("train recipe.toml run.dir=out --resume")
            .refused(1, &["damaged", name, "remove the folder", "step-6"]);
        std::fs::write(&path, &sound[..middle]).unwrap();
        tiny.run("train recipe.toml run.dir=out --resume")
            .refused(1, &["damaged", name]);
        std::fs::write(&path, &sound).unwrap();
    }
    assert_eq!(tiny.read("out/metrics.jsonl"), before);
    // As the message says.
    std::fs::remove_dir_all(tiny.path("out/checkpoints/step-8")).unwrap();
    let straight = tiny.metrics("out");
    tiny.run("train recipe.toml run.dir=out --resume").well();
    assert_eq!(tiny.metrics("out"), straight);
}

#[test]
fn checkpoints_are_listed_verified_shown_and_exported() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out checkpoint.keep_last=1 checkpoint.keep_every=3")
        .well();
    let listed = tiny.run("checkpoint list out").well().out;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    for part in [
        "step-3  3 updates",
        "step-6  8 updates",
        "step-8  12 updates",
    ] {
        assert!(listed.contains(part), "{listed}");
    }
    tiny.run("checkpoint verify out").well();
    let shown = tiny.run("checkpoint show out").well().out;
    assert!(
        shown.contains("second/embed") && shown.contains("\"completed\":8"),
        "{shown}"
    );
    // The newest one's weights are those of the trained model.
    tiny.run("checkpoint export out exported").well();
    assert_eq!(
        std::fs::read(tiny.path("exported/model.safetensors")).unwrap(),
        std::fs::read(tiny.path("out/model/model.safetensors")).unwrap()
    );
    tiny.run("checkpoint export out exported")
        .refused(2, &["exported is not empty"]);
    let path = tiny.path("out/checkpoints/step-6/optimizer.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    tiny.run("checkpoint verify out")
        .refused(1, &["1 of 3 checkpoints cannot be used"]);
    std::fs::write(&path, &bytes[..last]).unwrap();
    tiny.run("checkpoint list out")
        .refused(1, &["1 of 3 checkpoints cannot be used"]);
    tiny.run("checkpoint verify nowhere")
        .refused(2, &["nowhere does not exist"]);
}

#[test]
fn a_checkpoint_may_be_called_as_one_likes_and_what_is_none_is_refused() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out rl.steps=0 warmup.steps=1")
        .well();
    std::fs::create_dir(tiny.path("saved")).unwrap();
    std::fs::rename(tiny.path("out/checkpoints/step-1"), tiny.path("saved/best")).unwrap();
    let listed = tiny.run("checkpoint list saved/best").well().out;
    assert!(listed.contains("saved/best  1 update  "), "{listed}");
    tiny.run("checkpoint verify saved/best").well();
    tiny.run("checkpoint show saved/best").well();
    tiny.run("checkpoint export saved/best exported")
        .refused(2, &["name the run directory with --run"]);
    tiny.run("checkpoint export saved/best exported --run out")
        .well();
    let weights = |folder: &str| std::fs::read(tiny.path(folder).join("model.safetensors"));
    assert_eq!(weights("exported").unwrap(), weights("out/model").unwrap());

    // What is named is the user's matter, whatever is wrong with it.
    tiny.write("a.txt", "");
    tiny.write("empty/a.txt", "");
    for command in ["list", "verify", "show", "export"] {
        let out = if command == "export" { " new" } else { "" };
        for (path, part) in [
            ("nowhere", "nowhere does not exist"),
            ("a.txt", "a.txt is a file: name a run directory"),
            ("a.txt/below", "is a file, not a folder"),
            ("empty", "empty holds no checkpoints: name a run directory"),
            // Those of folders that are called otherwise are found when they are named.
            ("saved", "or one checkpoint, a folder with a manifest.json"),
        ] {
            tiny.run(&format!("checkpoint {command} {path}{out}"))
                .refused(2, &[part]);
        }
    }
    for (out, part) in [
        ("a.txt", "a.txt is a file"),
        ("a.txt/below", "a.txt is a file"),
        ("empty", "is not empty"),
        ("/proc/new", "cannot write /proc/new"),
    ] {
        tiny.run(&format!("checkpoint export saved/best {out} --run out"))
            .refused(2, &[part]);
    }
    let path = tiny.path("saved/best/manifest.json");
    std::fs::write(&path, "{}").unwrap();
    tiny.run("checkpoint show saved/best")
        .refused(1, &["is damaged"]);
    // Of one that lost its manifest the name says what it was.
    std::fs::remove_file(&path).unwrap();
    std::fs::rename(tiny.path("saved/best"), tiny.path("saved/step-1")).unwrap();
    tiny.run("checkpoint show saved/step-1")
        .refused(1, &["manifest.json is damaged: it is missing"]);
}

#[test]
fn a_finished_run_without_checkpoints_is_not_begun_again() {
    let tiny = Tiny::new();
    tiny.run("train recipe.toml run.dir=out").well();
    let before = tiny.read("out/metrics.jsonl");
    std::fs::remove_dir_all(tiny.path("out/checkpoints")).unwrap();
    tiny.run("train recipe.toml run.dir=out --resume")
        .refused(2, &["is finished", "another run.dir"]);
    assert_eq!(tiny.read("out/metrics.jsonl"), before);
}

#[test]
fn a_run_outlives_a_checkpoint_that_cannot_be_saved_and_says_so() {
    let tiny = Tiny::new();
    // A file stands where the folder would be made.
    tiny.write("out/checkpoints/step-3.partial", "");
    tiny.write("out/metrics.jsonl", "");
    tiny.write("out/samples.jsonl", "");
    tiny.run("train recipe.toml run.dir=out --resume").well();
    let failed: Vec<u64> = tiny
        .metrics("out")
        .iter()
        .filter_map(|line| line.get("checkpoint/failed")?.as_u64())
        .collect();
    assert_eq!(failed, [1]);
    tiny.run("checkpoint verify out").well();
    assert!(!tiny.path("out/checkpoints/step-3").exists());
}
