//! Losses: plain graph functions from per-token scores and fields to a weighted sum and its metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrotune_batch::Field;
use ferrotune_graph::Tensor;
use ferrotune_nn::{Combine, EntropyUse};

/// What a loss may read. All tensors are f32 `[B,T]`, and all that belongs to a token sits at one place, the one that predicts
/// it; or, for a separable loss, `[n]` of some tokens at a time.
pub struct LossInputs {
    /// Log-probability of each token given those before it in its document; 0 where nothing is
    /// predicted or the token has no weight.
    pub logprob: Tensor,
    /// Entropy of the distribution that the token was drawn from, in nats; 0 in the same places.
    pub entropy: Tensor,
    /// Weight of each token in the loss; 0 on prompts and padding. It holds the mean over the whole optimizer batch.
    pub loss_weight: Tensor,
    /// The fields that the loss asked for.
    pub fields: BTreeMap<Field, Tensor>,
}

/// A number that is reported with the update. Never differentiated.
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Its value for one micro-batch, an f32 scalar.
    pub value: Tensor,
    /// How micro-batches are put together.
    pub combine: Combine,
}

/// What a loss returns.
pub struct LossTerms {
    /// The f32 scalar to minimise: a sum over tokens, already weighted.
    pub loss: Tensor,
    /// Other numbers to report.
    pub metrics: Vec<Metric>,
}

/// A function from [`LossInputs`] to [`LossTerms`].
pub type LossFunction = dyn Fn(&LossInputs) -> LossTerms + Send + Sync;

/// A loss under a name. Programs are compiled once per name and shape.
#[derive(Clone)]
pub struct Loss {
    /// The name.
    pub name: String,
    /// Per-token fields that it reads.
    pub fields: Vec<Field>,
    /// Whether loss and metrics are sums (or extremes) over tokens of a function of what each token has, to which a token
    /// with zeros everywhere adds nothing. The single pass of the log-prob head needs that.
    pub separable: bool,
    /// What it does with the entropy.
    pub entropy: EntropyUse,
    /// The function.
    pub build: Arc<LossFunction>,
}

impl std::fmt::Debug for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loss")
            .field("name", &self.name)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

impl Loss {
    /// Supervised learning: −Σ weight · log-prob. Reports `entropy_sum` and `token_count` over tokens with a weight.
    pub fn cross_entropy() -> Self {
        let build = |x: &LossInputs| {
            let trained = x
                .loss_weight
                .ne(&x.loss_weight.zeros_like())
                .convert(x.loss_weight.dtype());
            let metric = |name: &str, value: Tensor| Metric {
                name: name.to_owned(),
                value,
                combine: Combine::Sum,
            };
            LossTerms {
                loss: -(&x.loss_weight * &x.logprob).sum_all(),
                metrics: vec![
                    metric("entropy_sum", (&trained * &x.entropy).sum_all()),
                    metric("token_count", trained.sum_all()),
                ],
            }
        };
        Self {
            name: "cross_entropy".to_owned(),
            fields: Vec::new(),
            separable: true,
            entropy: EntropyUse::Reported,
            build: Arc::new(build),
        }
    }
}
