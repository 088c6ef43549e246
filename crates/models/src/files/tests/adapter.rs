//! Adapters that PEFT wrote: read, written again, and refused where they are not what is built here.

use serde_json::{Value, json};

use super::*;
use crate::error::Error;
use crate::{Lora, load_adapter, save_adapter};

fn config(family: &str) -> ModelConfig {
    ModelConfig::load(fixture(family)).unwrap()
}

/// A copy of the adapter of `llama`, with some settings changed.
fn edited(changes: Value) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let source = fixture("llama").join("adapter");
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(source.join(name), copy.path().join(name)).unwrap();
    }
    let path = copy.path().join("adapter_config.json");
    let mut value: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    std::fs::write(&path, value.to_string()).unwrap();
    copy
}

#[test]
fn adapters_are_written_as_peft_wrote_them() {
    for family in ["llama", "qwen3_5_text"] {
        let config = config(family);
        let source = fixture(family).join("adapter");
        let read = load_adapter(&source, &config).unwrap();
        assert_eq!((read.lora.rank, read.lora.alpha), (3, 4.5));
        let out = tempfile::tempdir().unwrap();
        save_adapter(out.path(), &config, &read.lora, &read.params, family).unwrap();
        let file = "adapter_model.safetensors";
        assert_eq!(
            read_file(&source.join(file)),
            read_file(&out.path().join(file))
        );
        let again = load_adapter(out.path(), &config).unwrap();
        assert_eq!((again.lora, again.params), (read.lora, read.params));
    }
}

#[test]
fn the_prefix_of_a_multimodal_model_is_known() {
    let config = config("qwen3_5_text");
    let source = fixture("qwen3_5_text").join("adapter");
    let read = load_adapter(&source, &config).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let name = "adapter_config.json";
    std::fs::copy(source.join(name), copy.path().join(name)).unwrap();
    let tensors = read_file(&source.join("adapter_model.safetensors"));
    let longer = |name: String| name.replace("model.model.", "model.model.language_model.");
    let tensors: Tensors = tensors.into_iter().map(|(n, t)| (longer(n), t)).collect();
    write_file(&copy.path().join("adapter_model.safetensors"), &tensors);
    assert_eq!(
        load_adapter(copy.path(), &config).unwrap().params,
        read.params
    );
}

