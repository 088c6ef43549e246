//! Products with weight matrices.

use ferrotune_graph::Tensor;

use crate::fp8::linear_fp8;
use crate::params::Params;

/// `x · w` over the last dimension of `x`, in the element type of `x`; products are summed in f32.
///
/// # Shapes
/// `x [B,T,D]`, `w [D,F]` → `[B,T,F]`. The weight is converted to the element type of `x` first.
#[track_caller]
pub fn linear(x_btd: &Tensor, w_df: &Tensor) -> Tensor {
    let dtype = x_btd.dtype();
    x_btd
        .graph()
        .einsum("btd,df->btf", x_btd, &w_df.convert(dtype), dtype)
}

/// The layer `name`: its weight, and its bias and its adapter where the tree has them.
///
/// `x·W + b + s·(x·A)·B`, with the matrices `name [D,F]`, `name_lora_a [D,R]` and `name_lora_b [R,F]`, the bias `name_bias [F]`,
/// and `s` the [scale of adapters](Params::with_adapter_scale); matrices are the other way round where the tree
/// [says so](Params::with_transposed_weights). Where the tree has a history `name_fp8 [3,n]`, `x·W` is [`linear_fp8`].
///
/// # Shapes
/// `x [B,T,D]` → `[B,T,F]`, in the element type of `x`.
/// # Source
/// Hu et al., "LoRA" (2021), eq. 3.
#[track_caller]
pub fn project(x_btd: &Tensor, params: &Params, name: &str) -> Tensor {
    let product = |x: &Tensor, weight: &Tensor| {
        if params.transposed_weights() {
            let dtype = x.dtype();
            x.graph()
                .einsum("btd,fd->btf", x, &weight.convert(dtype), dtype)
        } else {
            linear(x, weight)
        }
    };
    let mut y = match params.find(&format!("{name}_fp8")) {
        Some(history) => linear_fp8(x_btd, params.at(name), history),
        None => product(x_btd, params.at(name)),
    };
    if let Some(bias) = params.find(&format!("{name}_bias")) {
        y = y + bias.convert(x_btd.dtype());
    }
    if let Some(a) = params.find(&format!("{name}_lora_a")) {
        let b = params.at(&format!("{name}_lora_b"));
        y = y + product(&product(x_btd, a), b) * params.adapter_scale();
    }
    y
}

/// Whether the layer `name` has an adapter.
pub(crate) fn is_adapted(params: &Params, name: &str) -> bool {
    params.find(&format!("{name}_lora_a")).is_some()
}
