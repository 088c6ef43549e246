//! `config.json`: what a model is made of, and whether this crate can build it.
//!
//! A setting that would change the numbers and is not supported is an error, and all of them are listed together. Settings that
//! change nothing here (token ids, cache flags, the library version) are kept in the text and otherwise left alone.
//! Old (`rope_theta`) and new (`rope_parameters`) spellings are read. No tensors here.

mod family;
mod fields;
mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use ferrotune_pjrt::DType;
use serde_json::Value;

pub use self::family::Family;
use self::fields::{Fields, brief};
use crate::error::{Error, Result};

/// Name of the configuration file in a model folder.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// Settings of one decoder model, read from a Hugging Face `config.json`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The model family.
    pub family: Family,
    /// `V`: rows of the embedding.
    pub vocab_size: usize,
    /// `D`: width of the residual stream.
    pub hidden_size: usize,
    /// `F`: width of the feed-forward block.
    pub intermediate_size: usize,
    /// `L`: decoder layers.
    pub num_hidden_layers: usize,
    /// `H`: query heads.
    pub num_attention_heads: usize,
    /// `K`: key and value heads; divides `H`.
    pub num_key_value_heads: usize,
    /// Size of one head; even.
    pub head_dim: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the head is the transposed embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of fresh matrices.
    pub initializer_range: f32,
    /// The file as it was read, for writing it back unchanged.
    text: String,
}

impl ModelConfig {
    /// Reads `config.json` in the folder `dir`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Json`], or [`Error::Config`] with every setting that is missing, of a wrong type, or not supported.
    pub fn load(dir: impl AsRef<Path>) -> Result<Self> {
        let path = dir.as_ref().join(CONFIG_FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads the text of a `config.json`; `origin` says in messages where it came from.
    ///
    /// # Errors
    /// As [`ModelConfig::load`].
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).map_err(|e| Error::Json {
            origin: origin.to_owned(),
            message: e.to_string(),
        })?;
        let refuse = |problems| Error::Config {
            origin: origin.to_owned(),
            problems,
        };
        let Value::Object(object) = &value else {
            return Err(refuse(vec![format!(
                "it must be a JSON object, found {}",
                brief(&value)
            )]));
        };
        let mut fields = Fields::new(object);
        let Some(family) = read_family(&mut fields) else {
            // Nothing else can be judged without the family.
            return Err(refuse(fields.into_problems()));
        };
        let config = read_settings(&mut fields, family, text);
        refuse_unsupported(&mut fields);
        let problems = fields.into_problems();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(refuse(problems))
        }
    }

    /// The text to write as `config.json` beside weights of type `dtype`.
    ///
    /// This is the text that was read, byte for byte, unless it names another number type: then that one value is replaced, and the
    /// file is written with the same keys in the same order. A file that names no number type stays without one.
    pub fn to_json(&self, dtype: DType) -> String {
        let name = match dtype {
            DType::BF16 => "bfloat16",
            DType::F16 => "float16",
            _ => "float32",
        };
        let mut value: Value = serde_json::from_str(&self.text)
            .expect("the text was parsed when the configuration was read");
        let mut changed = false;
        for key in ["dtype", "torch_dtype"] {
            if let Some(old) = value.get_mut(key).filter(|old| old.as_str() != Some(name)) {
                *old = Value::from(name);
                changed = true;
            }
        }
        if changed {
            format!("{value:#}\n")
        } else {
            self.text.clone()
        }
    }
}

fn read_family(fields: &mut Fields<'_>) -> Option<Family> {
    let supported = || {
        Family::ALL
            .iter()
            .map(|f| f.model_type())
            .collect::<Vec<_>>()
            .join(", ")
    };
    if fields.get("model_type").is_none() {
        fields.problem(format!("model_type is missing; supported: {}", supported()));
    }
    let name = fields.text("model_type")?;
    let family = Family::from_model_type(name);
    if family.is_none() {
        fields.problem(format!(
            "model_type \"{name}\" is not supported; supported: {}",
            supported()
        ));
    }
    family
}

/// More layers than any model has; a larger number is a slip, and would make a table too long to print.
const MAX_LAYERS: usize = 4096;

