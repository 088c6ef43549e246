//! The decoder: the same layer code for training and for sampling.
//!
//! Over whole rows, layers of one kind are scanned, hybrids by their repeating block; a decoding step walks the layers one by
//! one, which spares copies of their weights. What differs between training, prefill and
//! decoding is only how a layer reaches tokens other than those it is given: see [`Reach`].
//!
//! Letters: `B` rows, `T` tokens, `S` cache slots, `D` width, `H`/`K` query/key heads, `E` head size, `L` repeats of a
//! stack.

mod attention;
mod cache;
mod delta;
mod feed_forward;
mod stacks;
mod step;

use ferrotune_graph::{DType, Graph, Policy, Tensor};
use ferrotune_nn::{
    EntropyUse, Head, HeadSettings, Params, QueryOrder, Rotation, Sequence, rms_norm,
};

pub use self::cache::{Cache, CacheEntry};
pub use self::feed_forward::Routed;
use self::stacks::LayerRouted;
use crate::config::{LayerKind, Mixer, ModelConfig};

/// Traces a model with given parameters.
pub struct Decoder<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// Its parameters, by the paths of [`ModelConfig::params`], and adapters where there are any.
    pub params: &'a Params,
    /// Element type of activations and products.
    pub compute: DType,
    /// What the layers keep for the backward pass.
    pub policy: Policy,
    /// Which queries of attention a device works on, where devices share a row.
    pub queries: QueryOrder,
    /// Experts take so many times a row's even share of its tokens and drop the others, as
    /// [`mix_experts_capped`](ferrotune_nn::mix_experts_capped) says; `None` drops nothing.
    pub capacity_factor: Option<f64>,
}

/// What the decoder makes of rows of tokens.
pub struct Forward {
    /// Hidden states after the final norm, `[B,T,D]` in the compute type.
    pub hidden: Tensor,
    /// What the layers with experts did, if there are any.
    pub routed: Option<Routed>,
}

/// How a layer reaches tokens other than those it is given.
enum Reach<'a> {
    /// They are in the same rows.
    Rows {
        seq: &'a Sequence,
        rotation: &'a Rotation,
        /// Whether what a cache holds of them is to be kept.
        keep: bool,
    },
    /// They are in a cache, and the rows have one more token each.
    Cache(InCache<'a>),
}

/// Where one more token of each row goes.
struct InCache<'a> {
    rotation: &'a Rotation,
    /// The cache's tensors for this place of the block, of all repeats.
    held: Vec<Tensor>,
    /// Which repeat, s32 scalar.
    repeat: &'a Tensor,
    /// Slot of the new token, s32 scalar.
    slot: &'a Tensor,
    /// First slot that each row reads, s32 `[B]`.
    first: &'a Tensor,
}

/// What a layer gives.
struct LayerOut {
    x: Tensor,
    /// What a cache holds of its tokens, if asked for; in a cache, the cache's tensors with the new token.
    held: Vec<Tensor>,
    /// What its experts did.
    routed: Option<LayerRouted>,
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

    /// The family's norm over the last dimension.
    fn norm(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let eps = self.config.rms_norm_eps;
        if self.config.family.is_hybrid() {
            rms_norm(x, &(weight.convert(DType::F32) + 1.0), eps)
        } else {
            rms_norm(x, weight, eps)
        }
    }

    fn rotation(&self, positions: &Tensor) -> Rotation {
        let rotary = &self.config.rotary;
        Rotation::new(positions, &rotary.frequencies(), rotary.amplitude())
    }

