//! What is written is what was read, and gradients bear the names of the checkpoint.

use ferrotune_pjrt::DType;

use super::*;
use crate::error::{Error, WeightProblem};
use crate::init_params;

fn bytes(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).unwrap()
}

#[test]
fn saving_writes_the_very_bytes_that_transformers_wrote() {
    for family in FAMILIES {
        let source = fixture(family);
        let config = ModelConfig::load(&source).unwrap();
        let weights = load(&source, &config).unwrap();
        let target = tempfile::tempdir().unwrap();
        let target = target.path().join("new/folder");
        save(&target, &config, &weights.params, DType::F32, Some(&source)).unwrap();
        for name in ["model.safetensors", "config.json", "generation_config.json"] {
            assert!(
                bytes(&target, name) == bytes(&source, name),
                "{family}/{name} differs"
            );
        }
        let names: Vec<_> = std::fs::read_dir(&target)
            .unwrap()
            .map(|f| f.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), 3, "nothing else is left there: {names:?}");
    }
}

#[test]
fn load_save_load_is_bit_identical_in_each_number_type() {
    let types = [DType::F32, DType::BF16, DType::F16];
    let all = FAMILIES
        .iter()
        .flat_map(|family| types.map(|dtype| (family, dtype)));
    for (family, dtype) in all {
        let folder = Folder::copy_of(family);
        let config = ModelConfig::load(folder.path()).unwrap();
        let first = folder.path().join("first");
        save(&first, &config, &folder.load().unwrap().params, dtype, None).unwrap();
        let config = ModelConfig::load(&first).unwrap();
        let weights = load(&first, &config).unwrap();
        assert_eq!(weights.stored, Some(dtype));
        let second = folder.path().join("second");
        save(
            &second,
            &config,
            &weights.params,
            dtype,
            Some(folder.path()),
        )
        .unwrap();
        for name in ["model.safetensors", "config.json"] {
            assert!(
                bytes(&first, name) == bytes(&second, name),
                "{family} {dtype} {name}"
            );
        }
        assert_eq!(load(&second, &config).unwrap().params, weights.params);
    }
}

#[test]
fn saving_over_the_source_keeps_its_companions() {
    let folder = Folder::copy_of("llama");
    let config = ModelConfig::load(folder.path()).unwrap();
    let before = bytes(folder.path(), "generation_config.json");
    save(
        folder.path(),
        &config,
        &folder.load().unwrap().params,
        DType::BF16,
        Some(folder.path()),
    )
    .unwrap();
    assert_eq!(bytes(folder.path(), "generation_config.json"), before);
    assert_eq!(folder.load().unwrap().stored, Some(DType::BF16));
}

#[test]
fn sharded_files_give_the_same_weights() {
    let folder = Folder::copy_of("qwen3");
    let whole = folder.load().unwrap();
    shard(&folder);
    assert_eq!(folder.load().unwrap().params, whole.params);
}