fn read_settings(fields: &mut Fields<'_>, family: Family, text: &str) -> ModelConfig {
    let num_hidden_layers = fields.required_size("num_hidden_layers");
    if num_hidden_layers > MAX_LAYERS {
        fields.problem(format!(
            "num_hidden_layers must be at most {MAX_LAYERS}, found {num_hidden_layers}"
        ));
    }
    let hidden_size = fields.required_size("hidden_size");
    let num_attention_heads = fields.required_size("num_attention_heads");
    let num_key_value_heads = read_kv_heads(fields, family, num_attention_heads);
    let head_dim = read_head_dim(fields, family, hidden_size, num_attention_heads);
    let initializer_range = fields.number("initializer_range").unwrap_or(0.02);
    if initializer_range < 0.0 {
        fields.problem(format!(
            "initializer_range must not be negative, found {initializer_range}"
        ));
    }
    ModelConfig {
        family,
        vocab_size: fields.required_size("vocab_size"),
        hidden_size,
        intermediate_size: fields.required_size("intermediate_size"),
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        rms_norm_eps: fields.positive("rms_norm_eps", 1e-6),
        rope_theta: rope::read_theta(fields),
        tie_word_embeddings: fields.flag("tie_word_embeddings"),
        initializer_range: initializer_range as f32,
        text: text.to_owned(),
    }
}

/// Absent: the family's default, which is what `transformers` assumes. Null: as many as query heads, also as there.
fn read_kv_heads(fields: &mut Fields<'_>, family: Family, heads: usize) -> usize {
    let absent = if fields.has("num_key_value_heads") {
        None
    } else {
        family.default_kv_heads()
    };
    let kv_heads = fields
        .size("num_key_value_heads")
        .or(absent)
        .unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        fields.problem(format!(
            "num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        ));
    }
    kv_heads
}

fn read_head_dim(
    fields: &mut Fields<'_>,
    family: Family,
    hidden_size: usize,
    heads: usize,
) -> usize {
    let absent = if fields.has("head_dim") {
        None
    } else {
        family.default_head_dim()
    };
    let Some(head_dim) = fields.size("head_dim").or(absent) else {
        if !hidden_size.is_multiple_of(heads) {
            fields.problem(format!("hidden_size ({hidden_size}) must be a multiple of num_attention_heads ({heads}), or give head_dim"));
        } else if !(hidden_size / heads).is_multiple_of(2) {
            fields.problem(format!(
                "hidden_size / num_attention_heads ({}) must be even",
                hidden_size / heads
            ));
        }
        return (hidden_size / heads).max(1);
    };
    // Rotary embedding turns the two halves of a head together. A size of 1 stands for one already reported.
    if head_dim > 1 && !head_dim.is_multiple_of(2) {
        fields.problem(format!("head_dim ({head_dim}) must be even"));
    }
    head_dim
}

/// Settings that would change the numbers and that no layer here implements.
fn refuse_unsupported(fields: &mut Fields<'_>) {
    for (key, what) in [
        ("attention_bias", "biases in attention"),
        ("mlp_bias", "biases in the feed-forward block"),
        ("use_sliding_window", "sliding windows in attention"),
    ] {
        if fields.flag(key) {
            fields.problem(format!("{key} is true: {what} are not supported"));
        }
    }
    if let Some(name) = fields.text("hidden_act").filter(|&name| name != "silu") {
        fields.problem(format!(
            "hidden_act \"{name}\" is not supported, only \"silu\""
        ));
    }
    if let Some(rate) = fields
        .number("attention_dropout")
        .filter(|&rate| rate != 0.0)
    {
        fields.problem(format!("attention_dropout {rate} is not supported, only 0"));
    }
    if let Some(value) = fields.get("quantization_config") {
        fields.problem(format!(
            "quantization_config {} is not supported: use weights that are not quantised",
            brief(value)
        ));
    }
    if let Some(value) = fields.get("layer_types") {
        let full = |kind: &Value| kind == "full_attention";
        if !value.as_array().is_some_and(|kinds| kinds.iter().all(full)) {
            fields.problem(format!(
                "layer_types {} is not supported, only \"full_attention\" for every layer",
                brief(value)
            ));
        }
    }
}
