//! Checkpoints come back bit for bit, and damaged, absent and unfitting ones are told apart.

use std::fs;
use std::path::Path;

use ferrotune_engine::checkpoint::Keep;
use ferrotune_engine::{Engine, Error, Loss, checkpoint};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::setup::{config, documents, engine, engine_on, rows};

fn train(engine: &mut Engine, steps: usize) -> Vec<f64> {
    let batch = rows(&documents(&[14, 9]), 16, 2);
    let step = |_| {
        engine
            .forward_backward(&batch, &Loss::cross_entropy())
            .unwrap();
        engine.update(1e-2).unwrap().read().unwrap().metrics["loss"]
    };
    (0..steps).map(step).collect()
}

#[test]
fn a_restored_run_continues_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-3");
    let mut whole = engine("qwen3");
    train(&mut whole, 3);
    whole.save(&dir, &json!({"position": 7})).unwrap();
    let expected = train(&mut whole, 4);

    let mut resumed = engine("qwen3");
    train(&mut resumed, 1);
    assert_eq!(resumed.restore(&dir).unwrap(), json!({"position": 7}));
    assert_eq!(resumed.step(), 3);
    assert_eq!(train(&mut resumed, 4), expected);
    assert_eq!(
        whole.params_to_host().unwrap(),
        resumed.params_to_host().unwrap()
    );
}

#[test]
fn another_mesh_restores_the_same_state() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("step-1"), folder.path().join("step-2"));
    let mut one = engine("llama");
    train(&mut one, 2);
    one.save(&a, &json!(null)).unwrap();
    let mut four = engine_on("llama", 2, 2, config());
    four.restore(&a).unwrap();
    four.save(&b, &json!(null)).unwrap();
    for file in ["params.safetensors", "optimizer.safetensors"] {
        assert_eq!(
            fs::read(a.join(file)).unwrap(),
            fs::read(b.join(file)).unwrap()
        );
    }
}

#[test]
fn every_flipped_byte_is_noticed_and_its_file_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let mut engine = engine("llama");
    train(&mut engine, 1);
    let batch = rows(&documents(&[5]), 8, 1);
    let loss = Loss::cross_entropy();
    engine.forward_backward(&batch, &loss).unwrap();
    engine.save(&dir, &json!({"seed": 1})).unwrap();
    let before = engine.params_to_host().unwrap();
    for name in [
        "params.safetensors",
        "optimizer.safetensors",
        "gradients.safetensors",
        "metrics.safetensors",
        "manifest.json",
    ] {
        let path = dir.join(name);
        let good = fs::read(&path).unwrap();
        for k in 0..67 {
            let mut bad = good.clone();
            let at = (k * bad.len() / 67 + k % 3).min(bad.len() - 1);
            bad[at] ^= 1 << (k % 7);
            fs::write(&path, &bad).unwrap();
            let error = engine.restore(&dir).unwrap_err();
            assert!(
                matches!(&error, Error::Corrupt { .. }),
                "byte {at} of {name}: {error}"
            );
            assert!(error.to_string().contains(name), "{error}");
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        assert!(matches!(
            engine.restore(&dir).unwrap_err(),
            Error::Corrupt { .. }
        ));
        fs::remove_file(&path).unwrap();
        assert!(matches!(
            engine.restore(&dir).unwrap_err(),
            Error::Corrupt { .. }
        ));
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(
        engine.params_to_host().unwrap(),
        before,
        "a refused checkpoint changes nothing"
    );
    engine.restore(&dir).unwrap();
}

#[test]
fn absent_and_unfitting_are_different_answers() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let mut llama = engine("llama");
    assert!(matches!(
        llama.restore(&dir).unwrap_err(),
        Error::Absent { .. }
    ));
    engine("qwen3").save(&dir, &json!(null)).unwrap();
    let error = llama.restore(&dir).unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { .. }) && error.to_string().contains("q_norm"),
        "{error}"
    );
}

