//! Sizes that only some families have: the delta rule's and the experts'.

use super::family::Family;
use super::fields::Fields;

/// Sizes of the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSizes {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`, consecutive ones share a key head.
    pub value_heads: usize,
    /// Size of one key.
    pub key_dim: usize,
    /// Size of one value.
    pub value_dim: usize,
    /// Tokens that the short convolution reads.
    pub taps: usize,
}

impl DeltaSizes {
    /// Values of all keys of a token.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Values of all values of a token.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    pub(crate) fn read(fields: &mut Fields<'_>, family: Family) -> Option<Self> {
        if !family.is_hybrid() {
            return None;
        }
        // Defaults of the `transformers` configuration classes, the same for all these families.
        let mut size = |key: &str, default| fields.size(key).unwrap_or(default);
        let sizes = Self {
            key_heads: size("linear_num_key_heads", 16),
            value_heads: size("linear_num_value_heads", 32),
            key_dim: size("linear_key_head_dim", 128),
            value_dim: size("linear_value_head_dim", 128),
            taps: size("linear_conv_kernel_dim", 4),
        };
        let keys = ["linear_num_value_heads", "linear_num_key_heads"];
        let shown = [
            fields.named(keys[0], sizes.value_heads),
            fields.named(keys[1], sizes.key_heads),
        ];
        let wrong = !sizes.value_heads.is_multiple_of(sizes.key_heads);
        fields.refuse_if(wrong, &keys, || {
            format!("{} must be a multiple of {}", shown[0], shown[1])
        });
        Some(sizes)
    }
}

/// Sizes of a mixture of experts, and how it routes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertSizes {
    /// Experts of a layer.
    pub count: usize,
    /// Experts of each token.
    pub top_k: usize,
    /// Width of one expert.
    pub width: usize,
    /// Width of the expert that all tokens go to, if there is one.
    pub shared: Option<usize>,
    /// Whether the weights of the chosen experts are made to add up to 1.
    pub normalize: bool,
}

impl ExpertSizes {
    pub(crate) fn read(fields: &mut Fields<'_>, family: Family) -> Option<Self> {
        if !family.has_experts() {
            return None;
        }
        // Two names for one number: the first is older.
        let names = ["num_experts", "num_local_experts"];
        let named = names.map(|key| fields.size(key));
        if let [Some(one), Some(other)] = named {
            fields.refuse_if(one != other, &names, || {
                format!("num_experts is {one}, but num_local_experts is {other}: keep one")
            });
        }
        let mut found = names.iter().zip(named);
        let found = found.find_map(|(name, size)| Some((*name, size?)));
        let (name, count) = found.unwrap_or_else(|| {
            fields.problem_of(names[0], "num_experts is missing");
            (names[0], 1)
        });
        let top_k = fields.required_size("num_experts_per_tok");
        fields.refuse_if(
            top_k > count,
            &["num_experts_per_tok", name, names[0]],
            || format!("num_experts_per_tok ({top_k}) must be at most {name} ({count})"),
        );
        let shared = family
            .has_shared_expert()
            .then(|| fields.required_size("shared_expert_intermediate_size"));
        let normalize = match family {
            Family::Qwen35Moe => true,
            Family::Qwen3Next => fields.flag_or("norm_topk_prob", true),
            _ => fields.flag("norm_topk_prob"),
        };
        Some(Self {
            count,
            top_k,
            width: fields.required_size("moe_intermediate_size"),
            shared,
            normalize,
        })
    }
}
