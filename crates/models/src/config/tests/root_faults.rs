//! What cannot be read is reported once, and nothing that would follow from the harmless value in its place.

use super::*;

/// Values that no size can have, with how messages show them; `None` takes the key out.
fn bad_sizes() -> [Option<Value>; 5] {
    [
        None,
        Some(json!(0)),
        Some(json!(-1)),
        Some(json!("many")),
        Some(json!(1.5)),
    ]
}

#[test]
fn each_broken_size_is_the_only_problem() {
    for family in Family::ALL {
        let family = family.model_type();
        let whole: Value = serde_json::from_str(&config_of(family).text).unwrap();
        for (key, old) in whole.as_object().unwrap() {
            // Token ids say nothing of the model's shape.
            if !old.is_u64() || key.ends_with("_id") {
                continue;
            }
            for bad in bad_sizes() {
                let Some(bad) = bad else { continue };
                let parsed =
                    ModelConfig::parse(&edited(family, json!({ key.as_str(): bad })), "test.json");
                let Err(error) = parsed else { continue };
                let Error::Config { problems, .. } = &error else {
                    panic!("{error}")
                };
                assert_eq!(problems.len(), 1, "{family} {key} {bad}: {error}");
                assert!(
                    problems[0].starts_with(&format!("{key} must be"))
                        && problems[0].ends_with(&format!("found {bad}")),
                    "{family} {key}: {error}"
                );
            }
        }
    }
}

#[test]
fn each_missing_size_is_the_only_problem() {
    for family in Family::ALL {
        let family = family.model_type();
        let whole: Value = serde_json::from_str(&config_of(family).text).unwrap();
        for key in whole.as_object().unwrap().keys() {
            let parsed = ModelConfig::parse(&edited(family, json!({ key.as_str(): null })), "");
            if let Err(Error::Config { problems, .. }) = parsed {
                assert_eq!(problems.len(), 1, "{family} {key}: {problems:?}");
                // The older of its two names is asked for.
                let key = key.replace("num_local_experts", "num_experts");
                let named = problems[0].contains(&key);
                assert!(named, "{family} {key}: {problems:?}");
                assert!(!problems[0].contains("(1)"), "{problems:?}");
            }
        }
    }
}

#[test]
fn a_number_in_two_places_is_judged_once_and_not_compared_with_what_it_is_not() {
    let theta =
        json!({"rope_theta": -5, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}});
    assert_eq!(
        problems(&edited("llama", theta)),
        ["rope_theta must be above 0, found -5"]
    );
    let linear = |factor: Value| json!({"rope_type": "linear", "factor": factor});
    let both = json!({"rope_parameters": linear(json!("two")), "rope_scaling": linear(json!(3.0))});
    assert_eq!(
        problems(&edited("llama", both)),
        ["rope_parameters.factor must be a number above 0, found \"two\""]
    );
    // Read for the scaling as well as for itself.
    let yarn = json!({"max_position_embeddings": "long", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}});
    let found = problems(&edited("llama", yarn));
    assert_eq!(found.len(), 1, "{found:?}");
    let crossed = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": [], "high_freq_factor": 0.5,
        "original_max_position_embeddings": 64});
    assert_eq!(
        problems(&edited("llama", json!({ "rope_scaling": crossed }))),
        ["rope_scaling.low_freq_factor must be a number above 0, found []"]
    );
    let experts = json!({"num_experts": "all", "num_local_experts": 4});
    assert_eq!(
        problems(&edited("qwen3_moe", experts)),
        ["num_experts must be a whole number from 1 to 2147483647, found \"all\""]
    );
}

#[test]
fn layers_that_could_not_be_counted_are_not_counted_against_others() {
    let lists = json!({"num_hidden_layers": 0, "mlp_only_layers": [3], "layer_types": null, "intermediate_size": null});
    assert_eq!(
        problems(&edited("qwen3_moe", lists)),
        ["num_hidden_layers must be a whole number from 1 to 4096, found 0"]
    );
    let step = json!({"decoder_sparse_step": 0, "intermediate_size": null});
    let found = problems(&edited("qwen3_moe", step));
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_default_is_called_one() {
    let absent = json!({"num_key_value_heads": null, "num_attention_heads": 4});
    assert_eq!(
        problems(&edited("qwen3", absent)),
        ["num_attention_heads (4) must be a multiple of num_key_value_heads (32 by default)"]
    );
}
