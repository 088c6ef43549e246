//! The log-prob head: how likely the model found each target token, without holding the logits of a whole row.
//!
//! Tokens are scored in chunks of a row's length; the derivative recomputes each chunk. Everything from the logits on is
//! f32. No gather: the logit of the target is selected by comparison and summed.

use ferrotune_graph::{DType, Policy, Tensor};

/// How hidden states are scored.
#[derive(Clone, Debug)]
pub struct Head {
    /// The projection to the vocabulary: `[V,D]` when `tied` to the embedding, else `[D,V]`.
    pub weight: Tensor,
    /// Whether `weight` is the embedding.
    pub tied: bool,
    /// Logits are divided by this before anything else; positive.
    pub temperature: f64,
    /// Tokens of a row that are scored at a time; the last chunk is padded.
    pub token_chunk: usize,
}

/// What the head says of each token, f32 `[B,T]`.
#[derive(Clone, Debug)]
pub struct TokenScores {
    /// Log-probability of the target token.
    pub logprob: Tensor,
    /// Entropy of the distribution, in nats.
    pub entropy: Tensor,
}

impl Head {
    /// Logits, f32: `[B,T,D]` → `[B,T,V]`, divided by the temperature.
    #[track_caller]
    pub fn logits(&self, x_btd: &Tensor) -> Tensor {
        let (g, dtype) = (x_btd.graph(), x_btd.dtype());
        let spec = if self.tied {
            "btd,vd->btv"
        } else {
            "btd,dv->btv"
        };
        let logits = g.einsum(spec, x_btd, &self.weight.convert(dtype), DType::F32);
        if self.temperature == 1.0 {
            logits
        } else {
            logits * (1.0 / self.temperature)
        }
    }

    /// Scores `targets` (s32 `[B,T]`) under the distributions that `x` `[B,T,D]` predicts at the same places.
    ///
    /// A target outside of the vocabulary scores as if its logit were 0; check ids on the host.
    #[track_caller]
    pub fn score(&self, x_btd: &Tensor, targets: &Tensor) -> TokenScores {
        let g = x_btd.graph().clone();
        let (b, t, d) = (x_btd.dim(0), x_btd.dim(1), x_btd.dim(2));
        let chunk = self.token_chunk.clamp(1, t);
        let chunks = t.div_ceil(chunk);
        if chunks == 1 {
            return self.score_chunk(x_btd, targets);
        }
        let padding = chunks * chunk - t;
        let x = x_btd
            .pad(1, 0, padding, 0.0)
            .reshape(&[b, chunks, chunk, d])
            .transpose(&[1, 0, 2, 3]);
        let ids = targets
            .pad(1, 0, padding, 0.0)
            .reshape(&[b, chunks, chunk])
            .transpose(&[1, 0, 2]);
        let (_, scored) = g.scan(
            Policy::recompute(),
            vec![],
            vec![x, ids],
            chunks,
            |_, _, slice| {
                let scores = self.score_chunk(&slice[0], &slice[1]);
                (vec![], vec![scores.logprob, scores.entropy])
            },
        );
        let whole = |stacked: &Tensor| {
            let rows = stacked.transpose(&[1, 0, 2]).reshape(&[b, chunks * chunk]);
            rows.slice(1, 0, t)
        };
        TokenScores {
            logprob: whole(&scored[0]),
            entropy: whole(&scored[1]),
        }
    }

    /// One chunk: with `p = softmax(z)`, the log-prob is `z[target] − lse(z)` and the entropy `lse(z) − Σ p·z`.
    fn score_chunk(&self, x_btd: &Tensor, targets: &Tensor) -> TokenScores {
        let z = self.logits(x_btd);
        let peak = z.max_keep(&[2]).stop_gradient();
        let shifted = &z - &peak;
        let weights = shifted.exp();
        let total = weights.sum(&[2]);
        let log_total = total.ln();
        let logprob = shifted.pick_last(targets) - &log_total;
        let entropy = log_total - (weights * shifted).sum(&[2]) / total;
        TokenScores { logprob, entropy }
    }
}
