//! The gated feed-forward block.

use ferrotune_graph::Tensor;

use crate::linear::linear;
use crate::params::Params;

/// `(silu(x·gate) ⊙ (x·up)) · down`.
///
/// # Shapes
/// `x [B,T,D]`; parameters `gate_proj`, `up_proj` `[D,F]` and `down_proj` `[F,D]` → `[B,T,D]`.
/// # Source
/// Shazeer, "GLU variants improve Transformer" (2020), eq. 6 (SwiGLU).
#[track_caller]
pub fn swiglu(x_btd: &Tensor, params: &Params) -> Tensor {
    let gate = linear(x_btd, params.at("gate_proj"));
    let up = linear(x_btd, params.at("up_proj"));
    linear(&(gate.silu() * up), params.at("down_proj"))
}
