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
        "r: the rank 65 is above the smaller dimension of q_proj (64)",
    ]) {
        assert!(problem.contains(part), "{part}: {problem}");
    }
    assert_eq!(problems.len(), 4, "{error}");
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
fn a_rank_may_be_as_large_as_the_smaller_dimension_of_every_target() {
    let config = config("llama");
    let lora = |rank, target: &str| Lora {
        rank,
        alpha: 1.0,
        targets: vec![target.to_owned()],
    };
    // Two key heads of 16.
    for (target, smaller) in [("q_proj", 64), ("k_proj", 32), ("down_proj", 64)] {
        assert!(config.adapter_params(&lora(smaller, target)).is_ok());
        let error = config.adapter_params(&lora(smaller + 1, target));
        let text = error.unwrap_err().to_string();
        assert!(text.contains(&format!("{target} ({smaller})")), "{text}");
    }
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
        assert_eq!(config.adapter_targets().join(" "), expected, "{family}");
        let lora = Lora {
            rank: 2,
            alpha: 1.0,
            targets: config.adapter_targets(),
        };
        let params = crate::init_adapter(&config, &lora, 0).unwrap();
        for (spec, array) in params {
            let zero = array.as_slice::<f32>().iter().all(|v| *v == 0.0);
            assert_eq!(zero, spec.path.ends_with("_lora_b"), "{}", spec.path);
        }
    }
}
