//! The backward walk: the weights of a tile again, from the kept log of their sum, then the slopes of its queries, keys and
//! values at once, five products in all.

use ferrotune_graph::{DType, Tensor};

use super::list::TileList;
use super::whole_blocks;

/// What the forward walk left behind.
pub(super) struct Given<'a> {
    /// `[B,K,T,G,E]`
    pub(super) q: &'a Tensor,
    /// `[B,K,S,E]`
    pub(super) k: &'a Tensor,
    /// `[B,K,S,E]`
    pub(super) v: &'a Tensor,
    /// f32 `[B,K,T,G]`
    pub(super) log_sum: &'a Tensor,
}

/// Cotangents of queries, keys and values from that of the result.
///
/// With weights `w = e^{s − log_sum}`: `dv = wᵀ do`, `ds = w ⊙ (do·vᵀ − Σ do ⊙ o) / √E`, `dq = ds k`, `dk = dsᵀ q`.
pub(super) fn cotangents(
    given: &Given<'_>,
    out: &Tensor,
    d_out: &Tensor,
    list: &TileList,
) -> Vec<Tensor> {
    let (g, dtype) = (out.graph().clone(), out.dtype());
    let (tokens, read) = (given.q.dim(2), given.k.dim(2));
    let (queries, keys) = list.size;
    let wide = |t: &Tensor| t.convert(DType::F32);
    let mean = (wide(d_out) * wide(out)).sum(&[4]); // [B,K,T,G]
    let of_queries = |t: &Tensor| whole_blocks(t, 2, queries);
    let (q, d_out) = (of_queries(given.q), of_queries(d_out));
    let (log_sum, mean) = (of_queries(given.log_sum), of_queries(&mean));
    let (k, v) = (
        whole_blocks(given.k, 2, keys),
        whole_blocks(given.v, 2, keys),
    );
    let (heads, group, size) = (q.dim(1), q.dim(3), q.dim(4));
    let scale = (size as f64).powf(-0.5);
    let zeros = |t: &Tensor| g.full(0.0, DType::F32, &t.dims());
    let sums = list.walk(&g, vec![zeros(&q), zeros(&k), zeros(&v)], |corner, sums| {
        let rows = queries * group;
        let flat = |t: &Tensor| corner.queries(t, queries).reshape(&[heads, rows, size]);
        let (q, d_out) = (flat(&q), flat(&d_out));
        let (k, v) = (corner.keys(&k, keys), corner.keys(&v, keys));
        let per_row = |t: &Tensor| corner.queries(t, queries).reshape(&[heads, rows, 1]);
        let scores = g.einsum("kpe,kqe->kpq", &q, &k, DType::F32) * scale;
        let mask = list.mask(corner).reshape(&[1, queries, 1, keys]);
        let mask = mask
            .broadcast_to(&[heads, queries, group, keys])
            .reshape(&[heads, rows, keys]);
        // Masked before the exponential too: outside of the mask a score may be far above the log of the sum.
        let shifted = mask.select(&(scores - per_row(&log_sum)), &log_sum.scalar_like(-1e30));
        let weights = shifted.exp();
        let slopes = g.einsum("kpe,kqe->kpq", &d_out, &v, DType::F32) - per_row(&mean);
        let slopes = (&weights * slopes * scale).convert(dtype);
        let weights = weights.convert(dtype);
        let dq = g.einsum("kpq,kqe->kpe", &slopes, &k, DType::F32);
        let dk = g.einsum("kpq,kpe->kqe", &slopes, &q, DType::F32);
        let dv = g.einsum("kpq,kpe->kqe", &weights, &d_out, DType::F32);
        let dq = dq.reshape(&[heads, queries, group, size]);
        let dq = corner.queries(&sums[0], queries) + dq;
        let dk = corner.keys(&sums[1], keys) + dk;
        let dv = corner.keys(&sums[2], keys) + dv;
        vec![
            corner.with_queries(&sums[0], &dq),
            corner.with_keys(&sums[1], &dk),
            corner.with_keys(&sums[2], &dv),
        ]
    });
    let cut = [tokens, read, read];
    let types = [given.q, given.k, given.v].map(Tensor::dtype);
    let pairs = sums.iter().zip(cut).zip(types);
    pairs
        .map(|((sum, n), ty)| sum.slice(2, 0, n).convert(ty))
        .collect()
}
