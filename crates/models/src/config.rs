//! `config.json`: what a model is made of, and whether this crate can build it.
//!
//! A setting that would change the numbers and is not supported is an error, and all of them are listed together. Settings that
//! change nothing here (token ids, cache flags, the library version) are kept in the text and otherwise left alone.
//! Old (`rope_theta`) and new (`rope_parameters`) spellings are read, and the text part of multimodal models. No tensors here.

mod family;
mod fields;
mod layers;
mod parts;
mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use ferrotune_pjrt::DType;
use serde_json::{Map, Value};

pub use self::family::Family;
use self::fields::{Fields, brief};
pub use self::layers::{Feed, LayerKind, Mixer, Stack};
pub use self::parts::{DeltaSizes, ExpertSizes};
pub use self::rope::{Rotary, RotaryScaling};
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
    /// `F`: width of the feed-forward block of layers without experts.
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
    /// How positions turn queries and keys.
    pub rotary: Rotary,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether the product after attention has a bias.
    pub output_bias: bool,
    /// Whether the feed-forward block has biases.
    pub mlp_bias: bool,
    /// The kind of each layer, in order.
    pub layers: Vec<LayerKind>,
    /// Sizes of the delta rule, in families that have it.
    pub delta: Option<DeltaSizes>,
    /// Sizes of the experts, in families that have them.
    pub experts: Option<ExpertSizes>,
    /// Longest text that the model was made for, in tokens, if the file says.
    pub max_position_embeddings: Option<usize>,
    /// Whether the head is the transposed embedding.
    pub tie_word_embeddings: bool,
    /// Standard deviation of fresh matrices.
    pub initializer_range: f32,
    /// The file as it was read, for writing it back unchanged.
    text: String,
}

/// The longest text that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// Its tokens.
    pub tokens: usize,
    /// The key of `config.json` that says so.
    pub key: &'static str,
    /// What a longer text is more than.
    pub limit: &'static str,
}

impl Longest {
    /// What a longer text is more than, with the setting in `config`, the path of that file.
    pub fn told(&self, config: impl std::fmt::Display) -> String {
        let Self { tokens, key, limit } = self;
        format!("{limit} ({key} = {tokens} in {config})")
    }
}

impl ModelConfig {
    /// The longest text that the model reads here, if the file says: what it was made for, or with
    /// [`RotaryScaling::LongRope`] the length of its first training.
    pub fn longest(&self) -> Option<Longest> {
        let told = self.max_position_embeddings.map(|tokens| Longest {
            tokens,
            key: "max_position_embeddings",
            limit: "the model was made for",
        });
        let first = self.rotary.longest().map(|tokens| Longest {
            tokens,
            key: rope::ORIGINAL,
            limit: "ferrotune takes with longrope scaling, where transformers has other factors for longer texts",
        });
        told.into_iter().chain(first).min_by_key(|it| it.tokens)
    }

    /// Whether a layer reads the tokens of a row one after the other, in their natural order, as the delta rule does.
    pub fn has_recurrence(&self) -> bool {
        self.layers.iter().any(|kind| kind.mixer == Mixer::Delta)
    }

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
        let Value::Object(whole) = &value else {
            return Err(refuse(vec![format!(
                "it must be a JSON object, found {}",
                brief(&value)
            )]));
        };
        let mut outer = Fields::new(whole);
        let Some((family, object)) = read_family(&mut outer, whole) else {
            // Nothing else can be judged without the family.
            return Err(refuse(outer.into_problems()));
        };
        let mut fields = Fields::new(object);
        let mut config = read_settings(&mut fields, family, text);
        refuse_unsupported(&mut fields, family);
        let mut problems = fields.into_problems();
        if !std::ptr::eq(whole, object) {
            // The whole model decides, where it says anything.
            if outer.get("tie_word_embeddings").is_some() {
                config.tie_word_embeddings = outer.flag("tie_word_embeddings");
            }
            refuse_quantised(&mut outer);
            problems.extend(outer.into_problems());
        }
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(refuse(problems))
        }
    }

    /// The layers as they are traced and as their parameters are stacked.
    pub fn stacks(&self) -> Vec<Stack> {
        layers::stacks(&self.layers)
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
        let mut rename = |object: &mut Value| {
            for key in ["dtype", "torch_dtype"] {
                let named = |old: &&mut Value| !old.is_null() && old.as_str() != Some(name);
                if let Some(old) = object.get_mut(key).filter(named) {
                    *old = Value::from(name);
                    changed = true;
                }
            }
        };
        rename(&mut value);
        if let Some(inner) = value.get_mut(TEXT_PART) {
            rename(inner);
        }
        if changed {
            format!("{value:#}\n")
        } else {
            self.text.clone()
        }
    }
}