#[test]
fn what_would_change_the_numbers_is_refused_all_at_once() {
    let dir = edited(json!({
        "peft_type": "IA3", "bias": "all", "use_dora": true, "rank_pattern": {"q_proj": 4}, "r": 0, "lora_alpha": null,
        "target_modules": "q_.*", "modules_to_save": ["lm_head"],
    }));
    let error = load_adapter(dir.path(), &config("llama")).unwrap_err();
    let Error::AdapterFile { problems, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(problems.len(), 8, "{problems:#?}");
    for key in [
        "IA3",
        "\"all\"",
        "use_dora",
        "rank_pattern",
        "modules_to_save",
        "r must",
        "lora_alpha",
        "target_modules",
    ] {
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
    let dir = edited(json!({"r": 65, "target_modules": ["q_proj", "wq", "q_proj"], "bias": "all"}));
    let error = load_adapter(dir.path(), &config("llama")).unwrap_err();
    let Error::AdapterFile { path, problems } = &error else {
        panic!("{error}")
    };
    assert!(path.ends_with("adapter_config.json"));
    for (problem, part) in problems.iter().zip([
        "bias \"all\"",
        "target_modules: the model has no linear layer \"wq\"",
        "target_modules: the target \"q_proj\" is named more than once",
    ]) {
        assert!(problem.contains(part), "{part}: {problem}");
    }
    assert_eq!(problems.len(), 3, "{error}");
    let dir = edited(json!({"lora_dropout": 0.05}));
    let notes = load_adapter(dir.path(), &config("llama")).unwrap().notes;
    assert!(notes[0].contains("lora_dropout 0.05"), "{notes:?}");
}

#[test]
fn tensors_that_do_not_fit_are_all_listed() {
    let dir = edited(json!({"r": 4, "target_modules": ["q_proj", "v_proj", "k_proj"]}));
    let error = load_adapter(dir.path(), &config("llama")).unwrap_err();
    let Error::AdapterWeights { path, problems } = &error else {
        panic!("{error}")
    };
    assert!(path.ends_with("adapter_model.safetensors"));
    assert!(error.to_string().contains("adapter_config.json beside it"));
    assert!(!error.to_string().contains(" config.json"), "{error}");
    // q and v of two layers have another rank, k is missing, and down_proj is one too many.
    assert_eq!(problems.len(), 8 + 4 + 4, "{error}");
}

#[test]
fn a_rank_may_be_above_the_dimensions_of_a_layer() {
    let config = config("llama");
    let lora = Lora {
        rank: 65,
        alpha: 1.0,
        targets: vec!["k_proj".to_owned()],
        experts: false,
    };
    // 64 wide, with two key heads of 16.
    let params = crate::init_adapter(&config, &lora, 0).unwrap();
    let dims: Vec<&[usize]> = params.iter().map(|(spec, _)| &spec.dims[..]).collect();
    assert_eq!(dims, [[2, 64, 65], [2, 65, 32]]);
    let dir = tempfile::tempdir().unwrap();
    save_adapter(dir.path(), &config, &lora, &params, "llama").unwrap();
    let again = load_adapter(dir.path(), &config).unwrap();
    assert_eq!((again.lora, again.params), (lora, params));
}

/// Adapters of two layers of every expert and one layer of attention, with another value everywhere.
fn of_experts(config: &ModelConfig) -> (Lora, Vec<(ParamSpec, HostArray)>) {
    let targets = ["q_proj", "gate_proj", "down_proj"];
    let lora = Lora {
        rank: 3,
        alpha: 4.5,
        targets: targets.map(str::to_owned).to_vec(),
        experts: true,
    };
    let specs = config.adapter_params(&lora).unwrap().into_iter();
    let filled = |(i, spec): (usize, ParamSpec)| {
        let count: usize = spec.dims.iter().product();
        let values: Vec<f32> = (0..count).map(|n| (1000 * i + n) as f32).collect();
        let array = HostArray::from_slice(&spec.dims, &values).unwrap();
        (spec, array)
    };
    (lora, specs.enumerate().map(filled).collect())
}

#[test]
fn every_expert_has_adapters_of_its_own_under_the_names_of_peft() {
    // The second one has a shared expert besides, whose layers have the same names.
    for family in ["qwen3_moe", "qwen3_next"] {
        let config = config(family);
        let (lora, params) = of_experts(&config);
        let dir = tempfile::tempdir().unwrap();
        save_adapter(dir.path(), &config, &lora, &params, family).unwrap();
        let again = load_adapter(dir.path(), &config).unwrap();
        assert_eq!((again.lora, &again.params), (lora, &params), "{family}");

        let tensors = read_file(&dir.path().join("adapter_model.safetensors"));
        let prefix = "base_model.model.model.layers.1.mlp.experts.2.down_proj";
        let of = |path: &str| {
            let stack = config.stacks()[0].clone();
            let (place, repeat) = (1 % stack.block.len(), 1 / stack.block.len());
            let path = format!("{}/mlp/experts/{path}", stack.prefix(place));
            let found = params.iter().find(|(spec, _)| spec.path == path);
            let array = &found.unwrap_or_else(|| panic!("no {path}")).1;
            let size: usize = array.dims()[2..].iter().product();
            let begin = (repeat * config.experts.unwrap().count + 2) * size;
            let values = array.as_slice::<f32>()[begin..][..size].to_vec();
            (values, [array.dims()[2], array.dims()[3]])
        };
        for (part, path) in [
            ("lora_A", "down_proj_lora_a"),
            ("lora_B", "down_proj_lora_b"),
        ] {
            let tensor = &tensors[&format!("{prefix}.{part}.weight")];
            let (values, [from, to]) = of(path);
            assert_eq!(tensor.shape, [to, from], "{family} {part}");
            let disk = tensor.values();
            // The other way round on disk.
            let turned = |at: usize| values[at % from * to + at / from];
            let expected: Vec<f32> = (0..disk.len()).map(turned).collect();
            assert_eq!(disk, expected, "{family} {part}");
        }
    }
}

#[test]
fn experts_that_cannot_be_adapted_are_refused() {
    let lora = |targets: &[&str]| Lora {
        rank: 2,
        alpha: 1.0,
        targets: targets.iter().map(|it| (*it).to_owned()).collect(),
        experts: true,
    };
    let refused = |family: &str, targets: &[&str]| {
        let error = config(family).adapter_params(&lora(targets));
        error.unwrap_err().to_string()
    };
    assert!(refused("llama", &["up_proj"]).contains("no experts"));
    assert!(refused("qwen3_moe", &["q_proj"]).contains("gate_proj, up_proj, down_proj"));
    let dir = edited(json!({"target_parameters": ["mlp.experts.gate_up_proj"]}));
    let error = load_adapter(dir.path(), &config("llama")).unwrap_err();
    assert!(error.to_string().contains("read one by one"), "{error}");
}

#[test]
fn adapters_know_their_base() {
    let config = config("llama");
    let of = |base: Value| {
        let dir = edited(json!({ "base_model_name_or_path": base }));
        load_adapter(dir.path(), &config).unwrap()
    };
    let read = of(json!("owner/llama"));
    assert_eq!(read.base.as_deref(), Some("owner/llama"));
    assert_eq!(read.other_base(&fixture("llama")), None);
    let warning = of(json!("owner/other"))
        .other_base(&fixture("llama"))
        .unwrap();
    assert!(
        warning.contains("owner/other") && warning.contains("llama"),
        "{warning}"
    );
    for nothing in [Value::Null, json!(""), json!(7)] {
        assert_eq!(of(nothing).other_base(&fixture("llama")), None);
    }
}

#[test]
fn every_linear_layer_of_a_family_can_be_a_target() {
    for (family, expected) in [
        (
            "llama",
            "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj",
        ),
        ("qwen3_moe", "q_proj k_proj v_proj o_proj"),
        // The packed projections of the delta rule are none of PEFT's layers.
        (
            "qwen3_next",
            "out_proj gate_proj up_proj down_proj q_proj k_proj v_proj o_proj",
        ),
        (
            "qwen3_5_text",
            "in_proj_qkv in_proj_z in_proj_b in_proj_a out_proj gate_proj up_proj down_proj q_proj k_proj v_proj o_proj",
        ),
    ] {
        let config = config(family);
        assert_eq!(
            config.adapter_targets(false).join(" "),
            expected,
            "{family}"
        );
        let lora = Lora {
            rank: 2,
            alpha: 1.0,
            targets: config.adapter_targets(false),
            experts: false,
        };
        let params = crate::init_adapter(&config, &lora, 0).unwrap();
        for (spec, array) in params {
            let zero = array.as_slice::<f32>().iter().all(|v| *v == 0.0);
            assert_eq!(zero, spec.path.ends_with("_lora_b"), "{}", spec.path);
        }
    }
}
