//! The layers: norms, rotary, attention, feed-forward, log-prob head, parameter trees.
//!
//! A layer is a plain function that traces its nodes. It knows no family and no file: sizes come from the tensors it is
//! given, weights from a [`Params`] tree, documents from a [`Sequence`].
//!
//! Letters in comments and in variable suffixes: `B` rows, `T` tokens (queries), `S` tokens (keys), `D` model width,
//! `H` query heads, `K` key and value heads, `G` = H / K, `E` head size, `F` feed-forward width, `V` vocabulary.
//!
//! f32 where it matters, whatever the compute type: norms, softmax, log-sum-exp, accumulation of products.
#![forbid(unsafe_code)]

mod attention;
mod by_heads;
mod by_tokens;
mod by_type;
mod capped_experts;
mod convolution;
mod decode;
mod delta_rule;
mod experts;
mod filter;
mod fp8;
mod gate;
mod head;
mod linear;
mod mlp;
mod norm;
mod param;
mod params;
mod rotary;
mod sequence;
mod tiled;

pub use attention::{attend, causal_mask};
pub use by_heads::{by_heads, rows_are_shared};
pub use by_tokens::{OfTokens, by_tokens};
pub use capped_experts::{Capacity, mix_experts_capped};
pub use convolution::{causal_convolution, convolution_step};
pub use decode::{CacheView, FeedStep, HeadsStep, LogitSummary, attend_cache};
pub use delta_rule::{DeltaInputs, delta_step, gated_delta_rule, gated_delta_state};
pub use experts::{Routes, Routing, mix_experts};
pub use filter::{FilterSettings, Filters};
pub use fp8::{FP8_KINDS, linear_fp8};
pub use head::{
    Combine, EntropyUse, Head, HeadMode, HeadSettings, HeadSizes, Kept, PartialLoss, TokenScores,
};
pub use linear::{linear, project};
pub use mlp::swiglu;
pub use norm::rms_norm;
pub use param::{Init, ParamSpec};
pub use params::Params;
pub use rotary::{Rotation, rotate};
pub use sequence::Sequence;
pub use tiled::{ATTENTION_TILES, Places, QueryOrder, TileSizes, attend_documents, attend_tiled};

/// Every logical axis that parameters and activations name, for the sharding rules.
pub const LOGICAL_AXES: [&str; 8] = [
    "batch", "tokens", "layers", "embed", "vocab", "heads", "kv_heads", "mlp",
];