/// Where a multimodal model's file describes its text part.
const TEXT_PART: &str = "text_config";

/// The family, and the object that describes it: the whole file, or the text part of a multimodal model.
fn read_family<'a>(
    fields: &mut Fields<'a>,
    whole: &'a Map<String, Value>,
) -> Option<(Family, &'a Map<String, Value>)> {
    let supported = || {
        let names = Family::ALL.iter().map(|f| f.model_type());
        names.collect::<Vec<_>>().join(", ")
    };
    if fields.get("model_type").is_none() {
        let text = format!("model_type is missing; supported: {}", supported());
        fields.problem_of("model_type", text);
    }
    let name = fields.text("model_type")?;
    if let Some(family) = Family::from_model_type(name) {
        return Some((family, whole));
    }
    let multimodal = Family::ALL
        .iter()
        .find(|family| family.multimodal_type() == Some(name));
    let Some(family) = multimodal else {
        fields.problem(format!(
            "model_type \"{name}\" is not supported; supported: {}",
            supported()
        ));
        return None;
    };
    let inner = fields.object(TEXT_PART);
    if inner.is_none() {
        fields.problem_of(TEXT_PART, format!("{TEXT_PART} is missing"));
    }
    Some((*family, inner?))
}

/// More layers than any model has; a larger number is a slip, and would make a table too long to print.
const MAX_LAYERS: u64 = 4096;

fn read_settings(fields: &mut Fields<'_>, family: Family, text: &str) -> ModelConfig {
    let num_hidden_layers = fields.required_size_up_to("num_hidden_layers", MAX_LAYERS);
    let layers = layers::read(fields, family, num_hidden_layers);
    // Families of experts alone have no such key, and of layers that could not be read nobody knows whether they need it.
    let known = !family.has_experts() || !fields.have_failed(&layers::SPARSE_KEYS);
    let dense = layers.iter().any(|kind| kind.feed == Feed::Dense);
    let intermediate_size = if known && dense {
        fields.required_size("intermediate_size")
    } else {
        fields.size("intermediate_size").unwrap_or(0)
    };
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
    // Families with biases of their own have no such key in their classes.
    let bias = !family.always_has_bias() && fields.flag("attention_bias");
    let mlp_bias = family == Family::Llama && fields.flag("mlp_bias");
    ModelConfig {
        family,
        vocab_size: fields.required_size("vocab_size"),
        hidden_size,
        intermediate_size,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        rms_norm_eps: fields.positive("rms_norm_eps", 1e-6),
        rotary: rope::read(fields, family, head_dim),
        qkv_bias: bias || family.always_has_bias(),
        output_bias: bias,
        mlp_bias,
        layers,
        delta: DeltaSizes::read(fields, family),
        experts: ExpertSizes::read(fields, family),
        max_position_embeddings: fields.size("max_position_embeddings"),
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
    let keys = ["num_key_value_heads", "num_attention_heads"];
    let shown = fields.named(keys[0], kv_heads);
    fields.refuse_if(!heads.is_multiple_of(kv_heads), &keys, || {
        format!("num_attention_heads ({heads}) must be a multiple of {shown}")
    });
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
        let keys = ["head_dim", "hidden_size", "num_attention_heads"];
        fields.fail_with(keys[0], &keys[1..]);
        fields.refuse_if(!hidden_size.is_multiple_of(heads), &keys, || {
            format!("hidden_size ({hidden_size}) must be a multiple of num_attention_heads ({heads}), or give head_dim")
        });
        let head_dim = hidden_size / heads;
        fields.refuse_if(!head_dim.is_multiple_of(2), &keys, || {
            format!("hidden_size / num_attention_heads ({head_dim}) must be even")
        });
        return head_dim.max(1);
    };
    // Rotary embedding turns the two halves of a head together.
    fields.refuse_if(!head_dim.is_multiple_of(2), &["head_dim"], || {
        format!("head_dim ({head_dim}) must be even")
    });
    head_dim
}

/// Settings that would change the numbers and that no layer here implements.
fn refuse_unsupported(fields: &mut Fields<'_>, family: Family) {
    if fields.flag("use_sliding_window") {
        fields
            .problem("use_sliding_window is true: sliding windows in attention are not supported");
    }
    if family.is_hybrid() && fields.flag("attention_bias") {
        fields.problem("attention_bias is true: biases in gated attention are not supported");
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
    refuse_quantised(fields);
}

fn refuse_quantised(fields: &mut Fields<'_>) {
    if let Some(value) = fields.get("quantization_config") {
        fields.problem(format!(
            "quantization_config {} is not supported: use weights that are not quantised",
            brief(value)
        ));
    }
}
