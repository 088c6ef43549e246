//! Gradients by logits.

use ferrotune_graph::Tensor;

use super::plain::weigh;

/// What each token's log-prob and entropy are worth, and what its logits are compared with: `[…]`, in the wide type.
#[derive(Clone)]
pub(super) struct RowSlopes {
    /// What the exponent is shifted by.
    pub(super) m: Tensor,
    /// `Σ exp(z − m)`.
    pub(super) total: Tensor,
    /// The cotangent of the log-prob.
    pub(super) logprob: Tensor,
    /// If the entropy has a cotangent: that, and `Σ exp(z − m)·(z − m) / total`.
    pub(super) entropy: Option<[Tensor; 2]>,
}

impl RowSlopes {
    pub(super) fn parts(&self) -> Vec<&Tensor> {
        let rows = [&self.m, &self.total, &self.logprob];
        rows.into_iter()
            .chain(self.entropy.iter().flatten())
            .collect()
    }

    pub(super) fn from(parts: &[Tensor]) -> Self {
        let [m, total, logprob, entropy @ ..] = parts else {
            unreachable!("three numbers of each token or five")
        };
        Self {
            m: m.clone(),
            total: total.clone(),
            logprob: logprob.clone(),
            entropy: <&[Tensor; 2]>::try_from(entropy).ok().cloned(),
        }
    }

    /// The gradient by logits `z [n,v]`.
    ///
    /// `g·(hit − p) − h·p·(ln p + H)`, and `ln p + H = (z − m) − mean`; without a cotangent `h` of the entropy, only the
    /// first. One pass: nothing is summed over the vocabulary.
    pub(super) fn by_logits(&self, z: &Tensor, hit: &Tensor) -> Tensor {
        let shifted = z - self.m.expand(1);
        let exp = shifted.exp();
        let mut expected = &exp * (&self.logprob / &self.total).expand(1);
        if let Some([entropy, mean]) = &self.entropy {
            let spread = weigh(&exp, &(shifted - mean.expand(1)));
            expected = expected + spread * (entropy / &self.total).expand(1);
        }
        self.at_target(hit, z) - expected
    }

    /// The same from `exp(z − m_tile)`, if the entropy has no cotangent.
    pub(super) fn by_terms(&self, terms: &Tensor, m_tile: &Tensor, hit: &Tensor) -> Tensor {
        let share = (m_tile - &self.m).exp() * (&self.logprob / &self.total);
        self.at_target(hit, terms) - terms * share.expand(1)
    }

    fn at_target(&self, hit: &Tensor, like: &Tensor) -> Tensor {
        hit.select(&self.logprob.expand(1), &like.scalar_like(0.0))
    }
}
