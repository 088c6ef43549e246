//! A layer over one more token of each row, in the few calls that the processor likes best.

use ferrotune_graph::Tensor;
use ferrotune_nn::{FeedStep, HeadsStep, Params};

use super::attention::mix_cached;
use super::{Decoder, InCache, LayerOut};
use crate::config::{Feed, LayerKind, Mixer};

impl Decoder<'_> {
    /// Whether a layer is softmax attention and a gated block, without anything that [`Decoder::step`] does not know.
    pub(super) fn is_plain(&self, kind: LayerKind, params: &Params) -> bool {
        let (attention, mlp) = (params.under("attn"), params.under("mlp"));
        kind.mixer == Mixer::Attention
            && kind.feed == Feed::Dense
            && !self.config.family.is_hybrid()
            && HeadsStep::fits(&attention, self.compute)
            && FeedStep::fits(&attention, &mlp, self.compute)
    }

    /// Such a layer: `x [B,1,D]` → the same.
    pub(super) fn step(&self, params: &Params, x: &Tensor, at: &InCache<'_>) -> LayerOut {
        let (g, c) = (self.graph(), self.config);
        let (attention, mlp) = (params.under("attn"), params.under("mlp"));
        let norms = c.family.qk_norm();
        let (mixed, held) = g.scope("attn", || {
            let heads = HeadsStep {
                norm: params.at("input_norm"),
                eps: c.rms_norm_eps,
                params: &attention,
                head_norms: norms.then(|| ["q_norm", "k_norm"].map(|name| attention.at(name))),
                head_size: c.head_dim,
            };
            let [q, k, v] = heads.of(x, at.rotation);
            mix_cached(&q, &k, &v, at)
        });
        let feed = FeedStep {
            attention: &attention,
            norm: params.at("post_attn_norm"),
            eps: c.rms_norm_eps,
            mlp: &mlp,
        };
        LayerOut {
            x: g.scope("mlp", || feed.of(x, &mixed)),
            held,
            routed: None,
        }
    }
}
