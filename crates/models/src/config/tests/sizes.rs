//! Numbers of parameters of published models, from their configurations.

use super::*;

fn published(sizes: Value) -> ModelConfig {
    let mut config = json!({"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e7});
    config
        .as_object_mut()
        .unwrap()
        .extend(sizes.as_object().unwrap().clone());
    ModelConfig::parse(&config.to_string(), "published").unwrap()
}

fn dense() -> ModelConfig {
    published(
        json!({"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_936,
        "tie_word_embeddings": true}),
    )
}

fn sparse() -> ModelConfig {
    published(
        json!({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "vocab_size": 151_936, "intermediate_size": 6144}),
    )
}

fn hybrid(kind: &str, changes: Value) -> ModelConfig {
    let mut sizes = json!({"model_type": kind, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 248_320});
    sizes
        .as_object_mut()
        .unwrap()
        .extend(changes.as_object().unwrap().clone());
    published(sizes)
}

fn next() -> ModelConfig {
    let more = json!({"num_hidden_layers": 48, "num_experts": 512, "num_experts_per_tok": 10, "vocab_size": 151_936});
    hybrid("qwen3_next", more)
}

fn small() -> ModelConfig {
    let more = json!({"num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8});
    hybrid("qwen3_5_moe_text", more)
}

fn large() -> ModelConfig {
    let more = json!({"hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32, "num_experts": 512,
        "num_experts_per_tok": 10, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
        "linear_num_value_heads": 64});
    hybrid("qwen3_5_moe_text", more)
}

#[test]
fn totals_are_those_of_the_published_models() {
    for (config, total) in [
        (dense(), 596_049_920),
        (sparse(), 30_532_122_624),
        (next(), 79_674_391_296),
        (small(), 34_660_610_688),
        (large(), 396_346_350_336),
    ] {
        assert_eq!(config.param_count(), total, "{:?}", config.family);
    }
}

#[test]
fn a_token_meets_its_experts_and_everything_else() {
    assert_eq!(dense().active_param_count(), 596_049_920);
    for (config, rounded) in [(next(), 3.87e9), (small(), 3.45e9), (large(), 17.35e9)] {
        let active = config.active_param_count() as f64;
        assert!((active - rounded).abs() < 0.005e9, "{active} {rounded}");
    }
    // 120 of 128 experts of three matrices in 48 layers stay out.
    let idle = 120 * 3 * 2048 * 768 * 48;
    assert_eq!(sparse().active_param_count(), sparse().param_count() - idle);
}

/// Values of one layer's parameters whose path begins so.
fn of_layer(config: &ModelConfig, prefix: &str) -> usize {
    let params = config.params();
    let mine = params.iter().filter(|spec| spec.path.starts_with(prefix));
    mine.map(|spec| spec.dims[1..].iter().product::<usize>())
        .sum()
}

#[test]
fn parts_of_a_layer_have_their_sizes() {
    let config = large();
    assert_eq!(of_layer(&config, "layers/3/attn/"), 104_858_112);
    assert_eq!(of_layer(&config, "layers/0/delta/"), 118_014_208);
    assert_eq!(of_layer(&config, "layers/2/mlp/"), 6_457_135_104);
    assert_eq!(config.stacks().len(), 1);
    assert_eq!(config.stacks()[0].repeats, 15);
}
