//! Softmax attention, with a gate on its result in hybrids.

use ferrotune_graph::{DType, Tensor};
use ferrotune_nn::{CacheView, Params, attend_cache, attend_documents, project, rotate};

use super::{Decoder, InCache, Reach};

impl Decoder<'_> {
    /// Normed `x [B,T,D]` → what attention adds to the stream, `[B,T,D]`, and what a cache holds.
    ///
    /// # Source
    /// `Qwen3NextAttention` in transformers for the gate: `o_proj(mixed ⊙ σ(gate))`, query and gate of a head side by side.
    pub(super) fn attention(
        &self,
        x: &Tensor,
        params: &Params,
        reach: &Reach<'_>,
    ) -> (Tensor, Vec<Tensor>) {
        let (g, c) = (self.graph(), self.config);
        let (b, t, e) = (x.dim(0), x.dim(1), c.head_dim);
        let heads = |name: &str, n: usize, size: usize| {
            g.scope(name, || project(x, params, name).reshape(&[b, t, n, size]))
        };
        let gated = c.family.is_hybrid();
        let mut q = heads(
            "q_proj",
            c.num_attention_heads,
            if gated { 2 * e } else { e },
        );
        let gate = gated.then(|| q.slice(3, e, 2 * e));
        if gated {
            q = q.slice(3, 0, e);
        }
        let mut k = heads("k_proj", c.num_key_value_heads, e);
        let v = heads("v_proj", c.num_key_value_heads, e);
        if c.family.qk_norm() {
            q = self.norm(&q, params.at("q_norm"));
            k = self.norm(&k, params.at("k_norm"));
        }
        let (mut mixed, held) = self.mix([&q, &k, &v], reach);
        if let Some(gate) = gate {
            let open = gate.convert(DType::F32).logistic().convert(mixed.dtype());
            mixed = mixed * open;
        }
        let flat = mixed.reshape(&[b, t, c.num_attention_heads * e]);
        (g.scope("o_proj", || project(&flat, params, "o_proj")), held)
    }

    /// `q [B,T,H,E]`, `k` and `v` `[B,T,K,E]` → what each query reads, `[B,T,H,E]`, and what a cache holds.
    fn mix(&self, [q, k, v]: [&Tensor; 3], reach: &Reach<'_>) -> (Tensor, Vec<Tensor>) {
        match reach {
            Reach::Rows {
                seq,
                rotation,
                keep,
            } => {
                let (k, v) = (slots_last(&rotate(k, rotation)), slots_last(v));
                let mixed = attend_documents(&rotate(q, rotation), &k, &v, seq, self.queries);
                (mixed, if *keep { vec![k, v] } else { vec![] })
            }
            Reach::Cache(at) => mix_cached(&rotate(q, at.rotation), &rotate(k, at.rotation), v, at),
        }
    }
}

/// The same for one more token of each row, all rotated: keys and values are put into the cache and read there.
pub(super) fn mix_cached(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    at: &InCache<'_>,
) -> (Tensor, Vec<Tensor>) {
    let zero = at.slot.scalar_like(0.0);
    let store = |whole: &Tensor, new: &Tensor| {
        let new = slots_last(new).expand(0);
        whole.dynamic_update_slice(&new, &[at.repeat, &zero, &zero, at.slot, &zero])
    };
    let view = CacheView {
        keys: store(&at.held[0], k),
        values: store(&at.held[1], v),
        layer: at.repeat.clone(),
        first: at.first.clone(),
        last: at.slot.clone(),
    };
    let mixed = attend_cache(q, &view);
    (mixed, vec![view.keys, view.values])
}

/// `[B,T,K,E]` → `[B,K,T,E]`.
fn slots_last(heads: &Tensor) -> Tensor {
    heads.transpose(&[0, 2, 1, 3])
}
