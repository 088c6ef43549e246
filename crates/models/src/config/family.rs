//! The supported families and what is fixed by the family rather than by the configuration file.

/// A model family: one `model_type` of Hugging Face.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// `llama`: pre-norm decoder, rotary, grouped-query attention, SwiGLU.
    Llama,
    /// `qwen3`: the same with a norm on each query and key head.
    Qwen3,
}

impl Family {
    /// Every supported family.
    pub const ALL: &[Family] = &[Family::Llama, Family::Qwen3];

    /// The `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen3 => "qwen3",
        }
    }

    /// The family of a `model_type`.
    pub fn from_model_type(name: &str) -> Option<Family> {
        Self::ALL
            .iter()
            .copied()
            .find(|family| family.model_type() == name)
    }

    /// Whether queries and keys are normalised per head before the rotary embedding.
    pub fn qk_norm(self) -> bool {
        self == Family::Qwen3
    }

    /// Head size when the file has no `head_dim`; `None` means hidden size / heads.
    ///
    /// Source: defaults of the `transformers` configuration classes.
    pub(crate) fn default_head_dim(self) -> Option<usize> {
        match self {
            Family::Llama => None,
            Family::Qwen3 => Some(128),
        }
    }

    /// Key/value heads when the file has no `num_key_value_heads`; `None` means as many as query heads.
    ///
    /// Source: defaults of the `transformers` configuration classes.
    pub(crate) fn default_kv_heads(self) -> Option<usize> {
        match self {
            Family::Llama => None,
            Family::Qwen3 => Some(32),
        }
    }
}
