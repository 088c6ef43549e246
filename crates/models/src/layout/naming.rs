//! How a checkpoint names and packs its tensors; checkpoints of one family differ in that.

/// How a checkpoint names and packs its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Naming {
    /// What stands before the names of the decoder's tensors.
    prefix: &'static str,
    /// What stands before the head's name.
    head_prefix: &'static str,
    /// Whether the experts of a layer are one tensor, gate and up together.
    pub(crate) fused_experts: bool,
}

impl Default for Naming {
    /// As `transformers` saves a text model.
    fn default() -> Self {
        Self {
            prefix: "model.",
            head_prefix: "",
            fused_experts: false,
        }
    }
}

/// Prefixes of the decoder and of the head, as published checkpoints have them.
const PREFIXES: [(&str, &str); 4] = [
    ("model.", ""),
    ("model.language_model.", ""),
    ("language_model.model.", "language_model."),
    ("language_model.", ""),
];

/// How the tensor of all gates and ups of a layer's experts is named, last.
const FUSED_EXPERTS: &str = ".experts.gate_up_proj";

/// What PEFT puts before the name of a module.
pub(crate) const ADAPTER_PREFIX: &str = "base_model.model.";

/// Tensors of parts of a model that are not here: images, and heads that predict several tokens.
const OTHER_PARTS: [&str; 6] = [
    "model.visual.",
    "visual.",
    "model.vision_tower.",
    "vision_tower.",
    "mtp.",
    "model.mtp.",
];

impl Naming {
    /// As a checkpoint with these tensors has it.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let with_embedding = |(prefix, head_prefix)| Self {
            prefix,
            head_prefix,
            fused_experts: false,
        };
        let mut known = PREFIXES.into_iter().map(with_embedding);
        let there = |naming: &Self| {
            let wanted = naming.embedding();
            names.clone().any(|name| name == wanted)
        };
        let naming = known.find(there).unwrap_or_default();
        // Other parts may pack theirs in another way.
        let layers = format!("{}layers.", naming.prefix);
        let fused = |name: &str| name.starts_with(&layers) && name.ends_with(FUSED_EXPERTS);
        Self {
            fused_experts: names.clone().any(fused),
            ..naming
        }
    }

    /// As adapters with these tensors have it, whose names begin with those of the modules that they belong to.
    pub(crate) fn of_adapter<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let there = |(prefix, _): &(&str, &str)| {
            let start = format!("{ADAPTER_PREFIX}{prefix}layers.");
            names.clone().any(|name| name.starts_with(&start))
        };
        let (prefix, head_prefix) = PREFIXES.into_iter().find(there).unwrap_or(PREFIXES[0]);
        Self {
            prefix,
            head_prefix,
            ..Self::default()
        }
    }

    /// The names that `transformers` gives to the parameters in memory.
    pub(crate) fn in_memory() -> Self {
        Self {
            fused_experts: true,
            ..Self::default()
        }
    }

    /// Whether a tensor belongs to a part of a larger model that is not here.
    pub(crate) fn is_other_part(name: &str) -> bool {
        // Rotary tables of old checkpoints follow from the configuration.
        OTHER_PARTS.iter().any(|part| name.starts_with(part))
            || name.ends_with(".rotary_emb.inv_freq")
    }

    pub(crate) fn embedding(&self) -> String {
        format!("{}embed_tokens.weight", self.prefix)
    }

    pub(crate) fn final_norm(&self) -> String {
        format!("{}norm.weight", self.prefix)
    }

    pub(crate) fn head(&self) -> String {
        format!("{}lm_head.weight", self.head_prefix)
    }

    pub(crate) fn of_layer(&self, layer: usize, name: &str) -> String {
        format!("{}layers.{layer}.{name}", self.prefix)
    }
}
