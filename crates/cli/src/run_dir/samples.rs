//! One sampled answer, as it stands in `samples.jsonl`.

use serde::Serialize;

/// One line of `samples.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample<'a> {
    /// The step that it was sampled for.
    pub(crate) step: u64,
    /// What the model was given.
    pub(crate) prompt: &'a str,
    /// What the model wrote.
    pub(crate) answer: &'a str,
    /// What the problem file gives as right.
    pub(crate) expected: &'a str,
    /// From the checker.
    pub(crate) reward: f32,
    /// Against its group.
    pub(crate) advantage: f32,
    /// Of each token of the answer, from the sampler.
    pub(crate) logprobs: &'a [f32],
}
