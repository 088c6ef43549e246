//! A mixture of experts without dropping: tokens sorted by expert, one grouped product for all of them.
//!
//! Letters besides the crate's: `M` tokens of all rows, `X` experts, `J` experts of each token.

use ferrotune_graph::{DType, Tensor};

use crate::params::Params;

/// How a family routes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts of each token.
    pub top_k: usize,
    /// Whether the weights of the chosen experts are made to add up to 1.
    pub normalize: bool,
}

/// Which experts each token goes to, and with what weight.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Experts, s32 `[M,J]`, the likeliest first.
    pub experts: Tensor,
    /// Their weights, f32 `[M,J]`.
    pub weights: Tensor,
    /// Probability of every expert, f32 `[M,X]`.
    pub probabilities: Tensor,
}

impl Routing {
    /// Routes tokens `x [M,D]` by the router's weights `[D,X]`: the softmax over all experts, in f32, cut to the largest.
    ///
    /// `replay`, s32 `[M,J]`, gives experts that were chosen before; −1 leaves the choice to the router. Weights are those
    /// that the router has now, so that it gets a gradient either way.
    #[track_caller]
    pub fn route(&self, x_md: &Tensor, router_dx: &Tensor, replay: Option<&Tensor>) -> Routes {
        let g = x_md.graph();
        let logits = g.einsum(
            "md,dx->mx",
            &x_md.convert(DType::F32),
            &router_dx.convert(DType::F32),
            DType::F32,
        );
        let peak = logits.max_keep(&[1]).stop_gradient();
        let odds = (logits - peak).exp();
        let probabilities = &odds / odds.sum_keep(&[1]);
        let (_, chosen) = probabilities.stop_gradient().top_k(self.top_k);
        let experts = match replay {
            Some(given) => given.ge(&given.scalar_like(0.0)).select(given, &chosen),
            None => chosen,
        };
        let weights = chosen_of(&probabilities, &experts);
        let weights = if self.normalize {
            &weights / weights.sum_keep(&[1])
        } else {
            weights
        };
        Routes {
            experts,
            weights,
            probabilities,
        }
    }
}

/// Elements of `[M,X]` at `[M,J]`, by comparison and sum: neither it nor its derivative gathers or scatters.
fn chosen_of(values_mx: &Tensor, ids_mj: &Tensor) -> Tensor {
    let (m, x) = (values_mx.dim(0), values_mx.dim(1));
    let index = values_mx
        .graph()
        .iota(ids_mj.dtype(), &[m, ids_mj.dim(1), x], 2);
    let hit = index.eq(&ids_mj.expand(2));
    hit.select(&values_mx.expand(1), &values_mx.scalar_like(0.0))
        .sum(&[2])
}

impl Routes {
    /// Tokens that each expert gets, s32 `[X]`; those where `counted` (boolean `[M]`) is false go nowhere.
    #[track_caller]
    pub fn load(&self, counted: &Tensor) -> Tensor {
        self.hits(counted).convert(DType::S32).sum(&[0, 1])
    }

    /// `[M,J,X]`: whether a token that counts goes to an expert.
    pub(crate) fn hits(&self, counted: &Tensor) -> Tensor {
        let dims = [
            self.experts.dim(0),
            self.experts.dim(1),
            self.probabilities.dim(1),
        ];
        let index = self.experts.graph().iota(DType::S32, &dims, 2);
        index
            .eq(&self.experts.expand(2))
            .and(&counted.expand(1).expand(2))
    }

    /// A copy of every token for each of its experts: `[M,D]` → `[M·J,D]`.
    pub(crate) fn copies(&self, x_md: &Tensor) -> Tensor {
        let (m, d, j) = (x_md.dim(0), x_md.dim(1), self.experts.dim(1));
        let copies = x_md.expand(1).broadcast_to(&[m, j, d]);
        copies.reshape(&[m * j, d])
    }

