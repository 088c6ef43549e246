//! Grouped-query attention that does no work where documents do not meet.
//!
//! Queries and keys are cut into blocks. A pair of blocks, a *tile*, is active iff some query in it may read some key:
//! their documents overlap, and not all keys come after all queries. The active tiles are listed at run time, and a loop
//! of exactly that many steps walks the list with an online softmax: time goes with the tiles, memory with the tokens.
//!
//! Letters besides the crate's: `N` blocks of queries × blocks of keys × rows, `P` queries and `Q` keys of a tile.

mod backward;
mod forward;
pub(crate) mod kernel;
mod list;
mod region;
mod swap;

use ferrotune_graph::{DType, Tensor};

pub use list::Places;
use list::TileList;
pub use region::{ATTENTION_TILES, QueryOrder, attend_documents};

/// Sizes of the tiles; sequences that they do not divide are padded inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSizes {
    /// Queries and keys of a tile in the forward pass.
    pub forward: (usize, usize),
    /// Queries and keys of a tile in the backward pass.
    pub backward: (usize, usize),
}

/// `softmax(q·kᵀ / √E) · v` over the keys of each query's own document that do not come after it.
///
/// Only active tiles are computed, forward and backward. The softmax is f32; the log of its sum is kept for the
/// derivative, which computes the weights again. Queries of padding give zeros.
///
/// # Shapes
/// `q [B,T,H,E]`, `k` and `v` `[B,K,S,E]`, places of `[B,T]` queries and `[B,S]` keys → `[B,T,H,E]` in the element type of
/// `q`.
/// # Source
/// Dao et al., "FlashAttention" (2022), algorithms 1 and 4.
#[track_caller]
pub fn attend_tiled(
    q_bthe: &Tensor,
    k_bkse: &Tensor,
    v_bkse: &Tensor,
    queries: &Places,
    keys: &Places,
    sizes: TileSizes,
) -> Tensor {
    let (g, dims) = (q_bthe.graph().clone(), q_bthe.dims());
    let [b, t, h, e] = dims[..] else {
        panic!("queries have dimensions {dims:?}, not [B,T,H,E]")
    };
    let heads = k_bkse.dim(1);
    let grouped = q_bthe
        .reshape(&[b, t, heads, h / heads, e])
        .transpose(&[0, 2, 1, 3, 4]);
    let plan = |size| TileList::new(queries, keys, size);
    let (ahead, back) = (plan(sizes.forward), plan(sizes.backward));
    let places = [
        &queries.segment_ids,
        &queries.index,
        &keys.segment_ids,
        &keys.index,
    ];
    let result = g.custom_vjp(
        &[&grouped, k_bkse, v_bkse],
        |x| {
            let operands = [&[&x[0], &x[1], &x[2]], &places[..]].concat();
            let results = g.kernel(&kernel::ATTEND, &operands, &[], |x| {
                let (out, log_sum) = forward::attend(&x[0], &x[1], &x[2], &ahead);
                vec![out, log_sum]
            });
            let residuals = [&x[..3], &results].concat();
            (results, residuals)
        },
        |kept, d| {
            let [q, k, v, out, log_sum] = kept else {
                panic!("five residuals are kept")
            };
            let operands = [&[q, k, v], &places[..], &[out, log_sum, &d[0]]].concat();
            let slopes = g.kernel(&kernel::ATTEND_BACK, &operands, &[], |x| {
                let (q, k, v, log_sum) = (&x[0], &x[1], &x[2], &x[8]);
                let given = backward::Given { q, k, v, log_sum };
                backward::cotangents(&given, &x[7], &x[9], &back)
            });
            slopes.into_iter().map(Some).collect()
        },
    );
    // Named, so that a policy may keep the attention instead of walking its tiles again.
    let out = result[0].named("attention");
    let _ = result[1].named("attention_log_sum");
    out.transpose(&[0, 2, 1, 3, 4]).reshape(&[b, t, h, e])
}

/// Pads dimension `axis` to a multiple of `block`.
fn whole_blocks(x: &Tensor, axis: usize, block: usize) -> Tensor {
    x.pad(
        axis,
        0,
        x.dim(axis).next_multiple_of(block) - x.dim(axis),
        0.0,
    )
}

/// A large number that exponentials turn into zero, instead of an infinity that differences turn into NaN.
fn masked_score(like: &Tensor) -> Tensor {
    debug_assert_eq!(like.dtype(), DType::F32);
    like.scalar_like(-1e30)
}
