//! Tests of `config.json`: what is read, what is refused, and that everything wrong is listed at once.

mod layers;
mod multimodal;
mod parts;
mod root_faults;
mod rotary;
mod sizes;

use serde_json::{Value, json};

use super::*;
use crate::testing::fixture;

fn config_of(family: &str) -> ModelConfig {
    ModelConfig::load(fixture(family)).unwrap()
}

/// The fixture's configuration with some keys replaced; a null removes the key.
fn edited(family: &str, changes: Value) -> String {
    let mut value: Value = serde_json::from_str(&config_of(family).text).unwrap();
    let object = value.as_object_mut().unwrap();
    for (key, change) in changes.as_object().unwrap() {
        object.remove(key);
        if !change.is_null() {
            object.insert(key.clone(), change.clone());
        }
    }
    value.to_string()
}

fn problems(text: &str) -> Vec<String> {
    match ModelConfig::parse(text, "test.json") {
        Err(Error::Config { origin, problems }) => {
            assert_eq!(origin, "test.json");
            problems
        }
        other => panic!("expected a configuration error, got {other:?}"),
    }
}

#[test]
fn reads_the_fixtures() {
    let llama = config_of("llama");
    assert_eq!(llama.family, Family::Llama);
    assert!(llama.tie_word_embeddings);
    assert_eq!(llama.rotary.theta, 1e5);
    let qwen = config_of("qwen3");
    assert_eq!(qwen.family, Family::Qwen3);
    assert_eq!(
        (
            qwen.vocab_size,
            qwen.hidden_size,
            qwen.intermediate_size,
            qwen.num_hidden_layers
        ),
        (128, 64, 96, 2)
    );
    assert_eq!(
        (
            qwen.num_attention_heads,
            qwen.num_key_value_heads,
            qwen.head_dim
        ),
        (4, 2, 16)
    );
    assert_eq!(
        (qwen.rms_norm_eps, qwen.rotary.theta, qwen.initializer_range),
        (1e-6, 1e6, 0.02)
    );
    assert!(!qwen.tie_word_embeddings);
    // The number that transformers reports for this fixture.
    assert_eq!(qwen.param_count(), 78208);
}

#[test]
fn reads_the_old_rotary_keys() {
    let text = edited(
        "llama",
        json!({"rope_parameters": null, "rope_theta": 5e5, "rope_scaling": null}),
    );
    assert_eq!(ModelConfig::parse(&text, "").unwrap().rotary.theta, 5e5);
    let none = edited("llama", json!({"rope_parameters": null}));
    assert_eq!(ModelConfig::parse(&none, "").unwrap().rotary.theta, 1e4);
    let both = edited("llama", json!({"rope_theta": 5e5}));
    assert_eq!(
        problems(&both),
        ["rope_theta is 500000 at the top and 100000 in rope_parameters: keep one"]
    );
}

#[test]
fn fills_in_what_transformers_would() {
    let absent = json!({"head_dim": null, "num_key_value_heads": null, "num_attention_heads": 32, "rms_norm_eps": null});
    let llama = ModelConfig::parse(&edited("llama", absent.clone()), "").unwrap();
    assert_eq!(
        (
            llama.head_dim,
            llama.num_key_value_heads,
            llama.rms_norm_eps
        ),
        (2, 32, 1e-6)
    );
    let qwen = ModelConfig::parse(&edited("qwen3", absent), "").unwrap();
    assert_eq!((qwen.head_dim, qwen.num_key_value_heads), (128, 32));
    // A null is not the same as absent: there the head size and count follow from the others.
    let nulls = edited("qwen3", json!({})).replace("\"head_dim\":16", "\"head_dim\":null");
    assert_eq!(ModelConfig::parse(&nulls, "").unwrap().head_dim, 16);
    let nulls = nulls.replace("value_heads\":2", "value_heads\":null");
    assert_eq!(
        ModelConfig::parse(&nulls, "").unwrap().num_key_value_heads,
        4
    );
}

#[test]
fn lists_every_problem_at_once() {
    let text = edited(
        "qwen3",
        json!({
            "use_sliding_window": true,
            "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": -1, "factor": 4.0, "partial_rotary_factor": 2},
            "layer_types": ["full_attention", "sliding_attention"],
            "quantization_config": {"quant_method": "fp8"},
            "attention_dropout": 0.1,
            "vocab_size": "many",
            "intermediate_size": null,
            "hidden_size": 0,
            "num_key_value_heads": 3,
            "tie_word_embeddings": 1,
            "rms_norm_eps": 0,
        }),
    );
    let problems = problems(&text);
    for expected in [
        "hidden_size must be a whole number from 1 to 2147483647, found 0",
        "num_attention_heads (4) must be a multiple of num_key_value_heads (3)",
        "vocab_size must be a whole number from 1 to 2147483647, found \"many\"",
        "intermediate_size is missing",
        "rms_norm_eps must be above 0, found 0",
        "rope_parameters: rotary scaling \"dynamic\" depends on the length of the text, which differs among the documents of a row; supported: default, linear, llama3, yarn, longrope",
        "partial_rotary_factor must be above 0 and at most 1, found 2",
        "rope_parameters.rope_theta must be a number above 0, found -1",
        "tie_word_embeddings must be true or false, found 1",
        "use_sliding_window is true: sliding windows in attention are not supported",
        "hidden_act \"gelu\" is not supported, only \"silu\"",
        "attention_dropout 0.1 is not supported, only 0",
        "quantization_config {\"quant_method\":\"fp8\"} is not supported: use weights that are not quantised",
        "layer_types [\"full_attention\",\"sliding_attention\"] is not supported, only \"full_attention\" for every layer",
    ] {
        assert!(
            problems.iter().any(|p| p == expected),
            "missing {expected:?} in {problems:#?}"
        );
    }
    assert_eq!(problems.len(), 14, "{problems:#?}");
}

