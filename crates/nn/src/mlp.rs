//! The gated feed-forward block.

use ferrotune_graph::Tensor;

use crate::gate::gated;
use crate::linear::project;
use crate::params::Params;

/// `(silu(x·gate) ⊙ (x·up)) · down`.
///
/// # Shapes
/// `x [B,T,D]`; parameters `gate_proj`, `up_proj` `[D,F]` and `down_proj` `[F,D]`, each as [`project`] takes them →
/// `[B,T,D]`.
/// # Source
/// Shazeer, "GLU variants improve Transformer" (2020), eq. 6 (SwiGLU).
#[track_caller]
pub fn swiglu(x_btd: &Tensor, params: &Params) -> Tensor {
    let gate = project(x_btd, params, "gate_proj");
    let up = project(x_btd, params, "up_proj");
    project(&gated(&gate, &up), params, "down_proj")
}
