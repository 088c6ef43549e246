//! The description of one parameter: what a model has before anything is loaded, initialised or put on a device.
//!
//! A parameter tree is a flat `Vec<ParamSpec>` in a fixed order; the tree shape is in the paths. This file knows no family,
//! no file format and no values.

use ferrotune_graph::DType;

/// One parameter of a model: name, shape, number type, logical axes and initial values.
///
/// Layers that repeat are stacked: the parameter of all layers is one array whose first dimension is the layer.
///
/// # Shapes
/// Weights are stored `[in, out]`, so that `x[.., in] @ w` needs no transpose. `dims` and `axes` have the same length.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Name in the tree, `/`-separated: `"layers/attn/q_proj"`.
    pub path: String,
    /// Global (unsharded) dimensions.
    pub dims: Vec<usize>,
    /// Number type of the stored (master) values.
    pub dtype: DType,
    /// Logical axis of each dimension, which the sharding rules map to mesh axes: `"layers"`, `"embed"`, `"vocab"`, `"heads"`,
    /// `"kv_heads"`, `"mlp"`, or `"_"` for one that is never sharded.
    pub axes: Vec<String>,
    /// How a fresh model fills it.
    pub init: Init,
}

/// Initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Uniform between two values with mean zero.
    Uniform {
        /// The largest value; its negative is the smallest.
        limit: f32,
    },
    /// Logarithms of uniform values.
    LogUniform {
        /// Smallest value before the logarithm; above 0.
        low: f32,
        /// Largest.
        high: f32,
    },
    /// Normal distribution with mean zero.
    Normal {
        /// Standard deviation.
        std: f32,
    },
}
