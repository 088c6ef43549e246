//! The forward walk: a running maximum, a running sum and a running mix of values for every query.

use ferrotune_graph::{DType, Tensor};

use super::list::TileList;
use super::{masked_score, whole_blocks};

/// Attention, and the log of the sum of exponentials of every query's scores: `q [B,K,T,G,E]`, `k` and `v` `[B,K,S,E]` →
/// `[B,K,T,G,E]` in the element type of `q`, f32 `[B,K,T,G]`.
pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, list: &TileList) -> (Tensor, Tensor) {
    let (g, dtype, tokens) = (q.graph().clone(), q.dtype(), q.dim(2));
    let (queries, keys) = list.size;
    let q = whole_blocks(q, 2, queries);
    let (k, v) = (whole_blocks(k, 2, keys), whole_blocks(v, 2, keys));
    let dims = q.dims();
    let (heads, group, size) = (dims[1], dims[3], dims[4]);
    let scale = (size as f64).powf(-0.5);
    let per_query = g.full(-1e30, DType::F32, &dims[..4]);
    let carry = vec![
        per_query.clone(),
        per_query.zeros_like(),
        g.full(0.0, DType::F32, &dims),
    ];
    let results = list.walk(&g, carry, |corner, carry| {
        let rows = [heads, queries * group, size];
        let part = corner.queries(&q, queries).reshape(&rows);
        let scores = g.einsum("kpe,kqe->kpq", &part, &corner.keys(&k, keys), DType::F32) * scale;
        let scores = scores.reshape(&[heads, queries, group, keys]);
        let mask = list.mask(corner).reshape(&[1, queries, 1, keys]);
        let scores = mask.select(&scores, &masked_score(&scores));

        let before = carry
            .iter()
            .map(|x| corner.queries(x, queries))
            .collect::<Vec<_>>();
        let [peak, total, mixed] = &before[..] else {
            panic!("three values are carried")
        };
        let higher = peak.maximum(&scores.max(&[3]));
        let shrink = (peak - &higher).exp();
        // A query that reads none of these keys has only masked scores: their exponentials would be those of zero.
        let weights = mask.select(&(scores - higher.expand(3)).exp(), &higher.scalar_like(0.0));
        let total = total * &shrink + weights.sum(&[3]);
        let weights = weights
            .convert(dtype)
            .reshape(&[heads, queries * group, keys]);
        let added = g.einsum("kpq,kqe->kpe", &weights, &corner.keys(&v, keys), DType::F32);
        let mixed = mixed * shrink.expand(3) + added.reshape(&[heads, queries, group, size]);
        let after = [higher, total, mixed];
        let pairs = carry.iter().zip(&after);
        pairs
            .map(|(x, part)| corner.with_queries(x, part))
            .collect()
    });
    let [peak, total, mixed] = &results[..] else {
        panic!("three values are carried")
    };
    let read = total.gt(&total.scalar_like(0.0));
    let total = read.select(total, &total.scalar_like(1.0));
    let out = (mixed / total.expand(4)).convert(dtype);
    let log_sum = peak + total.ln();
    (out.slice(2, 0, tokens), log_sum.slice(2, 0, tokens))
}
