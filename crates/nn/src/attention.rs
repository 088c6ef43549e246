//! Grouped-query attention, dense and masked: the plain form that others are checked against.

use ferrotune_graph::{DType, Tensor};

use crate::sequence::Sequence;

/// Which keys each query may read: those of its own document, not after it.
///
/// Padding is a document of its own (segment 0), so that no query has an empty set of keys; what it computes is masked
/// in the loss and read by nobody.
///
/// # Shapes
/// `[B,T]` rows → boolean `[B,T,T]` (query, key).
#[track_caller]
pub fn causal_mask(seq: &Sequence) -> Tensor {
    let same = seq.segment_ids.expand(2).eq(&seq.segment_ids.expand(1));
    let not_after = seq.positions.expand(2).ge(&seq.positions.expand(1));
    same.and(&not_after)
}

/// `softmax(q·kᵀ / √E) · v` over the allowed keys, for groups of query heads that share key and value heads.
///
/// Scores and sums are f32. The exponentials are rounded to the element type before they meet the values, and the
/// quotient is formed last: one rounding less, and a sum of rounded numbers hardly depends on the order of the keys, so
/// that a document has nearly the same values wherever it lies in a row. A query without an allowed key gets the mean of
/// all values; callers mask it.
///
/// # Shapes
/// `q [B,T,H,E]`, `k` and `v` `[B,K,S,E]`, `mask` boolean `[B,T,S]` → `[B,T,H,E]` in the element type of `q`.
/// # Source
/// Vaswani et al., "Attention is all you need" (2017), eq. 1; Ainslie et al., "GQA" (2023).
#[track_caller]
pub fn attend(q_bthe: &Tensor, k_bkse: &Tensor, v_bkse: &Tensor, mask_bts: &Tensor) -> Tensor {
    let g = q_bthe.graph();
    let (dims, dtype) = (q_bthe.dims(), q_bthe.dtype());
    let [b, t, h, e] = dims[..] else {
        panic!("queries have dimensions {dims:?}, not [B,T,H,E]")
    };
    let k = k_bkse.dim(1);
    let q = q_bthe.reshape(&[b, t, k, h / k, e]);
    let scores = g.einsum("btkge,bkse->bkgts", &q, k_bkse, DType::F32) * (1.0 / (e as f64).sqrt());
    let s = k_bkse.dim(2);
    let mask = mask_bts.reshape(&[b, 1, 1, t, s]);
    let scores = mask.select(&scores, &scores.scalar_like(-1e30));
    let peak = scores.max_keep(&[4]).stop_gradient();
    let weights = (scores - peak).exp().convert(dtype);
    let total = weights
        .convert(DType::F32)
        .sum(&[4])
        .transpose(&[0, 3, 1, 2]);
    let mixed = g.einsum("bkgts,bkse->btkge", &weights, v_bkse, DType::F32);
    let mixed = (mixed / total.expand(4)).convert(dtype);
    mixed.reshape(&[b, t, h, e])
}
