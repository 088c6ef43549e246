//! Products with weight matrices.

use ferrotune_graph::Tensor;

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
