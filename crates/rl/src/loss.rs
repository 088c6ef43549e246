//! The policy-gradient loss of a batch of tokens, as a graph function.
//!
//! The same mathematics as [`crate::oracle::grpo_loss`], traced: tests hold one against the other. The mean over tokens and
//! answers is not here: it is in `loss_weight`, decided once on the host. All tensors are `[B,T]`, or any one shape.

use std::sync::Arc;

use ferrotune_batch::Field;
use ferrotune_engine::{Combine, EntropyUse, Loss, LossInputs, LossTerms, Metric};
use ferrotune_graph::Tensor;

use crate::oracle::MAX_LOG_RATIO;

/// Where the ratio of new to old probability stops paying: below `1 - low` and above `1 + high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRange {
    /// How far below 1 the ratio may pay.
    pub low: f64,
    /// How far above 1 the ratio may pay.
    pub high: f64,
}

/// Names under which the device reports sums over the tokens that are trained on.
pub(crate) mod metric {
    /// How many there are.
    pub(crate) const TOKENS: &str = "tokens";
    /// Their entropies.
    pub(crate) const ENTROPY: &str = "entropy";
    /// How many were held at the lower bound.
    pub(crate) const CLIPPED_LOW: &str = "clipped_low";
    /// How many were held at the upper bound.
    pub(crate) const CLIPPED_HIGH: &str = "clipped_high";
    /// `ratio - 1 - log ratio`, which estimates the divergence of the new policy from the old.
    pub(crate) const KL: &str = "kl";
    /// `|logprob - sampler_logprob|`.
    pub(crate) const DIFFERENCE: &str = "logp_difference";
    /// The largest of those.
    pub(crate) const LARGEST_DIFFERENCE: &str = "logp_difference_max";
}

/// The clipped policy loss of PPO with the advantages of GRPO, as a sum over tokens.
///
/// For each token, with `r = exp(clamp(logprob - old_logprob, -20, 20))` and advantage `A`:
/// `l = max(-A r, -A clamp(r, 1 - low, 1 + high))`, and the loss is `Σ loss_weight · l`.
/// `dl / dlogprob = -A r` where the unclipped term is the one that counts and the log-ratio lies within its limits, else 0.
///
/// Reports, over tokens of nonzero weight: their number, the sums of entropy, of clipped tokens at either bound (clipped as
/// in the loss: a ratio beyond the bound *and* an advantage that would push it further), of the divergence estimate
/// `r - 1 - ln r` (k3 of <http://joschu.net/blog/kl-approx.html>), and sum and largest of `|logprob - sampler_logprob|`.
///
/// # Source
/// Schulman et al. 2017, arXiv:1707.06347, equation 7; GRPO: DeepSeekMath, arXiv:2402.03300, equation 3 without its KL term;
/// unequal bounds: DAPO, arXiv:2503.14476, equation 8.
pub fn policy_gradient(clip: ClipRange) -> Loss {
    Loss {
        name: "policy_gradient".to_owned(),
        fields: vec![Field::Advantage, Field::OldLogprob, Field::SamplerLogprob],
        separable: true,
        entropy: EntropyUse::Reported,
        build: Arc::new(move |inputs| trace(inputs, clip)),
    }
}

fn trace(inputs: &LossInputs, clip: ClipRange) -> LossTerms {
    let weight = &inputs.loss_weight;
    let advantage = &inputs.fields[&Field::Advantage];
    let ratio = Ratio::new(&inputs.logprob, &inputs.fields[&Field::OldLogprob]);
    let negated = -advantage;
    let free = &negated * &ratio.ratio;
    let held = &negated * ratio.ratio.clamp(1.0 - clip.low, 1.0 + clip.high);
    // Not by `maximum`, which shares a cotangent among equals: inside the bounds both are.
    let clipped = held.gt(&free);
    let loss = (weight * clipped.select(&held, &free)).sum_all();

    let dtype = weight.dtype();
    let zero = weight.zeros_like();
    let trained = weight.ne(&zero).convert(dtype);
    let over_trained = |x: &Tensor| (&trained * x).sum_all();
    let clipped_where = |side: Tensor| over_trained(&clipped.and(&side).convert(dtype));
    let kl = &ratio.ratio - 1.0 - &ratio.log_ratio;
    let difference = (&inputs.logprob - &inputs.fields[&Field::SamplerLogprob]).abs();
    let sum = |name: &str, value| Metric {
        name: name.to_owned(),
        value,
        combine: Combine::Sum,
    };
    let axes: Vec<usize> = (0..weight.rank()).collect();
    let metrics = vec![
        sum(metric::TOKENS, trained.sum_all()),
        sum(metric::ENTROPY, over_trained(&inputs.entropy)),
        sum(metric::CLIPPED_LOW, clipped_where(advantage.lt(&zero))),
        sum(metric::CLIPPED_HIGH, clipped_where(advantage.gt(&zero))),
        sum(metric::KL, over_trained(&kl)),
        sum(metric::DIFFERENCE, over_trained(&difference)),
        Metric {
            name: metric::LARGEST_DIFFERENCE.to_owned(),
            value: (&trained * &difference).max(&axes),
            combine: Combine::Max,
        },
    ];
    LossTerms { loss, metrics }
}

/// The probability ratio of each token, kept finite.
struct Ratio {
    log_ratio: Tensor,
    ratio: Tensor,
}

impl Ratio {
    fn new(logprob: &Tensor, old_logprob: &Tensor) -> Self {
        let free = logprob - old_logprob;
        let limited = free.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
        let inside = free.abs().le(&free.scalar_like(MAX_LOG_RATIO));
        let log_ratio = inside.select(&free, &limited);
        Self {
            ratio: log_ratio.exp(),
            log_ratio,
        }
    }
}