/// Replaces the single file by two and an index.
pub(super) fn shard(folder: &Folder) {
    let (mut first, mut second) = (Tensors::new(), Tensors::new());
    for (name, tensor) in read_file(&folder.weights()) {
        if name.contains("layers.1") {
            &mut second
        } else {
            &mut first
        }
        .insert(name, tensor);
    }
    let mut map = serde_json::Map::new();
    for (part, tensors) in [("a.safetensors", first), ("b.safetensors", second)] {
        write_file(&folder.path().join(part), &tensors);
        map.extend(tensors.into_keys().map(|name| (name, part.into())));
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(
        folder.path().join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    std::fs::remove_file(folder.weights()).unwrap();
}

#[test]
fn gradients_bear_the_names_and_shapes_of_the_checkpoint() {
    for family in FAMILIES {
        let config = ModelConfig::load(fixture(family)).unwrap();
        let reference = read_file(&fixture(family).join("reference.safetensors"));
        let grads: Tensors = reference
            .into_iter()
            .filter_map(|(name, t)| Some((name.strip_prefix("grad.")?.to_owned(), t)))
            .collect();
        // The gradients of the reference as if they were weights: read into the tree, then exported.
        let folder = Folder::copy_of(family);
        write_file(&folder.weights(), &grads);
        let out = folder.path().join("grad.safetensors");
        export_gradients(&out, &config, &folder.load().unwrap().params).unwrap();
        assert_eq!(read_file(&out), grads, "{family}");
    }
}

#[test]
fn gradients_that_are_not_finite_are_written() {
    let config = ModelConfig::load(fixture("llama")).unwrap();
    let mut params = load(fixture("llama"), &config).unwrap().params;
    let (spec, norm) = params
        .iter_mut()
        .find(|(spec, _)| spec.path == "final_norm")
        .unwrap();
    *norm = HostArray::from_slice(&spec.dims, &[f32::NAN; 64]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("grad.safetensors");
    export_gradients(&out, &config, &params).unwrap();
    assert!(
        read_file(&out)["model.norm.weight"]
            .values()
            .iter()
            .all(|v| v.is_nan())
    );
}

#[test]
fn saving_refuses_arrays_that_are_not_the_models_and_lists_them() {
    let config = ModelConfig::load(fixture("qwen3")).unwrap();
    let mut params = load(fixture("qwen3"), &config).unwrap().params;
    params.retain(|(spec, _)| spec.path != "final_norm");
    params[0].1 = HostArray::from_slice(&[64, 128], &[0f32; 64 * 128]).unwrap();
    params[1].1 = HostArray::from_slice(&params[1].0.dims, &[0f64; 128]).unwrap();
    params.push(params[2].clone());
    let dir = tempfile::tempdir().unwrap();
    let error = save(dir.path(), &config, &params, DType::F32, None).unwrap_err();
    let Error::Arrays { problems, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "layers/attn/q_proj is not part of the model, found shape [2, 64, 64]",
            "embed has shape [64, 128], expected [128, 64]",
            "layers/input_norm is stored as f64, expected f32",
            "final_norm is missing, expected shape [64]",
        ]
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "nothing was written"
    );
}

#[test]
fn saving_refuses_values_that_the_number_type_cannot_hold() {
    let config = ModelConfig::load(fixture("llama")).unwrap();
    let mut params = load(fixture("llama"), &config).unwrap().params;
    let dir = tempfile::tempdir().unwrap();
    let mut save_with = |value: f32, dtype| {
        let (spec, norm) = params
            .iter_mut()
            .find(|(spec, _)| spec.path == "final_norm")
            .unwrap();
        let mut values = vec![1f32; 64];
        values[5] = value;
        *norm = HostArray::from_slice(&spec.dims, &values).unwrap();
        save(dir.path(), &config, &params, dtype, None)
    };
    let large = save_with(1e5, DType::F16).unwrap_err();
    let Error::Arrays { problems, .. } = large else {
        panic!("{large}")
    };
    assert_eq!(
        problems,
        [WeightProblem::OutOfRange {
            name: "final_norm".into(),
            value: 1e5,
            dtype: DType::F16
        }]
    );
    let nan = save_with(f32::NAN, DType::F32).unwrap_err();
    let Error::Arrays { problems, .. } = nan else {
        panic!("{nan}")
    };
    assert_eq!(
        problems,
        [WeightProblem::NotFinite {
            name: "final_norm".into(),
            count: 1,
            first: vec![5]
        }]
    );
    assert!(matches!(
        save_with(1.0, DType::S32).unwrap_err(),
        Error::SaveDtype { dtype: DType::S32 }
    ));
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        0,
        "nothing was written"
    );
    save_with(1e5, DType::BF16).unwrap();
}

#[test]
fn fresh_parameters_can_be_saved_and_depend_on_seed_and_path_alone() {
    let config = ModelConfig::load(fixture("llama")).unwrap();
    let params = init_params(&config, 1).unwrap();
    assert_eq!(params, init_params(&config, 1).unwrap());
    let untied = std::fs::read_to_string(fixture("llama").join("config.json")).unwrap();
    let untied = ModelConfig::parse(
        &untied.replace("embeddings\": true", "embeddings\": false"),
        "",
    )
    .unwrap();
    let more = init_params(&untied, 1).unwrap();
    assert_eq!((params.len(), more.len()), (11, 12));
    assert_eq!(
        more[..11],
        params[..],
        "another parameter changes none of the others"
    );
    let other = init_params(&config, 2).unwrap();
    assert_ne!(array(&params, "embed"), array(&other, "embed"));
    assert_ne!(
        array(&params, "layers/mlp/gate_proj"),
        array(&params, "layers/mlp/up_proj")
    );

    // Pinned: a seed must mean the same model after an upgrade of anything.
    let first = &array(&params, "embed").as_slice::<f32>()[..3];
    assert!(
        first
            .iter()
            .zip([0.00092699175f32, -0.009005579, 0.022015782])
            .all(|(v, pinned)| (v - pinned).abs() < 1e-8),
        "{first:?}"
    );

    let values = array(&params, "layers/mlp/gate_proj").as_slice::<f32>();
    let count = values.len() as f64;
    let moment = |power| {
        values
            .iter()
            .map(|&v| (f64::from(v) / 0.02).powi(power))
            .sum::<f64>()
            / count
    };
    // Four standard errors of 12288 normal values.
    assert!(moment(1).abs() < 4.0 / count.sqrt(), "mean {}", moment(1));
    assert!(
        (moment(2) - 1.0).abs() < 4.0 * (2.0 / count).sqrt(),
        "variance {}",
        moment(2)
    );
    assert!(
        (moment(4) - 3.0).abs() < 4.0 * (96.0 / count).sqrt(),
        "fourth moment {}",
        moment(4)
    );
    assert!(
        array(&params, "final_norm")
            .as_slice::<f32>()
            .iter()
            .all(|&v| v == 1.0)
    );

    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), &config, &params, DType::F32, None).unwrap();
    assert_eq!(load(dir.path(), &config).unwrap().params, params);
}