#[test]
fn names_each_kind_of_rotary_scaling() {
    for (key, kind, reason) in [
        ("rope_parameters", "dynamic", "depends on the length"),
        ("rope_scaling", "spiral", "is not supported"),
    ] {
        let scaling = json!({"rope_type": kind, "factor": 2.0});
        let found = problems(&edited("llama", json!({ key: scaling })));
        let start = format!("{key}: rotary scaling \"{kind}\" {reason}");
        assert!(found[0].starts_with(&start), "{found:?}");
        assert_eq!(found.len(), 1);
    }
    let incomplete = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}});
    assert_eq!(
        problems(&edited("llama", incomplete)),
        [
            "rope_scaling.low_freq_factor is missing",
            "rope_scaling.high_freq_factor is missing",
        ]
    );
    let bare = problems(&edited("llama", json!({"rope_scaling": {"factor": 2.0}})));
    assert!(bare[0].contains("no rope_type"), "{bare:?}");
    let nested = problems(&edited(
        "llama",
        json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}),
    ));
    assert!(
        nested[0].starts_with("rope_parameters.full_attention"),
        "{nested:?}"
    );
}

#[test]
fn refuses_impossible_head_sizes() {
    let odd = problems(&edited("llama", json!({"head_dim": 15})));
    assert_eq!(odd, ["head_dim (15) must be even"]);
    let indivisible = problems(&edited(
        "llama",
        json!({"head_dim": null, "num_attention_heads": 6}),
    ));
    assert_eq!(
        indivisible,
        ["hidden_size (64) must be a multiple of num_attention_heads (6), or give head_dim"]
    );
    let odd_quotient = problems(&edited(
        "llama",
        json!({"head_dim": null, "num_attention_heads": 64}),
    ));
    assert_eq!(
        odd_quotient,
        ["hidden_size / num_attention_heads (1) must be even"]
    );
    assert_eq!(
        problems(&edited("llama", json!({"num_hidden_layers": 5000}))),
        ["num_hidden_layers must be a whole number from 1 to 4096, found 5000"]
    );
}

#[test]
fn an_unknown_family_lists_the_known_ones() {
    let found = problems(&edited(
        "llama",
        json!({"model_type": "mamba", "hidden_size": 0}),
    ));
    assert_eq!(
        found,
        [
            "model_type \"mamba\" is not supported; supported: llama, qwen2, qwen3, qwen3_moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text"
        ]
    );
    let found = problems(&edited("llama", json!({"model_type": null})));
    assert_eq!(
        found,
        [
            "model_type is missing; supported: llama, qwen2, qwen3, qwen3_moe, qwen3_next, qwen3_5_text, qwen3_5_moe_text"
        ]
    );
    assert_eq!(problems("[1]"), ["it must be a JSON object, found [1]"]);
}

#[test]
fn text_that_is_not_json_says_where() {
    let error = ModelConfig::parse("{\"a\": 1,\n oops}", "somewhere/config.json").unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("somewhere/config.json") && text.contains("line 2"),
        "{text}"
    );
}

#[test]
fn an_absent_file_is_named() {
    let error = ModelConfig::load("no-such-folder").unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read no-such-folder/config.json"),
        "{error}"
    );
}

#[test]
fn the_text_is_kept_unless_the_number_type_changes() {
    let config = config_of("qwen3");
    assert_eq!(config.to_json(DType::F32), config.text);
    let changed = config.to_json(DType::BF16);
    assert_eq!(
        changed
            .replace("\"bfloat16\"", "\"float32\"")
            .replace("1e-6", "1e-06")
            .trim(),
        config.text.trim()
    );
    let old = edited("qwen3", json!({"dtype": null, "torch_dtype": "float32"}));
    let old = ModelConfig::parse(&old, "").unwrap().to_json(DType::F16);
    assert_eq!(
        serde_json::from_str::<Value>(&old).unwrap()["torch_dtype"],
        "float16"
    );
    let silent = edited("qwen3", json!({"dtype": null}));
    assert_eq!(
        ModelConfig::parse(&silent, "")
            .unwrap()
            .to_json(DType::BF16),
        silent
    );
}
