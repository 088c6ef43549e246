//! A short convolution along the tokens, each channel by itself, that never reaches into another document.

use ferrotune_graph::{DType, Tensor};

use crate::sequence::Sequence;

/// `y_t = Σⱼ w[j] · x_{t−W+1+j}` over taps `j = 0 … W−1`; taps outside of the token's own document read zero.
///
/// The sum is f32. Tokens must stand in their natural order. The caller applies the activation.
///
/// # Shapes
/// `x [B,T,C]`, `w [W,C]`, oldest tap first → f32 `[B,T,C]`.
/// # Source
/// The causal depthwise convolution of Mamba (Gu and Dao, 2023), as gated delta networks use it.
#[track_caller]
pub fn causal_convolution(x_btc: &Tensor, w_wc: &Tensor, seq: &Sequence) -> Tensor {
    let (taps, tokens) = (w_wc.dim(0), x_btc.dim(1));
    let x = x_btc.convert(DType::F32);
    let weight = |tap: usize| {
        let row = w_wc.slice(0, tap, tap + 1).convert(DType::F32);
        row.reshape(&[1, 1, w_wc.dim(1)])
    };
    let mut sum = &x * weight(taps - 1);
    for back in 1..taps.min(tokens) {
        let earlier = |t: &Tensor| t.slice(1, 0, tokens - back).pad(1, back, 0, 0.0);
        // A token that lies `back` tokens before is in the same document iff this one stands at least so far in it.
        let inside = seq.positions.ge(&seq.positions.scalar_like(back as f64));
        let reached = inside.expand(2).select(&earlier(&x), &x.scalar_like(0.0));
        sum = sum + reached * weight(taps - 1 - back);
    }
    sum
}

/// One more token of every row, for decoding: what [`causal_convolution`] gives for it, f32 `[B,1,C]`, and the state to go on
/// from.
///
/// # Shapes
/// `state [B,W−1,C]`, the inputs before this one, oldest first, zero before the document; `x [B,1,C]` of the same type;
/// `w [W,C]`. The new state has the shape and type of the old.
#[track_caller]
pub fn convolution_step(state: &Tensor, x_b1c: &Tensor, w_wc: &Tensor) -> (Tensor, Tensor) {
    let taps = w_wc.dim(0);
    let seen = Tensor::concatenate(&[state, x_b1c], 1);
    let weighted = seen.convert(DType::F32) * w_wc.convert(DType::F32).expand(0);
    (weighted.sum_keep(&[1]), seen.slice(1, 1, taps))
}
