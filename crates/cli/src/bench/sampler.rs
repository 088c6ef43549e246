//! The sampler on a model with random weights: tokens a second by the number of rows, prompts included.
//!
//! What bounds it is told beside it: at one row the bytes of weights that every step reads, at many the products.

use std::time::{Duration, Instant};

use ferrotune_graph::DType;
use ferrotune_models::{ModelConfig, init_params};
use ferrotune_program::Group;
use ferrotune_rollout::{Request, Sampler, SamplerConfig};
use serde_json::{Value, json};

use super::median;
use crate::args::{BenchSamplerArgs, ComputeArg};
use crate::device::Device;
use crate::failure::{Failure, OrFail};
use crate::machine;
use crate::model_folder;
use crate::terminal::{counted, print, say};

/// The shape of SmolLM2-135M.
const SMALL: &str = r#"{
    "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 100000.0,
    "tie_word_embeddings": true, "max_position_embeddings": 8192, "hidden_act": "silu", "initializer_range": 0.04
}"#;

const BATCHES: [usize; 3] = [1, 8, 32];

pub(crate) fn run(args: &BenchSamplerArgs) -> Result<(), Failure> {
    let model = match &args.model {
        Some(dir) => ModelConfig::load(dir).or_refuse()?,
        None => ModelConfig::parse(SMALL, "the built-in model").or_fail()?,
    };
    let batches = if args.batch.is_empty() {
        &BATCHES[..]
    } else {
        &args.batch
    };
    check_memory(args, &model, batches)?;
    let params = init_params(&model, 0).or_fail()?;
    let device = Device::single()?;
    say(device.describe());
    let weights = model_folder::upload(&device, &params)?;
    let dtypes = match args.compute_dtype {
        Some(one) => vec![one],
        None => vec![ComputeArg::Bf16, ComputeArg::F32],
    };
    let mut results = Vec::new();
    for dtype in dtypes {
        for &batch in batches {
            let measured = measure(args, &device, &model, &weights, dtype.dtype(), batch)?;
            if !args.json {
                show(&measured)?;
            }
            results.push(measured);
        }
    }
    if !args.json {
        return Ok(());
    }
    print(json!({
        "model": {"parameters": model.param_count(), "layers": model.num_hidden_layers},
        "prompt_tokens": args.prompt,
        "new_tokens": args.new_tokens,
        "temperature": args.temperature,
        "runs": args.runs,
        "results": results,
    }))
}

/// Refuses sizes of which what is always held is more than the machine has free: weights on the host and on the device, and for
/// every row keys and values of all its tokens, and a logit of each entry of the vocabulary.
fn check_memory(
    args: &BenchSamplerArgs,
    model: &ModelConfig,
    batches: &[usize],
) -> Result<(), Failure> {
    let most = batches.iter().copied().max().unwrap_or(1);
    let slots = args.prompt.saturating_add(args.new_tokens);
    let bytes = args
        .compute_dtype
        .map_or(DType::F32, ComputeArg::dtype)
        .bytes() as f64;
    let weights = 2.0 * 4.0 * model.param_count() as f64;
    let cache = bytes * machine::cached(model) * most as f64 * slots as f64;
    let logits = 4.0 * most as f64 * model.vocab_size as f64;
    machine::check_free(
        &format!(
            "the model and {} of {}",
            counted(most, "row"),
            counted(slots, "token")
        ),
        weights + cache + logits,
        "lower --batch, --prompt or --new-tokens, or name a smaller --model",
    )
}

fn measure(
    args: &BenchSamplerArgs,
    device: &Device,
    model: &ModelConfig,
    weights: &Group,
    compute: DType,
    batch: usize,
) -> Result<Value, Failure> {
    let config = SamplerConfig {
        batch,
        max_prompt_tokens: args.prompt,
        max_new_tokens: args.new_tokens,
        tokens_per_dispatch: args.tokens_per_dispatch,
        compute,
        stop_ids: vec![],
        adapter_scale: 1.0,
        routes: false,
        pad_id: 0,
    };
    let layout = weights.layout();
    let sampler =
        Sampler::new(&device.client, &device.rules, model, &[layout], config).or_fail()?;
    let request = |row: usize| Request {
        prompt: (0..args.prompt)
            .map(|i| ((i * 7919 + row * 104_729) % model.vocab_size) as u32)
            .collect(),
        seed: row as u64,
        temperature: args.temperature,
        max_new_tokens: args.new_tokens,
        ..Request::default()
    };
    let requests: Vec<Request> = (0..batch).map(request).collect();
    let mut times: Vec<Duration> = Vec::new();
    let begun = Instant::now();
    let ready = sampler.weights(&[weights]).or_fail()?;
    ready.wait().or_fail()?;
    let ready_seconds = begun.elapsed().as_secs_f64();
    // The first run, which does not count, has the memory made.
    for run in 0..=args.runs {
        let begun = Instant::now();
        sampler
            .generate(&ready, &requests, &mut |_, _| ())
            .or_fail()?;
        if run > 0 {
            times.push(begun.elapsed());
        }
    }
    let seconds = median(&times);
    let tokens = (batch * args.new_tokens) as f64;
    let parameters = model.param_count() as f64;
    let read = parameters * compute.bytes() as f64 * args.new_tokens as f64;
    // The table of embeddings is looked up in for the prompt, and multiplied with for new tokens only.
    let flops = 2.0 * parameters * tokens;
    Ok(json!({
        "compute_dtype": compute.to_string(),
        "batch": batch,
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "fastest_seconds": times.iter().min().map(Duration::as_secs_f64),
        "ready_seconds": ready_seconds,
        "weight_gigabytes_per_second": read / seconds / 1e9,
        "product_gigaflops_per_second": flops / seconds / 1e9,
    }))
}

fn show(measured: &Value) -> Result<(), Failure> {
    let number = |name: &str| measured[name].as_f64().unwrap_or(f64::NAN);
    print(format_args!(
        "{:5} batch {:3}: {:7.1} tokens/s   weights read at {:5.1} GB/s   products at {:6.1} GFLOP/s",
        measured["compute_dtype"].as_str().unwrap_or_default(),
        measured["batch"],
        number("tokens_per_second"),
        number("weight_gigabytes_per_second"),
        number("product_gigaflops_per_second"),
    ))
}