    /// One layer: `x [B,T,D]` → the same.
    ///
    /// `replay` says which experts tokens go to, s32 `[B,T,J]`; −1 leaves it to the router.
    fn layer(
        &self,
        kind: LayerKind,
        params: &Params,
        x: &Tensor,
        reach: &Reach<'_>,
        replay: Option<&Tensor>,
    ) -> LayerOut {
        if let Reach::Cache(at) = reach
            && self.is_plain(kind, params)
        {
            return self.step(params, x, at);
        }
        let g = self.graph();
        let (mixed, held) = match kind.mixer {
            Mixer::Attention => g.scope("attn", || {
                let normed = self.norm(x, params.at("input_norm"));
                self.attention(&normed, &params.under("attn"), reach)
            }),
            Mixer::Delta => g.scope("delta", || {
                let normed = self.norm(x, params.at("input_norm"));
                self.delta(&normed, &params.under("delta"), reach)
            }),
        };
        let x = x + mixed;
        let (fed, routed) = g.scope("mlp", || {
            let normed = self.norm(&x, params.at("post_attn_norm"));
            self.feed_forward(kind.feed, &normed, &params.under("mlp"), reach, replay)
        });
        LayerOut {
            x: (x + fed).shard(&["batch", "tokens", "_"]),
            held,
            routed,
        }
    }

    fn finish(&self, x: &Tensor) -> Tensor {
        let weight = self.params.at("final_norm");
        self.graph().scope("final_norm", || self.norm(x, weight))
    }

    /// Hidden states after the final norm: tokens s32 `[B,T]` → `[B,T,D]` in the compute type.
    #[track_caller]
    pub fn hidden(&self, tokens: &Tensor, seq: &Sequence) -> Tensor {
        self.forward(tokens, seq, None).hidden
    }

    /// The same, and what the layers with experts did.
    ///
    /// `replay`, s32 `[B,T,N,J]` for `N` layers with experts and `J` experts of each token, sends tokens to experts that were
    /// chosen before; −1 leaves the choice to the router. Either way the router's weights are those that it has now.
    #[track_caller]
    pub fn forward(&self, tokens: &Tensor, seq: &Sequence, replay: Option<&Tensor>) -> Forward {
        let (hidden, _, routed) = self.rows(tokens, seq, replay, false);
        Forward { hidden, routed }
    }

    /// Hidden states, and what a cache holds of the rows: slot `t` is that of token `t`.
    ///
    /// A row's document must end with the row; what stands before it is padding.
    #[track_caller]
    pub fn prefill(&self, tokens: &Tensor, seq: &Sequence) -> (Forward, Cache) {
        let (hidden, tensors, routed) = self.rows(tokens, seq, None, true);
        (Forward { hidden, routed }, Cache { tensors })
    }

    fn rows(
        &self,
        tokens: &Tensor,
        seq: &Sequence,
        replay: Option<&Tensor>,
        keep: bool,
    ) -> (Tensor, Vec<Tensor>, Option<Routed>) {
        let g = self.graph();
        let x = g.scope("embed", || self.embed(tokens));
        let rotation = self.rotation(&seq.positions);
        let reach = Reach::Rows {
            seq,
            rotation: &rotation,
            keep,
        };
        let (x, held, routed) = self.run_rows(x, &reach, replay);
        (self.finish(&x), held, Routed::of_stacks(routed))
    }

    /// One more token per row, written to slot `slot` of the ring; each row reads the slots from `first` to that one, past
    /// the end of the ring and on from its beginning where `first` is greater. `layers` are those of [`Decoder::layers`].
    ///
    /// # Shapes
    /// `tokens` and `positions` s32 `[B,1]`, `slot` s32 scalar, `first` s32 `[B]` → what the decoder makes of `[B,1]` tokens,
    /// and the cache with the slot filled.
    #[track_caller]
    pub fn decode(
        &self,
        layers: &[Params],
        tokens: &Tensor,
        positions: &Tensor,
        slot: &Tensor,
        first: &Tensor,
        cache: &Cache,
    ) -> (Forward, Cache) {
        let g = self.graph();
        let x = g.scope("embed", || self.embed(tokens));
        let rotation = self.rotation(positions);
        let (x, tensors, routed) = self.run_cache(layers, x, &rotation, (slot, first), cache);
        let forward = Forward {
            hidden: self.finish(&x),
            routed: Routed::of_layers(&routed),
        };
        (forward, Cache { tensors })
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
        let name = if tied { "embed" } else { "lm_head" };
        let weight = self.params.at(name).clone();
        // A weight that is turned lies as an embedding does.
        let tied = tied || self.params.transposed_weights();
        Head {
            weight,
            tied,
            temperature,
            settings,
            entropy,
        }
    }
}