    /// The weighted sum, in f32, of what a token's experts say: `[M·J,D]` → `[M,D]`.
    pub(crate) fn weighted(&self, answers: &Tensor) -> Tensor {
        let (m, j, d) = (self.experts.dim(0), self.experts.dim(1), answers.dim(1));
        let each = answers.reshape(&[m, j, d]).convert(DType::F32);
        (each * self.weights.expand(2))
            .sum(&[1])
            .convert(answers.dtype())
    }

    /// How far the tokens are from being spread evenly over the experts, a scalar: `X Σₓ fₓ pₓ` with `fₓ` the experts
    /// chosen per token that are `x` and `pₓ` its mean probability; `J` at best. Only `p` is differentiated.
    ///
    /// # Source
    /// Fedus, Zoph and Shazeer, "Switch transformers" (2021), eq. 4–6, with `f` summing to `J`.
    #[track_caller]
    pub fn imbalance(&self, counted: &Tensor) -> Tensor {
        let tokens = counted.convert(DType::F32);
        let total = tokens.sum(&[0]).maximum(&tokens.scalar_like(1.0));
        let fraction = self.load(counted).convert(DType::F32) / &total;
        let probability = (&self.probabilities * tokens.expand(1)).sum(&[0]) / total;
        (fraction * probability).sum(&[0]) * self.probabilities.dim(1) as f64
    }
}

/// `Σⱼ weightⱼ · swiglu_{expertⱼ}(x)` for every token, by products of exactly the tokens that each expert gets.
///
/// Tokens where `counted` is false (padding) go to no expert and give zeros. The sum over a token's experts is f32.
///
/// # Shapes
/// `x [M,D]`, routes of `M` tokens, `counted` boolean `[M]`; parameters `gate_proj`, `up_proj` `[X,D,F]` and `down_proj`
/// `[X,F,D]`, and where a name has adapters, `name_lora_a [X,in,R]` and `name_lora_b [X,R,out]` → `[M,D]`.
#[track_caller]
pub fn mix_experts(x_md: &Tensor, routes: &Routes, counted: &Tensor, params: &Params) -> Tensor {
    let g = x_md.graph();
    let slots = routes.experts.dim(0) * routes.experts.dim(1);
    let (experts, dtype) = (routes.probabilities.dim(1), x_md.dtype());
    // Slots sorted by expert; those that go nowhere stand behind the last one.
    let nowhere = routes.experts.scalar_like(experts as f64);
    let place = counted
        .expand(1)
        .select(&routes.experts, &nowhere)
        .reshape(&[slots]);
    let number = g.iota(DType::S32, &[slots], 0);
    let (_, order) = place.sort_by_key(&[&number], 0, false);
    let (_, back) = order[0].sort_by_key(&[&number], 0, false);

    let sorted = routes.copies(x_md).permute_rows(&order[0], &back[0]);
    let load = routes.load(counted);
    let answers = answers(&sorted, params, |rows, matrices| {
        g.ragged_dot(rows, &matrices.convert(dtype), &load, dtype)
    });
    routes.weighted(&answers.permute_rows(&back[0], &order[0]))
}

/// What each expert says to its rows; `by_expert` multiplies rows of every expert with a matrix of its own. Adapters are read as
/// [`project`](crate::project) reads them.
pub(crate) fn answers(
    rows: &Tensor,
    params: &Params,
    by_expert: impl Fn(&Tensor, &Tensor) -> Tensor,
) -> Tensor {
    let product = |rows: &Tensor, name: &str| {
        let y = by_expert(rows, params.at(name));
        let Some(a) = params.find(&format!("{name}_lora_a")) else {
            return y;
        };
        let b = params.at(&format!("{name}_lora_b"));
        y + by_expert(&by_expert(rows, a), b) * params.adapter_scale()
    };
    let hidden = product(rows, "gate_proj").silu() * product(rows, "up_proj");
    product(&hidden, "down_proj")
}