#[test]
fn one_of_another_version_is_whole_but_does_not_fit_and_the_way_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let mut llama = engine("llama");
    llama.save(&dir, &json!(null)).unwrap();
    let path = dir.join("manifest.json");
    let sealed: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let contents = sealed["contents"].as_str().unwrap();
    for (schema, said) in [
        (r#""schema":1"#, "version 1"),
        (r#""scheme":2"#, "version none"),
    ] {
        let other = contents.replace(r#""schema":2"#, schema);
        let digest = Sha256::digest(other.as_bytes());
        let sha256: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        let sealed = json!({"contents": other, "sha256": sha256});
        fs::write(&path, sealed.to_string()).unwrap();
        let error = llama.restore(&dir).unwrap_err();
        assert!(matches!(&error, Error::Incompatible { .. }), "{error}");
        for part in [said, "reads 2", "the version of ferrotune that wrote it"] {
            assert!(error.to_string().contains(part), "no {part} in: {error}");
        }
    }
}

/// Other bytes are damage: a digit of the version, which would else be another version, and one that says nothing.
#[test]
fn a_manifest_of_other_bytes_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let mut llama = engine("llama");
    llama.save(&dir, &json!(null)).unwrap();
    let path = dir.join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    for damaged in [
        text.replacen(r#"schema\":2"#, r#"schema\":3"#, 1),
        text.clone() + " ",
    ] {
        assert_ne!(damaged, text);
        fs::write(&path, damaged).unwrap();
        let error = llama.restore(&dir).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { .. }), "{error}");
    }
}

#[test]
fn any_number_of_the_callers_state_can_be_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-1");
    let mut llama = engine("llama");
    let state = json!({"rates": (1..50).map(|k| 1.0 / f64::from(k)).collect::<Vec<_>>()});
    llama.save(&dir, &state).unwrap();
    assert_eq!(llama.restore(&dir).unwrap(), state);
}

#[test]
fn restoring_drops_an_accumulation() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-0");
    let mut engine = engine("llama");
    engine.save(&dir, &json!(null)).unwrap();
    engine
        .forward_backward(&rows(&documents(&[5]), 8, 1), &Loss::cross_entropy())
        .unwrap();
    engine.restore(&dir).unwrap();
    assert!(matches!(engine.update(0.1), Err(Error::NoGradient)));
}

#[test]
fn an_unwritable_place_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("not-a-folder");
    fs::write(&file, "x").unwrap();
    let error = engine("llama")
        .save(&file.join("step-1"), &json!(null))
        .unwrap_err();
    assert!(
        matches!(&error, Error::Io { .. }) && error.to_string().contains("not-a-folder"),
        "{error}"
    );
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_newest_is_found_by_number_and_the_last_one_is_never_removed() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine("llama");
    for step in [2, 9, 10] {
        engine
            .save(&folder.path().join(format!("step-{step}")), &json!(step))
            .unwrap();
    }
    fs::create_dir(folder.path().join("step-11.partial")).unwrap();
    assert_eq!(
        checkpoint::latest(folder.path()).unwrap().unwrap(),
        folder.path().join("step-10")
    );
    checkpoint::prune(folder.path(), Keep { last: 2, every: 0 }).unwrap();
    assert_eq!(
        names(folder.path()),
        ["step-10", "step-11.partial", "step-9"]
    );
    checkpoint::prune(folder.path(), Keep { last: 0, every: 0 }).unwrap();
    assert_eq!(
        checkpoint::latest(folder.path()).unwrap().unwrap(),
        folder.path().join("step-10")
    );
    // A checkpoint that lost its manifest is not passed over in silence, and pushes no good one out.
    let mut engine = engine;
    let damaged = folder.path().join("step-12");
    fs::create_dir(&damaged).unwrap();
    assert_eq!(
        checkpoint::latest(folder.path()).unwrap(),
        Some(damaged.clone())
    );
    assert!(matches!(
        engine.restore(&damaged).unwrap_err(),
        Error::Corrupt { .. }
    ));
    checkpoint::prune(folder.path(), Keep { last: 1, every: 0 }).unwrap();
    assert_eq!(
        names(folder.path()),
        ["step-10", "step-11.partial", "step-12"]
    );
    assert_eq!(
        checkpoint::latest(&folder.path().join("nowhere")).unwrap(),
        None
    );
}

