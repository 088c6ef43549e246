use super::*;
use crate::run_dir::lines::JsonLines;
use crate::run_dir::{RunDirError, whole_file};

#[test]
fn lines_are_written_as_they_are_documented() {
    let scratch = Scratch::new();
    let mut run = RunDir::create(&scratch.path(), false).unwrap();
    record(&mut run, 2);
    record(&mut run, 4);
    let mut odd = StepMetrics::new(5, Phase::Grpo);
    odd.set("loss", f64::NAN);
    odd.set("reward", 1);
    odd.set("loss", f64::INFINITY);
    run.record_metrics(&odd).unwrap();
    assert_eq!(
        scratch.text("metrics.jsonl"),
        "{\"step\":2,\"phase\":\"warmup\",\"loss\":0.5,\"num_tokens\":20}\n\
         {\"step\":4,\"phase\":\"grpo\",\"loss\":0.25,\"num_tokens\":40,\"reward\":0.5}\n\
         {\"step\":5,\"phase\":\"grpo\",\"loss\":null,\"reward\":1}\n"
    );
    assert_eq!(
        scratch.text("samples.jsonl").lines().nth(1).unwrap(),
        "{\"step\":4,\"prompt\":\"1+1=\",\"answer\":\"<b>4</b>\",\"expected\":\"2\",\
         \"reward\":1.0,\"advantage\":1.0,\"logprobs\":[-0.1,-0.25]}"
    );
}

#[test]
fn a_resumed_run_leaves_the_files_of_one_that_never_stopped() {
    let straight = Scratch::new();
    let mut run = RunDir::create(&straight.path(), false).unwrap();
    (1..=9).for_each(|step| record(&mut run, step));

    for (stop, torn) in [
        (8, ""),
        (8, "{\"step\":9,\"pha"),
        (7, "{\"step\":8}"),
        (6, "\0\0\0"),
        (9, "\n"),
        (6, "{}\n"),
    ] {
        let scratch = Scratch::new();
        let mut run = RunDir::create(&scratch.path(), false).unwrap();
        (1..=stop).for_each(|step| record(&mut run, step));
        drop(run);
        for name in ["metrics.jsonl", "samples.jsonl"] {
            std::fs::write(scratch.path().join(name), scratch.text(name) + torn).unwrap();
        }

        let mut run = RunDir::create(&scratch.path(), true).unwrap();
        assert_eq!(run.rewind(6).unwrap(), Some(6));
        (7..=9).for_each(|step| record(&mut run, step));
        for name in ["metrics.jsonl", "samples.jsonl"] {
            assert_eq!(
                scratch.text(name),
                straight.text(name),
                "{name} after a stop at {stop} and {torn:?}"
            );
        }
    }
}

#[test]
fn rewinding_tells_how_far_the_metrics_reach() {
    let scratch = Scratch::new();
    let mut run = RunDir::create(&scratch.path(), false).unwrap();
    (1..=5).for_each(|step| record(&mut run, step));
    assert_eq!(
        run.rewind(7).unwrap(),
        Some(5),
        "the checkpoint is ahead of the metrics"
    );
    // A line that lacks only its line feed is torn like any other.
    let whole = scratch.text("metrics.jsonl");
    std::fs::write(
        scratch.path().join("metrics.jsonl"),
        format!("{whole}{{\"step\":6}}"),
    )
    .unwrap();
    assert_eq!(run.rewind(6).unwrap(), Some(5));
    assert_eq!(scratch.text("metrics.jsonl"), whole);
    assert_eq!(run.rewind(0).unwrap(), None);
    assert_eq!(scratch.text("metrics.jsonl"), "");
    assert_eq!(scratch.text("samples.jsonl"), "");
}

