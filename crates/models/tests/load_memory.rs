//! Memory while a model is read, in a process of its own: the most that it held, mapped pages of the files included.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use ferrotune_models::{ModelConfig, load};

/// A model of about 24 million parameters, most of them experts and vocabulary.
const CONFIG: &str = r#"{"model_type": "qwen3_5_moe_text", "hidden_size": 512, "num_hidden_layers": 4, "vocab_size": 12288,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 192, "shared_expert_intermediate_size": 192, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": false}"#;

/// Names and shapes on disk, with the experts of a layer in one tensor or apart.
fn tensors(fused: bool) -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![12288, 512]),
        ("model.norm.weight".to_owned(), vec![512]),
        ("lm_head.weight".to_owned(), vec![12288, 512]),
    ];
    for layer in 0..4 {
        let mut add = |name: &str, shape: &[usize]| {
            tensors.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[512]);
        add("post_attention_layernorm.weight", &[512]);
        if layer == 3 {
            add("self_attn.q_proj.weight", &[512, 512]);
            add("self_attn.k_proj.weight", &[128, 512]);
            add("self_attn.v_proj.weight", &[128, 512]);
            add("self_attn.o_proj.weight", &[512, 256]);
            add("self_attn.q_norm.weight", &[64]);
            add("self_attn.k_norm.weight", &[64]);
        } else {
            add("linear_attn.in_proj_qkv.weight", &[512, 512]);
            add("linear_attn.in_proj_z.weight", &[256, 512]);
            add("linear_attn.in_proj_b.weight", &[4, 512]);
            add("linear_attn.in_proj_a.weight", &[4, 512]);
            add("linear_attn.conv1d.weight", &[512, 1, 4]);
            add("linear_attn.A_log", &[4]);
            add("linear_attn.dt_bias", &[4]);
            add("linear_attn.norm.weight", &[64]);
            add("linear_attn.out_proj.weight", &[512, 256]);
        }
        add("mlp.gate.weight", &[8, 512]);
        add("mlp.shared_expert_gate.weight", &[1, 512]);
        for (side, shape) in [
            ("gate_proj", [192, 512]),
            ("up_proj", [192, 512]),
            ("down_proj", [512, 192]),
        ] {
            add(&format!("mlp.shared_expert.{side}.weight"), &shape);
            for expert in (0..8).filter(|_| !fused) {
                add(&format!("mlp.experts.{expert}.{side}.weight"), &shape);
            }
        }
        if fused {
            add("mlp.experts.gate_up_proj", &[8, 384, 512]);
            add("mlp.experts.down_proj", &[8, 512, 192]);
        }
    }
    tensors
}

/// Writes the model, value by value the same, without holding it.
fn write(dir: &Path, fused: bool, dtype: &str, value: &[u8]) {
    std::fs::write(dir.join("config.json"), CONFIG).unwrap();
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors(fused) {
        let start = end;
        end += shape.iter().product::<usize>() * value.len();
        let info =
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(name, info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = BufWriter::new(File::create(dir.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(&header).unwrap();
    let many = value.repeat(4096);
    let mut left = end;
    while left > 0 {
        let count = many.len().min(left);
        file.write_all(&many[..count]).unwrap();
        left -= count;
    }
    file.flush().unwrap();
}

/// The most memory that this process has held, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
    1024 * kilobytes.parse::<u64>().unwrap()
}

#[test]
fn reading_a_model_takes_hardly_more_than_the_model() {
    for (fused, dtype, value) in [
        (true, "BF16", &[0x80, 0x3f][..]),
        (false, "BF16", &[0x80, 0x3f]),
        (true, "F32", &1f32.to_le_bytes()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), fused, dtype, value);
        let config = ModelConfig::load(dir.path()).unwrap();
        let weights = load(dir.path(), &config).unwrap();
        let bytes = 4 * config.param_count();
        assert!(
            bytes > 90_000_000,
            "{bytes} bytes are too few to measure by"
        );
        let last = weights.params.last().unwrap().1.as_slice::<f32>();
        assert_eq!(last.last(), Some(&1.0));
        drop(weights);
        let ratio = peak() as f64 / bytes as f64;
        println!("{dtype}, fused {fused}: {ratio:.3} of {bytes} bytes");
        assert!(ratio < 1.3, "{dtype}, fused {fused}: {ratio}");
    }
}