#[test]
fn a_damaged_array_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("step-0");
    engine("llama").save(&dir, &json!(null)).unwrap();
    let path = dir.join("params.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).unwrap();
    // In a file of one number type arrays stand in the order of their names.
    let arrays = checkpoint::Manifest::read(&dir).unwrap().files[0]
        .arrays
        .clone();
    let last = arrays.iter().map(|array| &array.name).max().unwrap();
    let error = checkpoint::verify(&dir).unwrap_err().to_string();
    assert!(error.contains("params.safetensors"), "{error}");
    assert!(error.contains(&format!("its array `{last}`")), "{error}");
}

#[test]
fn every_few_steps_one_stays_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine("llama");
    for step in 1..=7 {
        engine
            .save(&folder.path().join(format!("step-{step}")), &json!(step))
            .unwrap();
    }
    checkpoint::prune(folder.path(), Keep { last: 2, every: 3 }).unwrap();
    assert_eq!(names(folder.path()), ["step-3", "step-6", "step-7"]);
    // A newest one that is cut short pushes nothing out.
    let path = folder.path().join("step-7/params.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[1..]).unwrap();
    checkpoint::prune(folder.path(), Keep { last: 1, every: 0 }).unwrap();
    assert_eq!(names(folder.path()), ["step-6", "step-7"]);
}

#[test]
fn a_checkpoint_in_the_background_holds_the_state_of_its_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (now, later) = (
        folder.path().join("a/step-2"),
        folder.path().join("b/step-2"),
    );
    let keep = Keep { last: 1, every: 0 };
    let mut engine = engine("llama");
    train(&mut engine, 2);
    engine.save(&now, &json!(2)).unwrap();
    engine.save_in_background(&later, &json!(2), keep).unwrap();
    train(&mut engine, 2);
    assert_eq!(engine.saved().unwrap().unwrap().path, later);
    assert!(engine.saved().is_none(), "it is told once");
    for name in [
        "params.safetensors",
        "optimizer.safetensors",
        "manifest.json",
    ] {
        assert_eq!(
            fs::read(now.join(name)).unwrap(),
            fs::read(later.join(name)).unwrap()
        );
    }
    engine
        .close(Some((&later.with_file_name("step-4"), &json!(4))))
        .unwrap();
    checkpoint::verify(&later.with_file_name("step-4")).unwrap();
}

#[test]
fn a_save_that_fails_leaves_the_one_before_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("step-1"), folder.path().join("step-2"));
    let keep = Keep { last: 1, every: 0 };
    let mut engine = engine("llama");
    train(&mut engine, 1);
    engine.save_in_background(&good, &json!(1), keep).unwrap();
    engine.saved().unwrap().unwrap();
    // A file stands where the folder is made, or where the one that it replaces is laid aside.
    for ending in ["partial", "old"] {
        let file = folder.path().join(format!("step-2.{ending}"));
        fs::write(&file, "x").unwrap();
        engine.save_in_background(&bad, &json!(2), keep).unwrap();
        assert!(matches!(engine.saved(), Some(Err(Error::Io { .. }))));
        checkpoint::verify(&good).unwrap();
        fs::remove_file(&file).unwrap();
        assert_eq!(names(folder.path()), ["step-1"], "nothing is left of it");
    }
    train(&mut engine, 1);
    engine.save_in_background(&bad, &json!(2), keep).unwrap();
    engine.saved().unwrap().unwrap();
    assert_eq!(names(folder.path()), ["step-2"], "the one before goes");
}
