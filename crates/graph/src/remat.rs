//! What a loop keeps of its forward pass for the backward pass.

/// What a scan keeps for its derivative. The value carried into each step is always kept; the rest of a step is
/// recomputed from it unless the policy says otherwise.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Policy {
    /// Keep only what is carried: least memory, one more forward pass.
    #[default]
    Recompute,
    /// Keep the results of contractions too: recomputing the rest is cheap.
    SaveDots,
    /// Keep the tensors that bear these names (see [`crate::Tensor::named`]). A name that no tensor bears is an error.
    SaveNames(Vec<String>),
}
