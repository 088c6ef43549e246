//! Several files: what is written where, and what an interruption leaves.

use std::borrow::Cow;
use std::collections::BTreeSet;

use ferrotune_pjrt::DType;

use super::round_trip::shard;
use super::*;
use crate::error::Error;

const INDEX: &str = "model.safetensors.index.json";

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().into_string().unwrap()
    };
    entries.map(name).collect()
}

fn config(folder: &Folder) -> ModelConfig {
    ModelConfig::load(folder.path()).unwrap()
}

/// The folder's weights with every value doubled.
fn doubled(folder: &Folder) -> Vec<(ParamSpec, HostArray)> {
    let double = |(spec, array): (ParamSpec, HostArray)| {
        let values: Vec<f32> = array.as_slice::<f32>().iter().map(|v| 2.0 * v).collect();
        let array = HostArray::from_slice(&spec.dims, &values).unwrap();
        (spec, array)
    };
    let params = folder.load().unwrap().params;
    params.into_iter().map(double).collect()
}

fn sharded(family: &str) -> Folder {
    let folder = Folder::copy_of(family);
    folder.change(|tensors| {
        tensors.insert("mtp.fc".into(), Tensor::f32(&[2], &[1.0, 2.0]));
    });
    shard(&folder);
    folder
}

#[test]
fn several_files_stay_the_same_files_with_an_index_over_them() {
    for dtype in [DType::F32, DType::BF16] {
        let folder = sharded("qwen3_moe");
        let target = folder.path().join("copy");
        let params = folder.load().unwrap().params;
        save(
            &target,
            &config(&folder),
            &params,
            dtype,
            Some(folder.path()),
        )
        .unwrap();
        let expected = [
            "a.safetensors",
            "b.safetensors",
            "config.json",
            "generation_config.json",
            INDEX,
        ];
        assert!(names(&target).iter().eq(expected), "{:?}", names(&target));
        let text = std::fs::read_to_string(target.join(INDEX)).unwrap();
        let index: serde_json::Value = serde_json::from_str(&text).unwrap();
        let map = index["weight_map"].as_object().unwrap();
        let (mut total, mut count) = (0, 0);
        for part in ["a.safetensors", "b.safetensors"] {
            let (old, new) = (
                read_file(&folder.path().join(part)),
                read_file(&target.join(part)),
            );
            let keys = |tensors: &Tensors| tensors.keys().cloned().collect::<BTreeSet<_>>();
            assert_eq!(keys(&old), keys(&new), "{part}");
            assert!(new.keys().all(|name| map[name] == part));
            total += new.values().map(|tensor| tensor.bytes.len()).sum::<usize>();
            count += new.len();
            if dtype == DType::F32 {
                assert_eq!(old, new);
            }
        }
        assert_eq!(map.len(), count);
        assert_eq!(index["metadata"]["total_size"], total);
        let again = load(&target, &config(&folder)).unwrap();
        assert_eq!(again.stored, Some(dtype));
        assert_eq!(again.unused, ["mtp.fc"]);
    }
}

#[test]
fn saving_leaves_no_weights_of_before() {
    // One file over several, in a folder that is not the source.
    let (single, several) = (Folder::copy_of("qwen3"), sharded("qwen3"));
    let new = doubled(&single);
    save(
        several.path(),
        &config(&single),
        &new,
        DType::F32,
        Some(single.path()),
    )
    .unwrap();
    assert_eq!(several.load().unwrap().params, new);
    let left = ["config.json", "generation_config.json", "model.safetensors"];
    assert!(names(several.path()).iter().eq(left));

    // Several over one.
    let (single, several) = (Folder::copy_of("qwen3"), sharded("qwen3"));
    let new = doubled(&several);
    save(
        single.path(),
        &config(&several),
        &new,
        DType::F32,
        Some(several.path()),
    )
    .unwrap();
    assert_eq!(single.load().unwrap().params, new);
    assert!(!single.weights().exists());

    // Several over others; a file that is not of weights stays, whatever an index says of it.
    let other = Folder::copy_of("qwen3");
    let index = serde_json::json!({"weight_map": {"x": "old.safetensors", "y": "notes.txt", "z": "a.safetensors"}});
    std::fs::write(other.path().join(INDEX), index.to_string()).unwrap();
    std::fs::write(other.path().join("old.safetensors"), "old").unwrap();
    std::fs::write(other.path().join("mine.safetensors"), "not named").unwrap();
    std::fs::write(other.path().join("notes.txt"), "not of weights").unwrap();
    save(
        other.path(),
        &config(&several),
        &new,
        DType::F32,
        Some(several.path()),
    )
    .unwrap();
    assert_eq!(other.load().unwrap().params, new);
    let left = [
        "a.safetensors",
        "b.safetensors",
        "config.json",
        "generation_config.json",
        "mine.safetensors",
        INDEX,
        "notes.txt",
    ];
    assert_eq!(names(other.path()), left.map(str::to_owned).into());

    // Over the source itself.
    save(
        several.path(),
        &config(&several),
        &doubled(&several),
        DType::BF16,
        Some(several.path()),
    )
    .unwrap();
    let again = several.load().unwrap();
    assert_eq!(
        (again.stored, again.unused),
        (Some(DType::BF16), vec!["mtp.fc".to_owned()])
    );
}

/// Saves with a failure at the last moment: the file is complete and cannot get its name.
fn save_blocked(target: &Folder, source: &Folder, new: &[(ParamSpec, HostArray)], name: &str) {
    let path = target.path().join(name);
    let mut fetch = |spec: &ParamSpec| {
        let _ = std::fs::remove_file(&path);
        std::fs::create_dir_all(&path).unwrap();
        let found = new.iter().find(|(it, _)| it.path == spec.path);
        Ok::<_, Error>(Cow::Borrowed(&found.unwrap().1))
    };
    let (dir, from) = (target.path(), Some(source.path()));
    save_from(dir, &config(source), DType::F32, from, &mut fetch).unwrap_err();
}

#[test]
fn an_interruption_leaves_the_old_weights_or_none_and_never_a_mix() {
    // Several files over one: the second cannot be written.
    let (target, source) = (Folder::copy_of("qwen3"), sharded("qwen3"));
    let (old, new) = (target.load().unwrap().params, doubled(&source));
    save_blocked(&target, &source, &new, "b.safetensors");
    assert!(target.path().join("a.safetensors").exists());
    assert_eq!(target.load().unwrap().params, old);

    // Several over the same several: the first is new, the second old.
    let target = sharded("qwen3");
    save_blocked(&target, &source, &new, "b.safetensors");
    assert!(matches!(target.error(), Error::NoWeights { .. }));

    // One over several.
    let (target, source) = (sharded("qwen3"), Folder::copy_of("qwen3"));
    save_blocked(&target, &source, &new, "model.safetensors");
    std::fs::remove_dir(target.weights()).unwrap();
    assert_eq!(target.load().unwrap().params, old);
}

#[test]
fn tensors_that_the_source_lacks_go_to_one_of_its_files() {
    // The source ties its head; what is saved does not.
    let folder = sharded("llama");
    let text = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    let untied = text.replace("embeddings\": true", "embeddings\": false");
    let untied = ModelConfig::parse(&untied, "").unwrap();
    let params = crate::init_params(&untied, 3).unwrap();
    let target = folder.path().join("untied");
    save(&target, &untied, &params, DType::F32, Some(folder.path())).unwrap();
    assert!(!target.join("model.safetensors").exists());
    let weights = load(&target, &untied).unwrap();
    assert_eq!(weights.params, params);
    assert!(read_file(&target.join("a.safetensors")).contains_key("lm_head.weight"));
}
