//! Files of multimodal models: the text part counts, and the whole has the last word where it says anything.

use super::*;

/// The fixture's configuration as the text part of a larger model's.
fn wrapped(family: &str, outer: Value) -> String {
    let inner: Value = serde_json::from_str(&config_of(family).text).unwrap();
    let kind = family.strip_suffix("_text").unwrap();
    let mut whole = json!({
        "architectures": ["ForConditionalGeneration"],
        "image_token_id": 5,
        "model_type": kind,
        "text_config": inner,
        "vision_config": {"depth": 27, "dtype": "bfloat16", "model_type": kind},
    });
    let outer = outer.as_object().unwrap().clone();
    whole.as_object_mut().unwrap().extend(outer);
    whole.to_string()
}

#[test]
fn the_text_part_is_the_model() {
    for (kind, family) in [
        ("qwen3_5_text", Family::Qwen35),
        ("qwen3_5_moe_text", Family::Qwen35Moe),
    ] {
        let config = ModelConfig::parse(&wrapped(kind, json!({})), "").unwrap();
        assert_eq!(config.family, family);
        assert_eq!(config.params(), config_of(kind).params());
        assert_eq!(config.rotary, config_of(kind).rotary);
    }
}

#[test]
fn the_whole_model_says_whether_the_head_is_tied() {
    let tied = |outer: Value, inner: Option<bool>| {
        let mut value: Value = serde_json::from_str(&wrapped("qwen3_5_text", outer)).unwrap();
        let text = value["text_config"].as_object_mut().unwrap();
        text.remove("tie_word_embeddings");
        text.extend(inner.map(|tied| ("tie_word_embeddings".to_owned(), json!(tied))));
        let config = ModelConfig::parse(&value.to_string(), "").unwrap();
        config.tie_word_embeddings
    };
    assert!(tied(json!({"tie_word_embeddings": true}), None));
    assert!(tied(json!({"tie_word_embeddings": true}), Some(false)));
    assert!(!tied(json!({"tie_word_embeddings": false}), Some(true)));
    assert!(tied(json!({}), Some(true)));
    assert!(!tied(json!({}), None));
}

#[test]
fn the_number_type_is_renamed_in_the_whole_and_in_the_text_part_alone() {
    let text = wrapped(
        "qwen3_5_text",
        json!({"torch_dtype": "float32", "dtype": null}),
    );
    let config = ModelConfig::parse(&text, "").unwrap();
    assert_eq!(config.to_json(DType::F32), text);
    let renamed: Value = serde_json::from_str(&config.to_json(DType::F16)).unwrap();
    assert_eq!(renamed["torch_dtype"], "float16");
    assert_eq!(renamed["text_config"]["dtype"], "float16");
    assert_eq!(renamed["vision_config"]["dtype"], "bfloat16");
    assert_eq!(renamed["dtype"], Value::Null);
    let mut back = renamed.clone();
    back["torch_dtype"] = json!("float32");
    back["text_config"]["dtype"] = json!("float32");
    assert_eq!(
        back.to_string(),
        text,
        "nothing else changes, nor its order"
    );
}

#[test]
fn quantised_weights_are_refused_wherever_the_file_says_so() {
    let quantised = json!({"quant_method": "fp8"});
    let outer = wrapped("qwen3_5_text", json!({"quantization_config": quantised}));
    let mut inner: Value = serde_json::from_str(&wrapped("qwen3_5_text", json!({}))).unwrap();
    inner["text_config"]["quantization_config"] = quantised;
    for text in [outer, inner.to_string()] {
        let found = problems(&text);
        assert!(found[0].starts_with("quantization_config {"), "{found:?}");
        assert_eq!(found.len(), 1);
    }
}

#[test]
fn problems_of_the_whole_and_of_the_part_are_listed_together() {
    let text = wrapped("qwen3_5_text", json!({"tie_word_embeddings": "yes"}));
    let text = text.replace("\"hidden_size\":64", "\"hidden_size\":0");
    let found = problems(&text);
    assert!(
        found.iter().any(|p| p.starts_with("hidden_size")),
        "{found:?}"
    );
    assert!(
        found.iter().any(|p| p.starts_with("tie_word_embeddings")),
        "{found:?}"
    );
    let absent = wrapped("qwen3_5_text", json!({ "text_config": null }));
    assert_eq!(problems(&absent), ["text_config is missing"]);
    // Only the families that are part of such models.
    let llama = json!({"model_type": "llava", "text_config": {"model_type": "llama"}});
    assert!(problems(&llama.to_string())[0].contains("\"llava\" is not supported"));
}
