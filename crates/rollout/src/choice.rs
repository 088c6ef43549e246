//! From logits to the next token: greedy or drawn, with its log-probs.
//!
//! Letters: `B` rows, `V` vocabulary. Everything is f32.

use ferrotune_graph::{DType, Tensor, random};
use ferrotune_nn::{Filters, LogitSummary};

/// How each row draws.
pub(crate) struct Draw {
    /// Seeds, u32 `[B,2]`: low word, high word.
    pub(crate) seed: Tensor,
    /// Rows that take the most likely token, boolean `[B]`.
    pub(crate) greedy: Tensor,
    /// What logits are multiplied by, f32 `[B]`; 1 for greedy rows.
    pub(crate) inverse_temperature: Tensor,
    /// What may be drawn; everything for greedy rows.
    pub(crate) filters: Filters,
}

/// The chosen tokens.
pub(crate) struct Choice {
    /// Token ids, s32 `[B]`.
    pub(crate) token: Tensor,
    /// Log-probs in the distribution that was drawn from, f32 `[B]`.
    pub(crate) logprob: Tensor,
    /// Log-probs in the model's distribution, f32 `[B]`.
    pub(crate) raw_logprob: Tensor,
}

impl Draw {
    /// Chooses token number `index` (s32 `[B]`, counted from 0) of each row's answer from logits f32 `[B,V]`.
    ///
    /// Adding independent Gumbel noise and taking the largest draws from the softmax.
    ///
    /// # Source
    /// Gumbel, "Statistical theory of extreme values" (1954); Maddison, Tarlow and Minka, "A* sampling" (2014), §2.
    pub(crate) fn choose(&self, logits_bv: &Tensor, index: &Tensor) -> Choice {
        let g = logits_bv.graph();
        let scaled = logits_bv * self.inverse_temperature.expand(1);
        let least = self.filters.least(&scaled);
        let dropped = scaled.scalar_like(f64::NEG_INFINITY);
        let keep = || scaled.ge(&least.expand(1)).select(&scaled, &dropped);
        let raw = LogitSummary::of(logits_bv);
        let draws = self.greedy.not().any(&[0]);
        let token = g.cond(
            &draws,
            || {
                // Alone in its loop the noise is vectorised; fused into the search for the largest it would not be.
                let noise = g.barrier(&[&self.noise(logits_bv.dim(1), index)]).remove(0);
                vec![LogitSummary::of(&(keep() + noise)).best]
            },
            || vec![raw.best.clone()],
        );
        let token = token[0].clone();
        let raw_logprob = raw.log_prob(logits_bv, &token);
        // Rows that draw from the model's own distribution have its log-prob, to the last bit, whatever other rows do.
        let one = self.inverse_temperature.scalar_like(1.0);
        let plain = self.inverse_temperature.eq(&one).and(&self.filters.off());
        let others = g.cond(
            &plain.not().any(&[0]),
            || vec![LogitSummary::of(&keep()).log_prob(&keep(), &token)],
            || vec![raw_logprob.clone()],
        );
        Choice {
            logprob: plain.select(&raw_logprob, &others[0]),
            raw_logprob,
            token,
        }
    }

    /// Gumbel noise f32 `[B,V]`, −ln(−ln u), with u a function of (seed, index, vocabulary entry); 0 for greedy rows.
    fn noise(&self, vocab_size: usize, index: &Tensor) -> Tensor {
        let g = index.graph();
        let key = [self.seed.slice(1, 0, 1), self.seed.slice(1, 1, 2)];
        let counter = [
            index.convert(DType::U32).expand(1),
            g.iota(DType::U32, &[1, vocab_size], 1),
        ];
        let [bits, _] = random::threefry_2x32([&key[0], &key[1]], [&counter[0], &counter[1]]);
        let gumbel = -((-random::open_uniform(&bits).ln()).ln());
        self.greedy
            .expand(1)
            .select(&gumbel.scalar_like(0.0), &gumbel)
    }
}
