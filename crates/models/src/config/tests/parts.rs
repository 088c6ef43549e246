//! Sizes of experts and of the delta rule.

use super::*;

fn experts(family: &str, changes: Value) -> ExpertSizes {
    let config = ModelConfig::parse(&edited(family, changes), "").unwrap();
    config.experts.unwrap()
}

#[test]
fn the_number_of_experts_has_two_names() {
    assert_eq!(experts("qwen3_moe", json!({})).count, 4);
    let other = json!({"num_experts": null, "num_local_experts": 8});
    assert_eq!(experts("qwen3_moe", other).count, 8);
    let both = json!({"num_experts": 4, "num_local_experts": 4});
    assert_eq!(experts("qwen3_moe", both).count, 4);
    let found = |changes| problems(&edited("qwen3_moe", changes));
    assert_eq!(
        found(json!({"num_experts": 4, "num_local_experts": 8})),
        ["num_experts is 4, but num_local_experts is 8: keep one"]
    );
    assert_eq!(
        found(json!({"num_experts": null, "num_local_experts": null, "num_experts_per_tok": 1})),
        ["num_experts is missing"]
    );
    assert_eq!(
        found(json!({"num_experts_per_tok": 5})),
        ["num_experts_per_tok (5) must be at most num_local_experts (4)"]
    );
    assert_eq!(
        found(json!({"num_experts_per_tok": null, "moe_intermediate_size": null})),
        [
            "num_experts_per_tok is missing",
            "moe_intermediate_size is missing"
        ]
    );
    assert_eq!(
        problems(&edited(
            "qwen3_next",
            json!({"shared_expert_intermediate_size": null})
        )),
        ["shared_expert_intermediate_size is missing"]
    );
}

#[test]
fn weights_add_up_to_one_where_the_family_has_it_so() {
    let normalize =
        |family, value: Value| experts(family, json!({ "norm_topk_prob": value })).normalize;
    assert!(!normalize("qwen3_moe", Value::Null));
    assert!(normalize("qwen3_moe", json!(true)));
    assert!(normalize("qwen3_next", Value::Null));
    assert!(!normalize("qwen3_next", json!(false)));
    // There is no such key in this family.
    assert!(normalize("qwen3_5_moe_text", json!(false)));
}

#[test]
fn only_families_that_have_a_part_have_its_sizes() {
    for (family, delta, experts, shared) in [
        ("llama", false, false, false),
        ("qwen2", false, false, false),
        ("qwen3", false, false, false),
        ("qwen3_moe", false, true, false),
        ("qwen3_next", true, true, true),
        ("qwen3_5_text", true, false, false),
        ("qwen3_5_moe_text", true, true, true),
    ] {
        let config = config_of(family);
        let has_shared = config.experts.is_some_and(|sizes| sizes.shared.is_some());
        assert_eq!(
            (config.delta.is_some(), config.experts.is_some(), has_shared),
            (delta, experts, shared),
            "{family}"
        );
        assert_eq!(config.max_position_embeddings, Some(512), "{family}");
    }
}

#[test]
fn sizes_of_the_delta_rule_are_read_or_those_of_the_family() {
    let sizes = config_of("qwen3_next").delta.unwrap();
    assert_eq!((sizes.key_heads, sizes.value_heads, sizes.taps), (2, 4, 4));
    assert_eq!(
        (sizes.keys(), sizes.values(), sizes.channels()),
        (32, 64, 128)
    );
    let absent = json!({"linear_num_key_heads": null, "linear_num_value_heads": null, "linear_key_head_dim": null,
        "linear_value_head_dim": null, "linear_conv_kernel_dim": null});
    let text = edited("qwen3_next", absent);
    assert_eq!(
        ModelConfig::parse(&text, "").unwrap().delta,
        Some(DeltaSizes {
            key_heads: 16,
            value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            taps: 4
        })
    );
    assert_eq!(
        problems(&edited("qwen3_next", json!({"linear_num_value_heads": 5}))),
        ["linear_num_value_heads (5) must be a multiple of linear_num_key_heads (2)"]
    );
}

#[test]
fn biases_are_those_of_the_family() {
    let biases = |family, value: bool| {
        let changes = json!({"attention_bias": value, "mlp_bias": value});
        let config = ModelConfig::parse(&edited(family, changes), "").unwrap();
        (config.qkv_bias, config.output_bias, config.mlp_bias)
    };
    assert_eq!(biases("llama", true), (true, true, true));
    assert_eq!(biases("llama", false), (false, false, false));
    assert_eq!(biases("qwen3", true), (true, true, false));
    assert_eq!(biases("qwen2", true), (true, false, false));
    assert_eq!(biases("qwen2", false), (true, false, false));
    assert_eq!(
        problems(&edited("qwen3_next", json!({"attention_bias": true}))),
        ["attention_bias is true: biases in gated attention are not supported"]
    );
}
