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
    let dir = edited(json!({"target_modules": ["q_proj", "wq"]}));
    let error = load_adapter(dir.path(), &config("llama")).unwrap_err();
    assert!(matches!(error, Error::Adapter { .. }) && error.to_string().contains("\"wq\""));
    let dir = edited(json!({"lora_dropout": 0.05}));
    let notes = load_adapter(dir.path(), &config("llama")).unwrap().notes;
    assert!(notes[0].contains("lora_dropout 0.05"), "{notes:?}");
}

#[test]
fn tensors_that_do_not_fit_are_all_listed() {
    let dir = edited(json!({"r": 4, "target_modules": ["q_proj", "v_proj", "k_proj"]}));
    let error = load_adapter(dir.path(), &config("llama")).unwrap_err();
    let Error::Weights { problems, .. } = &error else {
        panic!("{error}")
    };
    // q and v of two layers have another rank, k is missing, and down_proj is one too many.
    assert_eq!(problems.len(), 8 + 4 + 4, "{error}");
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
