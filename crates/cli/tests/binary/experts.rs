//! A model with experts from recipe to metrics.

use serde_json::json;

use crate::tiny::Tiny;

/// The tiny world with a model of two layers, with four experts each.
fn with_experts() -> Tiny {
    let tiny = Tiny::new();
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 24, "hidden_size": 32,
        "intermediate_size": 48, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "initializer_range": 0.08, "attention_bias": false,
        "eos_token_id": 1, "bos_token_id": null, "pad_token_id": 0, "torch_dtype": "float32"
    });
    tiny.write("model/config.json", &config.to_string());
    tiny
}

const SHORT: &str =
    "warmup.steps=1 rl.steps=1 eval.max_problems=2 compute_dtype=f32 rl.updates_per_step=1";

#[test]
fn what_experts_drop_is_a_metric_of_each_layer() {
    let tiny = with_experts();
    let run = format!("train recipe.toml run.dir=out router.capacity_factor=0.25 {SHORT}");
    tiny.run(&run).well();
    let metrics = tiny.metrics("out");
    for line in metrics.iter().filter(|it| it["step"] != 0) {
        for layer in 0..2 {
            let dropped = line[&format!("experts/dropped/{layer}")].as_u64();
            assert!(dropped.is_some_and(|n| n > 0), "{line:?}");
        }
    }
}

#[test]
fn targets_that_are_not_the_model_s_are_refused_with_what_to_write() {
    let (tiny, dense) = (with_experts(), Tiny::new());
    for (tiny, words, parts) in [
        (
            &tiny,
            "lora.targets=[\"q_proj\",\"up_proj\"]",
            ["\"up_proj\"", "`lora.experts = \"each\"`"],
        ),
        (
            &tiny,
            "lora.experts=each lora.targets=[\"q_proj\"]",
            ["no layer of the experts", "gate_proj, up_proj"],
        ),
        (
            &tiny,
            "lora.experts=each lora.targets=[\"experts.up_proj\"]",
            ["experts.up_proj", "write \"up_proj\""],
        ),
        (
            &dense,
            "lora.targets=[\"mlp.experts.up_proj\"]",
            ["experts.up_proj", "write \"up_proj\""],
        ),
        (
            &dense,
            "lora.targets=[\"in_proj_qkvz\"]",
            ["in_proj_qkvz", "leave that out"],
        ),
        (
            &dense,
            "lora.targets=[\"up_prj\"]",
            ["up_prj", "did you mean \"up_proj\""],
        ),
        (
            &dense,
            "lora.experts=each",
            ["no experts to adapt", "leave `lora.experts` out"],
        ),
    ] {
        tiny.write("model/model.safetensors", "");
        tiny.run(&format!(
            "train recipe.toml model.init=pretrained lora.rank=2 {words}"
        ))
        .refused(2, &parts);
    }
}

#[test]
fn tokens_go_where_the_sampler_sent_them_and_every_expert_has_adapters() {
    let tiny = with_experts();
    tiny.run("train recipe.toml run.dir=base rl.steps=0 warmup.steps=1")
        .well();
    let base = "train recipe.toml model.path=base/model model.init=pretrained";
    let run = format!(
        "{base} run.dir=out router.routes=sampler router.load_balance=0.01 lora.rank=2 lora.experts=each {SHORT}"
    );
    let done = tiny.run(&run).well();
    assert!(done.err.contains("of every expert too"), "{}", done.err);
    let metrics = tiny.metrics("out");
    let last = metrics.last().unwrap();
    let difference = last["sampling/sampling_logp_difference/max"].as_f64();
    assert!(difference.is_some_and(|it| it < 1e-5), "{last:?}");
    assert!(last["load_balance"].as_f64().is_some_and(|it| it > 0.0));
    let weights = std::fs::read(tiny.path("out/adapter/adapter_model.safetensors")).unwrap();
    let name = b"base_model.model.model.layers.1.mlp.experts.3.up_proj.lora_B.weight";
    assert!(weights.windows(name.len()).any(|it| it == name));
}
