//! The decoder: the same layer code for training and for sampling.
//!
//! Layers are stacked and scanned. What differs between training, prefill and decoding is only where keys and values
//! come from, so [`Decoder::layer`] takes that as a function.
//!
//! Letters: `B` rows, `T` tokens, `S` cache slots, `D` width, `H`/`K` query/key heads, `E` head size, `L` layers.

use ferrotune_graph::{DType, Graph, Policy, Tensor};
use ferrotune_nn::{
    CacheView, EntropyUse, Head, HeadSettings, Params, Rotation, Sequence, attend, attend_cache,
    causal_mask, linear, rms_norm, rotate, swiglu,
};

use crate::cache::Cache;
use crate::config::ModelConfig;

/// Traces a model with given parameters.
pub struct Decoder<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// Its parameters, by the paths of [`ModelConfig::params`].
    pub params: &'a Params,
    /// Element type of activations and products.
    pub compute: DType,
    /// What the layers keep for the backward pass.
    pub policy: Policy,
}

impl Decoder<'_> {
    fn graph(&self) -> Graph {
        self.params.at("embed").graph().clone()
    }

    /// Embeddings of tokens: s32 `[B,T]` → `[B,T,D]` in the compute type.
    fn embed(&self, tokens: &Tensor) -> Tensor {
        let table = self.params.at("embed");
        let rows = table.take(tokens).convert(self.compute);
        rows.shard(&["batch", "tokens", "_"])
    }

    fn stacked_layers(&self) -> (Vec<String>, Vec<Tensor>) {
        self.params.under("layers").entries().into_iter().unzip()
    }

    /// One layer. `attention(q [B,T,H,E], k [B,T,K,E], v [B,T,K,E]) → [B,T,H,E]` sees rotated queries and keys.
    fn layer(
        &self,
        params: &Params,
        x: &Tensor,
        rotation: &Rotation,
        attention: impl FnOnce(&Tensor, &Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let (g, c) = (self.graph(), self.config);
        let (b, t, e) = (x.dim(0), x.dim(1), c.head_dim);
        let attended = g.scope("attn", || {
            let normed = rms_norm(x, params.at("input_norm"), c.rms_norm_eps);
            let attn = params.under("attn");
            let heads = |name: &str, n: usize| {
                g.scope(name, || {
                    linear(&normed, attn.at(name)).reshape(&[b, t, n, e])
                })
            };
            let mut q = heads("q_proj", c.num_attention_heads);
            let mut k = heads("k_proj", c.num_key_value_heads);
            let v = heads("v_proj", c.num_key_value_heads);
            if c.family.qk_norm() {
                q = rms_norm(&q, attn.at("q_norm"), c.rms_norm_eps);
                k = rms_norm(&k, attn.at("k_norm"), c.rms_norm_eps);
            }
            let mixed = attention(&rotate(&q, rotation), &rotate(&k, rotation), &v);
            let flat = mixed.reshape(&[b, t, c.num_attention_heads * e]);
            g.scope("o_proj", || linear(&flat, attn.at("o_proj")))
        });
        let x = x + attended;
        let fed = g.scope("mlp", || {
            let normed = rms_norm(&x, params.at("post_attn_norm"), c.rms_norm_eps);
            swiglu(&normed, &params.under("mlp"))
        });
        (x + fed).shard(&["batch", "tokens", "_"])
    }

    fn finish(&self, x: &Tensor) -> Tensor {
        let weight = self.params.at("final_norm");
        self.graph().scope("final_norm", || {
            rms_norm(x, weight, self.config.rms_norm_eps)
        })
    }

    /// Hidden states after the final norm: tokens s32 `[B,T]` → `[B,T,D]` in the compute type.
    #[track_caller]
    pub fn hidden(&self, tokens: &Tensor, seq: &Sequence) -> Tensor {
        self.run(tokens, seq, false).0
    }

    /// Hidden states, and a cache whose slots are the tokens in their order.
    #[track_caller]
    pub fn prefill(&self, tokens: &Tensor, seq: &Sequence) -> (Tensor, Cache) {
        let (hidden, tensors) = self.run(tokens, seq, true);
        (hidden, Cache { tensors })
    }

    fn run(&self, tokens: &Tensor, seq: &Sequence, keep: bool) -> (Tensor, Vec<Tensor>) {
        let g = self.graph();
        let x = g.scope("embed", || self.embed(tokens));
        let rotation = Rotation::new(&seq.positions, self.config.head_dim, self.config.rope_theta);
        let mask = causal_mask(seq);
        let (names, layers) = self.stacked_layers();
        let count = self.config.num_hidden_layers;
        let (carry, kept) = g.scope("layers", || {
            g.scan(
                self.policy.clone(),
                vec![x],
                layers,
                count,
                |_, carry, slices| {
                    let params = Params::new(names.iter().cloned().zip(slices.iter().cloned()));
                    let mut kept = Vec::new();
                    let x = self.layer(&params, &carry[0], &rotation, |q, k, v| {
                        let (k, v) = (k.transpose(&[0, 2, 1, 3]), v.transpose(&[0, 2, 1, 3]));
                        let mixed = attend(q, &k, &v, &mask);
                        if keep {
                            kept = vec![k, v];
                        }
                        mixed
                    });
                    (vec![x], kept)
                },
            )
        });
        (self.finish(&carry[0]), kept)
    }

    /// Each layer's own parameters, cut out of the stacked ones.
    ///
    /// A loop of [`Decoder::decode`] reads what is cut before it where it is. Cut inside, as a scan does, every layer would be
    /// copied at every step, and the copies would take as long as the products of a few rows.
    pub fn layers(&self) -> Vec<Params> {
        let stacked = self.params.under("layers").entries();
        let cut = |layer: usize| {
            let own = stacked.iter().map(|(name, all)| {
                let own = all.slice(0, layer, layer + 1).reshape(&all.dims()[1..]);
                (name.clone(), own)
            });
            Params::new(own.collect::<Vec<_>>())
        };
        (0..self.config.num_hidden_layers).map(cut).collect()
    }

    /// One more token per row, written to slot `slot` of the ring; each row reads the slots from `first` to that one, past
    /// the end of the ring and on from its beginning where `first` is greater. `layers` are those of [`Decoder::layers`].
    ///
    /// # Shapes
    /// `tokens` and `positions` s32 `[B,1]`, `slot` s32 scalar, `first` s32 `[B]` → hidden `[B,1,D]` and the cache with
    /// the slot filled.
    #[track_caller]
    pub fn decode(
        &self,
        layers: &[Params],
        tokens: &Tensor,
        positions: &Tensor,
        slot: &Tensor,
        first: &Tensor,
        cache: &Cache,
    ) -> (Tensor, Cache) {
        let g = self.graph();
        let mut x = g.scope("embed", || self.embed(tokens));
        let rotation = Rotation::new(positions, self.config.head_dim, self.config.rope_theta);
        let zero = g.scalar(0.0, DType::S32);
        let mut tensors = cache.tensors.clone();
        for (index, params) in layers.iter().enumerate() {
            let index = g.scalar(index as f64, DType::S32);
            let store = |whole: &Tensor, new: &Tensor| {
                let new = new.transpose(&[0, 2, 1, 3]).expand(0);
                whole.dynamic_update_slice(&new, &[&index, &zero, &zero, slot, &zero])
            };
            x = g.scope("layers", || {
                self.layer(params, &x, &rotation, |q, k, v| {
                    let view = CacheView {
                        keys: store(&tensors[0], k),
                        values: store(&tensors[1], v),
                        layer: index.clone(),
                        first: first.clone(),
                        last: slot.clone(),
                    };
                    tensors = vec![view.keys.clone(), view.values.clone()];
                    attend_cache(q, &view)
                })
            });
        }
        (self.finish(&x), Cache { tensors })
    }

    /// Logits, f32: hidden states `[…,D]` → `[…,V]`.
    #[track_caller]
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        let head = self.head(1.0, HeadSettings::off(), EntropyUse::Unread);
        head.logits(hidden)
    }

    /// The log-prob head over this model's vocabulary.
    pub fn head(&self, temperature: f64, settings: HeadSettings, entropy: EntropyUse) -> Head {
        let tied = self.config.tie_word_embeddings;
        let weight = self
            .params
            .at(if tied { "embed" } else { "lm_head" })
            .clone();
        Head {
            weight,
            tied,
            temperature,
            settings,
            entropy,
        }
    }
}
