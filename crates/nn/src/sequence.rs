//! Where each token of a batch stands: which document, and where in it.

use ferrotune_graph::Tensor;

/// Documents and positions of the tokens in `[B,T]` rows. They travel with the tokens, so that no layer lets one document
/// touch another, whatever the packing, the padding or the order.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Document of each token, s32 `[B,T]`: 1, 2, … within a row, 0 for padding.
    pub segment_ids: Tensor,
    /// Place of each token in its document, s32 `[B,T]`, from 0.
    pub positions: Tensor,
}
