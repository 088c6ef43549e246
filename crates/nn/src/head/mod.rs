//! The log-prob head: how likely the model found each target token, without holding the logits of all tokens.
//!
//! With logits `z = x·w / temperature` (`[N,V]`), `m` the largest of a row and `s = Σ exp(z − m)`:
//!
//! - log-prob of target `y`: `z_y − m − ln s`; its derivative by `z` is `hit − p`, with `p = exp(z − m) / s`
//! - entropy: `H = ln s − Σ exp(z − m)·(z − m) / s`; its derivative by `z` is `−p·(ln p + H)`
//!
//! Everything from the logits on is f32 (f64 for f64 inputs), whatever the type of the products. There is no gather: the
//! logit of the target is selected by comparison and summed.
//!
//! | mode | passes over the logits of a chunk | holds |
//! |---|---|---|
//! | [`Off`](HeadMode::Off) | whatever autodiff makes of the formulas, all tokens at once | `[N,V]`, several times |
//! | [`Local`](HeadMode::Local) | the same, chunk by chunk; the derivative repeats each chunk | `[n,V]`, several times |
//! | [`Fused`](HeadMode::Fused) | one forward; one backward over recomputed logits, 4 products | `[n,v]` |
//! | [`SinglePass`](HeadMode::SinglePass) | one, which forms the loss, dx and dw together, 3 products | `[n,V]` once |
//!
//! `n` is [`HeadSettings::token_chunk`], `v` is [`HeadSettings::vocab_chunk`]. Neither has to divide anything.
//!
//! On the CPU the passes of the last two are kernels of this process wherever a device has all weights: a thread multiplies,
//! sums up and differentiates a tile of at most 512 entries while it is in its cache. `Fused` then takes all tokens at once.
//!
//! # Rows that are not finite
//! A maximum that is not finite counts as 0. So a NaN among the logits of a row makes its log-prob and entropy NaN; so
//! does a row without any finite logit; +∞ makes the entropy NaN and the log-prob NaN where it is the target, −∞
//! elsewhere; −∞ is a token that cannot be drawn: it has log-prob −∞ and adds nothing to the entropy. Tokens that are
//! masked read none of this: their hidden states are taken for zeros, their scores are 0 and no cotangent passes.
//!
//! # Source
//! Online maximum and sum: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
//! Chunked cross-entropy with its gradient in the forward pass: Hsu et al., "Liger Kernel" (2024), §3.2; Wijmans et al.,
//! "Cut your losses in large-vocabulary language models" (2024), for the tiles over tokens and vocabulary.

mod fused;
mod kept;
mod kernels;
mod loops;
mod plain;
mod projection;
mod region;
mod settings;
mod single_pass;
mod slopes;

use ferrotune_graph::{DType, Tensor};

pub use kept::Kept;
use projection::Tile;
pub use settings::{EntropyUse, HeadMode, HeadSettings, HeadSizes};
pub use single_pass::{Combine, PartialLoss};

/// How hidden states are scored.
#[derive(Clone, Debug)]
pub struct Head {
    /// The projection to the vocabulary: `[V,D]` when `tied` to the embedding, else `[D,V]`.
    pub weight: Tensor,
    /// Whether `weight` is the embedding.
    pub tied: bool,
    /// Logits are divided by this before anything else; positive and finite.
    pub temperature: f64,
    /// The algorithm and its chunks.
    pub settings: HeadSettings,
    /// What is done with the entropy.
    pub entropy: EntropyUse,
}

/// What the head says of each token, `[B,T]`.
#[derive(Clone, Debug)]
pub struct TokenScores {
    /// Log-probability of the target token, f32.
    pub logprob: Tensor,
    /// Entropy of the distribution, in nats, f32.
    pub entropy: Tensor,
    /// Whether no token was more likely than the target, boolean.
    pub hit: Tensor,
}

/// The element type of all that is computed from logits.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 {
        dtype
    } else {
        DType::F32
    }
}

impl Head {
    /// # Panics
    /// When the temperature divides by nothing.
    #[track_caller]
    fn check(&self) {
        assert!(
            self.temperature > 0.0 && self.temperature.is_finite(),
            "logits cannot be divided by the temperature {}",
            self.temperature
        );
    }

    /// Logits, f32: `[…,D]` → `[…,V]`, divided by the temperature.
    ///
    /// # Panics
    /// When the temperature is not positive and finite.
    #[track_caller]
    pub fn logits(&self, x: &Tensor) -> Tensor {
        self.check();
        let weight = self.weight.convert(x.dtype());
        plain::logits(x, &weight, self.tied, self.temperature)
    }

    /// The weights as they are, for the partitioner to split.
    fn all_weights(&self, dtype: DType) -> Tile {
        let vocab = self.weight.dim(usize::from(!self.tied));
        Tile {
            weight: self.weight.convert(dtype),
            columns: self.weight.graph().iota(DType::S32, &[vocab], 0),
        }
    }

    /// Scores `targets` (s32 `[B,T]`) under the distributions that `x` `[B,T,D]` predicts at the same places.
    ///
    /// Where `mask` (boolean `[B,T]`) does not hold, scores are 0 and `x` may hold anything. Differentiable by `x` and by
    /// the weight, through the log-prob and, if [`EntropyUse::Differentiated`], through the entropy. A target outside of
    /// the vocabulary scores as if its logit were 0; check ids on the host.
    ///
    /// On a mesh, every device scores its own tokens: `x` is split as activations are (`batch`, `tokens`), the weight as
    /// its parameter is (`embed`, `vocab`). Mesh axes that split the width, or the vocabulary and tokens, are gathered,
    /// tile by tile; those that split the vocabulary alone exchange three numbers a token.
    ///
    /// # Panics
    /// When the temperature is not positive and finite, or a chunk is empty.
    #[track_caller]
    pub fn score(&self, x: &Tensor, targets: &Tensor, mask: Option<&Tensor>) -> TokenScores {
        self.check();
        let all = x.graph().full(1.0, DType::Pred, &targets.dims());
        let mask = mask.unwrap_or(&all);
        let scores = match self.settings.mode {
            HeadMode::Off => self.plain(x, &self.all_weights(x.dtype()), &[], targets, mask),
            HeadMode::Local => self.scores_in_region(x, targets, mask, Self::local),
            // Scores alone are the same in both: what the single pass saves is in the derivative.
            HeadMode::Fused | HeadMode::SinglePass => {
                self.scores_in_region(x, targets, mask, Self::fused)
            }
        };
        let masked = |t: &Tensor| mask.select(t, &t.scalar_like(0.0));
        let entropy = match self.entropy {
            EntropyUse::Differentiated => scores.entropy,
            EntropyUse::Unread | EntropyUse::Reported => scores.entropy.stop_gradient(),
        };
        TokenScores {
            logprob: masked(&scores.logprob),
            entropy: masked(&entropy),
            hit: scores.hit.and(mask),
        }
    }
}
