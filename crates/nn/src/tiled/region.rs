//! Attention within the documents of rows, each device for the queries that it has.

use ferrotune_graph::{Sharding, Tensor};

use super::swap::ChunkSwap;
use super::{Places, TileSizes, attend_tiled};
use crate::sequence::Sequence;

/// The tiles of attention within documents.
pub const ATTENTION_TILES: TileSizes = TileSizes {
    forward: (512, 512),
    backward: (512, 512),
};

/// Which queries a device works on, where devices share a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueryOrder {
    /// Those of its own tokens.
    #[default]
    AsRows,
    /// Where rows lie in their natural order, those of chunks `r` and `2C − 1 − r` of the `2C` of a row, for device `r` of `C`: so
    /// that causal attention is even. Each half of a device's queries is sent to where it belongs, and what it has read is sent
    /// back.
    DualChunkSwap,
}

/// `softmax(q·kᵀ / √E) · v` over the keys of each token's own document that do not come after it.
///
/// On a mesh every device has the queries of its own rows and tokens; keys, values and places are gathered along the axes
/// that tokens are split over, and nothing else is sent, unless queries change places by `order`.
///
/// # Shapes
/// `q [B,T,H,E]`, `k` and `v` `[B,K,T,E]` → `[B,T,H,E]` in the element type of `q`; padding gives zeros.
/// # Panics
/// When queries are to change places where several mesh axes split tokens, or where a device has an odd number of them.
/// # Source
/// As [`attend_tiled`].
#[track_caller]
pub fn attend_documents(
    q_bthe: &Tensor,
    k_bkte: &Tensor,
    v_bkte: &Tensor,
    seq: &Sequence,
    order: QueryOrder,
) -> Tensor {
    let g = q_bthe.graph().clone();
    let inputs = [q_bthe, k_bkte, v_bkte, &seq.segment_ids, &seq.positions];
    let of_device = |parts: &[Tensor], split: &[&str]| {
        let whole = |tensor: &Tensor, dim: usize| match split {
            [] => tensor.clone(),
            axes => tensor.all_gather(axes, dim),
        };
        let places = |segment_ids: Tensor, index: Tensor| Places { segment_ids, index };
        let keys = places(whole(&parts[3], 1), whole(&parts[4], 1));
        let (k, v) = (whole(&parts[1], 2), whole(&parts[2], 2));
        let swap = ChunkSwap::of(&g, order, split);
        let out = |t: &Tensor| swap.as_ref().map_or(t.clone(), |swap| swap.out(t));
        let queries = places(out(&parts[3]), out(&parts[4]));
        let read = attend_tiled(&out(&parts[0]), &k, &v, &queries, &keys, ATTENTION_TILES);
        swap.map_or(read.clone(), |swap| swap.back(&read))
    };
    if g.is_local() {
        return of_device(&inputs.map(Clone::clone), &[]);
    }
    let rows = g.placement("attention", &q_bthe.dims()[..2], &["batch", "tokens"]);
    let [batch, tokens] = [rows.dims[0].clone(), rows.dims[1].clone()];
    let by = |dims: &[&[String]]| Sharding {
        dims: dims.iter().map(|axes| axes.to_vec()).collect(),
    };
    let queries = by(&[&batch, &tokens, &[], &[]]);
    let keys = by(&[&batch, &[], &tokens, &[]]);
    let places = by(&[&batch, &tokens]);
    let placed = [queries.clone(), keys.clone(), keys, places.clone(), places];
    let inputs: Vec<_> = inputs.into_iter().zip(placed).collect();
    let axes = g.automatic_axes();
    let axes: Vec<&str> = axes.iter().map(String::as_str).collect();
    let split: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let found = g.manual(&axes, &inputs, &[queries], |parts| {
        vec![of_device(parts, &split)]
    });
    found.into_iter().next().expect("there is one output")
}
