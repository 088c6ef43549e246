//! The supported families and what is fixed by the family rather than by the configuration file.

/// A model family: one `model_type` of Hugging Face.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// `llama`: pre-norm decoder, rotary, grouped-query attention, SwiGLU.
    Llama,
    /// `qwen2`: the same with biases on queries, keys and values.
    Qwen2,
    /// `qwen3`: a norm on each query and key head, no biases.
    Qwen3,
    /// `qwen3_moe`: the same with experts in place of the feed-forward block.
    Qwen3Moe,
    /// `qwen3_next`: gated delta rule in most layers, gated attention in the others; experts with a shared one.
    Qwen3Next,
    /// `qwen3_5_text`: the same layers with dense feed-forward blocks.
    Qwen35,
    /// `qwen3_5_moe_text`: the same layers with experts and a shared one.
    Qwen35Moe,
}

impl Family {
    /// Every supported family.
    pub const ALL: &[Family] = &[
        Family::Llama,
        Family::Qwen2,
        Family::Qwen3,
        Family::Qwen3Moe,
        Family::Qwen3Next,
        Family::Qwen35,
        Family::Qwen35Moe,
    ];

    /// The `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Qwen3Moe => "qwen3_moe",
            Family::Qwen3Next => "qwen3_next",
            Family::Qwen35 => "qwen3_5_text",
            Family::Qwen35Moe => "qwen3_5_moe_text",
        }
    }

    /// The `model_type` of the multimodal models whose text part is of this family.
    pub(crate) fn multimodal_type(self) -> Option<&'static str> {
        match self {
            Family::Qwen35 => Some("qwen3_5"),
            Family::Qwen35Moe => Some("qwen3_5_moe"),
            _ => None,
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
        !matches!(self, Family::Llama | Family::Qwen2)
    }

    /// Whether layers mix by a gated delta rule, with gated attention every few layers; then norms scale by `1 + w`.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
    }

    /// Whether layers may have experts.
    pub fn has_experts(self) -> bool {
        matches!(
            self,
            Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen35Moe
        )
    }

    /// Whether every layer has experts and the file cannot say otherwise.
    pub(crate) fn only_experts(self) -> bool {
        self == Family::Qwen35Moe
    }

    /// Whether there is a shared expert beside the others.
    pub(crate) fn has_shared_expert(self) -> bool {
        matches!(self, Family::Qwen3Next | Family::Qwen35Moe)
    }

    /// Whether queries, keys and values have biases whatever the file says.
    pub(crate) fn always_has_bias(self) -> bool {
        self == Family::Qwen2
    }

    /// Head size when the file has no `head_dim`; `None` means hidden size / heads.
    ///
    /// Source: defaults of the `transformers` configuration classes.
    pub(crate) fn default_head_dim(self) -> Option<usize> {
        match self {
            Family::Llama | Family::Qwen2 | Family::Qwen3Moe => None,
            Family::Qwen3 => Some(128),
            Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => Some(256),
        }
    }

    /// Key/value heads when the file has no `num_key_value_heads`; `None` means as many as query heads.
    ///
    /// Source: defaults of the `transformers` configuration classes.
    pub(crate) fn default_kv_heads(self) -> Option<usize> {
        match self {
            Family::Llama => None,
            Family::Qwen2 | Family::Qwen3 => Some(32),
            Family::Qwen3Moe | Family::Qwen35 => Some(4),
            Family::Qwen3Next | Family::Qwen35Moe => Some(2),
        }
    }

    /// Part of each head that turns when the file says nothing.
    ///
    /// Source: defaults of the `transformers` configuration classes.
    pub(crate) fn default_rotary_part(self) -> f64 {
        if self.is_hybrid() { 0.25 } else { 1.0 }
    }
}
