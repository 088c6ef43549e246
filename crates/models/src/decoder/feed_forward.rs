//! What each token goes through by itself: a gated block, or experts.
//!
//! Letters besides the decoder's: `M` tokens of all rows, `X` experts, `J` experts of each token, `N` layers with experts.

use ferrotune_graph::{DType, Tensor};
use ferrotune_nn::{
    Capacity, OfTokens, Params, Routing, by_tokens, mix_experts, mix_experts_capped, project,
    swiglu,
};

use super::stacks::{LayerRouted, StackRouted};
use super::{Decoder, Reach};
use crate::config::{ExpertSizes, Feed};

/// What the layers with experts did, in the order of the layers.
#[derive(Clone, Debug)]
pub struct Routed {
    /// Experts that each token went to, s32 `[B,T,N,J]`.
    pub experts: Tensor,
    /// Tokens that went to each expert, padding not counted, f32 `[N,X]`.
    pub load: Tensor,
    /// The sum of the tokens' probabilities of each expert, f32 `[N,X]`.
    pub probability: Tensor,
    /// How many of the experts that tokens chose have dropped them, f32 `[N]`; with
    /// [`capacity_factor`](Decoder::capacity_factor).
    pub dropped: Option<Tensor>,
}

impl Routed {
    pub(super) fn of_stacks(stacks: Vec<StackRouted>) -> Option<Self> {
        let sparse: Vec<StackRouted> = stacks.into_iter().filter(|s| !s.is_empty()).collect();
        if sparse.is_empty() {
            return None;
        }
        // [L,…] for each place → [L·places,…] in the order of the layers.
        let ordered = |which: usize| {
            let stacks = sparse.iter().map(|places| {
                let apart: Vec<Tensor> = places.iter().map(|t| t[which].expand(1)).collect();
                let apart: Vec<&Tensor> = apart.iter().collect();
                let together = Tensor::concatenate(&apart, 1);
                let dims = together.dims();
                together.reshape(&[&[dims[0] * dims[1]], &dims[2..]].concat())
            });
            let stacks: Vec<Tensor> = stacks.collect();
            let stacks: Vec<&Tensor> = stacks.iter().collect();
            Tensor::concatenate(&stacks, 0)
        };
        Some(Self::of(sparse[0][0].len(), ordered))
    }
}

impl Routed {
    /// Of the layers one by one.
    pub(super) fn of_layers(layers: &[LayerRouted]) -> Option<Self> {
        let ordered = |which: usize| {
            let each: Vec<Tensor> = layers.iter().map(|t| t[which].expand(0)).collect();
            Tensor::concatenate(&each.iter().collect::<Vec<_>>(), 0)
        };
        let first = layers.first()?;
        Some(Self::of(first.len(), ordered))
    }

    /// Of so many tensors of each layer, which come with the layers in front.
    fn of(count: usize, ordered: impl Fn(usize) -> Tensor) -> Self {
        let dropped = || {
            let dropped = ordered(3);
            dropped.reshape(&[dropped.dim(0)])
        };
        Self {
            experts: ordered(0).transpose(&[1, 2, 0, 3]),
            load: ordered(1),
            probability: ordered(2),
            dropped: (count > 3).then(dropped),
        }
    }
}

impl Decoder<'_> {
    /// Normed `x [B,T,D]` → what is added to the stream, `[B,T,D]`, and what experts did.
    pub(super) fn feed_forward(
        &self,
        feed: Feed,
        x: &Tensor,
        params: &Params,
        reach: &Reach<'_>,
        replay: Option<&Tensor>,
    ) -> (Tensor, Option<LayerRouted>) {
        match feed {
            Feed::Dense => (swiglu(x, params), None),
            Feed::Experts => {
                let (out, routed) = self.experts(x, params, reach, replay);
                (out, Some(routed))
            }
        }
    }

    /// # Source
    /// `Qwen3MoeSparseMoeBlock` and `Qwen3NextSparseMoeBlock` in transformers: the shared expert's answer is scaled by
    /// `σ(x·shared_expert_gate)`.
    fn experts(
        &self,
        x: &Tensor,
        params: &Params,
        reach: &Reach<'_>,
        replay: Option<&Tensor>,
    ) -> (Tensor, LayerRouted) {
        let g = self.graph();
        let sizes = self
            .config
            .experts
            .expect("a layer with experts has their sizes");
        let counted = match reach {
            Reach::Rows { seq, .. } => seq.segment_ids.gt(&seq.segment_ids.scalar_like(0.0)),
            Reach::Cache(_) => g.full(1.0, DType::Pred, &x.dims()[..2]),
        };
        let given: Vec<Tensor> = [x, &counted].into_iter().chain(replay).cloned().collect();
        let factor = self.capacity_factor;
        let sums = [1; 3];
        let sums = &sums[..2 + usize::from(factor.is_some())];
        let mixed = by_tokens(&given, (&[3, 3], sums), |given| {
            mix(&given[0], &given[1], given.get(2), params, sizes, factor)
        });
        let [mut out, chosen] = <[Tensor; 2]>::try_from(mixed.tokens).expect("two of each token");
        if sizes.shared.is_some() {
            let shared = g.scope("shared_expert", || {
                let answer = swiglu(x, &params.under("shared_expert"));
                let gate = project(x, params, "shared_expert_gate").convert(DType::F32);
                answer * gate.logistic().convert(x.dtype())
            });
            out = out + shared;
        }
        let routed = std::iter::once(chosen).chain(mixed.sums);
        (out, routed.collect())
    }
}

/// The experts' answers to `x [B,T,D]` and the experts chosen `[B,T,J]`; of the tokens that count, load and probability of each
/// expert, and how many choices were dropped where there is a capacity.
fn mix(
    x: &Tensor,
    counted: &Tensor,
    replay: Option<&Tensor>,
    params: &Params,
    sizes: ExpertSizes,
    capacity_factor: Option<f64>,
) -> OfTokens {
    let g = x.graph();
    let (b, t, d, j) = (x.dim(0), x.dim(1), x.dim(2), sizes.top_k);
    let flat = x.reshape(&[b * t, d]);
    let counted = counted.reshape(&[b * t]);
    let routing = Routing {
        top_k: j,
        normalize: sizes.normalize,
    };
    let replay = replay.map(|ids| ids.reshape(&[b * t, j]));
    let routes = g.scope("router", || {
        routing.route(&flat, params.at("router"), replay.as_ref())
    });
    let experts = params.under("experts");
    let (mixed, dropped) = g.scope("experts", || match capacity_factor {
        None => (mix_experts(&flat, &routes, &counted, &experts), None),
        Some(factor) => {
            let capacity = Capacity::of_rows(factor, [b, t], j, sizes.count);
            let (mixed, dropped) = mix_experts_capped(&flat, &routes, &counted, capacity, &experts);
            (mixed, Some(dropped))
        }
    });
    let each = counted.convert(DType::F32).expand(1);
    let probability = (&routes.probabilities * each).sum(&[0]);
    let load = routes.load(&counted).convert(DType::F32);
    OfTokens {
        tokens: vec![
            mixed.reshape(&[b, t, d]),
            routes.experts.reshape(&[b, t, j]),
        ],
        sums: [load, probability]
            .into_iter()
            .chain(dropped.map(|it| it.convert(DType::F32).reshape(&[1])))
            .collect(),
    }
}