#[test]
fn damage_before_the_end_is_named_and_nothing_is_cut() {
    for (text, said) in [
        (
            "{\"step\":1}\nrubbish\n{\"step\":3}\n",
            "metrics.jsonl:2 is damaged (expected value",
        ),
        (
            "{\"step\":1}\n{\"stop\":2}\n{\"step\":3}\n",
            "metrics.jsonl:2 is damaged (it has no step)",
        ),
        (
            "{\"step\":1}\n[]\n{\"step\":3}\n",
            "metrics.jsonl:2 is damaged (invalid type",
        ),
        (
            "{\"step\":9}\n{\"step\":1}\n",
            "metrics.jsonl:2 is damaged (step 1 after a step beyond 2)",
        ),
    ] {
        let scratch = Scratch::new();
        drop(RunDir::create(&scratch.path(), false).unwrap());
        std::fs::write(scratch.path().join("metrics.jsonl"), text).unwrap();
        let mut run = RunDir::create(&scratch.path(), true).unwrap();
        let error = run.rewind(2).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(!error.is_configuration());
        assert_eq!(scratch.text("metrics.jsonl"), text);
    }
}

#[test]
fn a_directory_that_holds_anything_is_not_overwritten() {
    let scratch = Scratch::new();
    let run = RunDir::create(&scratch.path(), false).unwrap();
    run.write_config("seed = 1\n").unwrap();
    drop(run);
    // Nothing was recorded: trying again must not need another name.
    let mut run = RunDir::create(&scratch.path(), false).unwrap();
    record(&mut run, 1);
    drop(run);
    let error = RunDir::create(&scratch.path(), false).unwrap_err();
    assert!(matches!(error, RunDirError::Taken { .. }) && error.is_configuration());
    assert!(
        error
            .to_string()
            .contains("it holds metrics.jsonl): go on with that run by --resume"),
        "{error}"
    );
    assert!(scratch.text("metrics.jsonl").contains("\"step\":1"));

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("letter.txt"), "dear").unwrap();
    assert!(
        matches!(RunDir::create(other.path(), false), Err(RunDirError::Taken { entry, .. }) if entry == "letter.txt")
    );
}

#[test]
fn places_where_no_run_can_be_are_errors_of_the_configuration() {
    let scratch = Scratch::new();
    let file = scratch.0.path().join("file");
    std::fs::write(&file, "").unwrap();
    let absent = scratch.path();
    for (path, resume, said) in [
        (&file, false, "is a file: choose another with run.dir=PATH"),
        (&file.join("below"), false, "cannot be written ("),
        (&absent, true, "there is no run to resume in"),
    ] {
        let error = RunDir::create(path, resume).unwrap_err();
        assert!(error.is_configuration());
        assert!(error.to_string().contains(said), "{error}");
        assert!(
            error.to_string().contains(&path.display().to_string()),
            "{error}"
        );
    }
    assert!(!absent.exists(), "a refused resume leaves nothing behind");
}

#[test]
fn two_processes_cannot_write_one_run() {
    let scratch = Scratch::new();
    let run = RunDir::create(&scratch.path(), false).unwrap();
    let error = RunDir::create(&scratch.path(), true).unwrap_err();
    assert!(matches!(error, RunDirError::InUse { .. }), "{error}");
    drop(run);
    RunDir::create(&scratch.path(), true).unwrap();
}

#[test]
fn a_whole_file_is_there_complete_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    whole_file::write(&path, b"old").unwrap();
    whole_file::write(&path, b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");

    // A folder stands where the file should go: the rename fails, and no trace of the try is left.
    let blocked = folder.path().join("config.resolved.toml");
    std::fs::create_dir(&blocked).unwrap();
    let error = whole_file::write(&blocked, b"text").unwrap_err();
    assert!(
        error.to_string().starts_with("cannot write ") && !error.is_configuration(),
        "{error}"
    );
    let mut names: Vec<_> = folder
        .path()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["config.resolved.toml", "report.html"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let mut full = JsonLines::open("/dev/full".into()).unwrap();
    let error = full
        .append(&[StepMetrics::new(1, Phase::Warmup)])
        .unwrap_err();
    assert!(
        error.to_string().contains("cannot write /dev/full"),
        "{error}"
    );
}
