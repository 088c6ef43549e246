//! What was found, as one JSON object. What is not there is null.

use ferrotune_models::{Feed, Mixer, ModelConfig, RotaryScaling, Survey};
use ferrotune_text::Tokenizer;
use serde_json::{Map, Value, json};

use super::{Found, special, system};

pub(super) fn of(found: &Found) -> Value {
    let model = &found.model;
    let layer = |(kind, count): (ferrotune_models::LayerKind, usize)| {
        let mixer = match kind.mixer {
            Mixer::Attention => "attention",
            Mixer::Delta => "delta_rule",
        };
        let feed = match kind.feed {
            Feed::Dense => "dense",
            Feed::Experts => "experts",
        };
        json!({"mixer": mixer, "feed": feed, "count": count})
    };
    let layers: Vec<Value> = found.kinds().into_iter().map(layer).collect();
    let tokenizer = found.tokenizer.as_ref();
    json!({
        "family": model.family.model_type(),
        "parameters": model.param_count(),
        "active_parameters": model.active_param_count(),
        "layer_count": model.num_hidden_layers,
        "layers": layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "tied": model.tie_word_embeddings,
        "attention": {
            "heads": model.num_attention_heads,
            "kv_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
        },
        "delta_rule": model.delta.map(|delta| json!({
            "key_heads": delta.key_heads,
            "value_heads": delta.value_heads,
            "key_dim": delta.key_dim,
            "value_dim": delta.value_dim,
            "taps": delta.taps,
        })),
        "experts": model.experts.map(|experts| json!({
            "count": experts.count,
            "top_k": experts.top_k,
            "width": experts.width,
            "shared_width": experts.shared,
        })),
        "rotary": rotary(model),
        "longest": model.longest().map(|it| it.tokens),
        "weights": found.weights.as_ref().map(|weights| weights_of(weights, found.bytes())),
        "tokenizer": tokenizer.map(tokenizer_of),
        "chat_template": tokenizer.and_then(Tokenizer::chat_template).map(|template| json!({
            "system_message": system::default_message(template),
        })),
    })
}

fn rotary(model: &ModelConfig) -> Value {
    let rotary = &model.rotary;
    let (kind, factor, original) = match rotary.scaling {
        RotaryScaling::Default => ("default", None, None),
        RotaryScaling::Linear { factor } => ("linear", Some(factor), None),
        RotaryScaling::Llama3 {
            factor, original, ..
        } => ("llama3", Some(factor), Some(original)),
        RotaryScaling::Yarn {
            factor, original, ..
        } => ("yarn", Some(factor), Some(original)),
        RotaryScaling::LongRope { original, .. } => ("longrope", None, Some(original)),
    };
    json!({
        "theta": rotary.theta,
        "dims": rotary.dims,
        "scaling": kind,
        "factor": factor,
        "original_longest": original,
        "amplitude": rotary.amplitude(),
    })
}

fn weights_of(weights: &Survey, bytes: u64) -> Value {
    let files = weights.files.iter().map(|(path, bytes)| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        json!({"name": name, "bytes": bytes})
    });
    let types: Vec<String> = weights.stored.iter().map(ToString::to_string).collect();
    json!({
        "dtypes": types,
        "bytes": bytes,
        "files": files.collect::<Vec<_>>(),
        "unused": weights.unused,
    })
}

fn tokenizer_of(tokenizer: &Tokenizer) -> Value {
    let id = |id: Option<u32>| json!(id);
    let tokens = special(tokenizer)
        .into_iter()
        .map(|(_, id, token)| (id.to_string(), json!(token)));
    json!({
        "vocab_size": tokenizer.vocab_size(),
        "bos_id": id(tokenizer.bos_id()),
        "eos_ids": tokenizer.eos_ids(),
        "pad_id": id(tokenizer.pad_id()),
        "special_tokens": tokens.collect::<Map<_, _>>(),
    })
}
