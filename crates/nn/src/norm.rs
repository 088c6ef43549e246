//! Root-mean-square normalisation.

use ferrotune_graph::{DType, Tensor};

/// w · x / √(mean(x²) + eps) over the last dimension, computed in f32 and returned in the element type of `x`.
///
/// # Shapes
/// `x [.., N]`, `weight [N]` → `[.., N]`.
/// # Source
/// Zhang and Sennrich, "Root mean square layer normalization" (2019), eq. 4; `LlamaRMSNorm` in transformers.
#[track_caller]
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let wide = x.convert(DType::F32);
    let last = x.rank() - 1;
    let scale = (wide.square().mean_keep(&[last]) + eps).rsqrt();
    (wide * scale * weight.convert(DType::F32)).convert(x.dtype())
}
