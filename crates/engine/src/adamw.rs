//! AdamW: moments, bias correction, decoupled decay, with one global gradient norm for the clip and the report.

use ferrotune_graph::{DType, Tensor};
use ferrotune_program::{Layout, Leaf};

/// Settings of AdamW. `eps` is added outside of the root.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Part of a matrix that is taken away per unit of learning rate; norms (vectors of a layer) do not decay.
    pub weight_decay: f64,
}

/// The settings of Kingma and Ba, "Adam" (2015), algorithm 1, without decay.
impl Default for AdamW {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
        }
    }
}

/// Names of the arrays of the optimizer state for parameters of the given names: first moments, second moments, and the
/// number of updates made.
pub(crate) fn state_leaves(params: &[Leaf]) -> Vec<Leaf> {
    let moment = |kind: &str, p: &Leaf| Leaf {
        name: format!("{kind}/{}", p.name),
        ..p.clone()
    };
    let first = params.iter().map(|p| moment("first", p));
    let second = params.iter().map(|p| moment("second", p));
    first
        .chain(second)
        .chain([Leaf::new("count", DType::S32, &[], &[])])
        .collect()
}

/// What an update makes.
pub(crate) struct Updated {
    pub(crate) params: Vec<Tensor>,
    pub(crate) state: Vec<Tensor>,
    pub(crate) grad_norm: Tensor,
    pub(crate) skipped: Tensor,
}

/// Whether a parameter decays: matrices do, norms and biases do not. Those of layers are stacked, and have a dimension more.
fn decays(path: &str, rank: usize) -> bool {
    rank > 1 + usize::from(path.contains('/'))
}

/// One update of all parameters.
///
/// With g the gradients, n = √Σg² over all of them in f32, and s = min(1, max_norm / n) (1 when n is 0):
/// m ← β₁m + (1 − β₁)sg, v ← β₂v + (1 − β₂)(sg)², t ← t + 1,
/// p ← p − lr · (m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + eps) + decay · p).
/// When n is not finite nothing changes, t included.
///
/// # Shapes
/// `learning_rate` f32 scalar; parameters, gradients and moments f32 of equal dimensions.
/// # Source
/// Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), algorithm 2.
pub(crate) fn update(
    settings: &AdamW,
    max_grad_norm: f64,
    layout: &Layout,
    params: &[Tensor],
    state: &[Tensor],
    gradients: &[Tensor],
    learning_rate: &Tensor,
) -> Updated {
    let g = learning_rate.graph().clone();
    let n = params.len();
    let (first, rest) = state.split_at(n);
    let (second, count) = (&rest[..n], &rest[n]);

    let squares = gradients.iter().map(|d| d.square().sum_all());
    let total = squares
        .reduce(|a, b| a + b)
        .expect("a model has parameters");
    let grad_norm = total.sqrt();
    let finite = grad_norm.is_finite();
    let limit = g.scalar(max_grad_norm.min(f64::from(f32::MAX)), DType::F32);
    let scale = grad_norm
        .gt(&limit)
        .select(&(&limit / &grad_norm), &g.scalar(1.0, DType::F32));

    let next_count = count + finite.convert(DType::S32);
    let steps = (count + 1.0).convert(DType::F32);
    // 1 − βᵗ = −expm1(t · ln β): exact where β is close to 1 and t small.
    let correction = |beta: f64| -(&steps * beta.ln()).expm1();
    let (unbias1, unbias2) = (correction(settings.beta1), correction(settings.beta2));

    let mut updated = Updated {
        params: Vec::new(),
        state: Vec::new(),
        grad_norm,
        skipped: finite.not().convert(DType::F32),
    };
    let mut seconds = Vec::new();
    for (i, spec) in layout.specs().iter().enumerate() {
        let d = &gradients[i] * &scale;
        let m = &first[i] * settings.beta1 + &d * (1.0 - settings.beta1);
        let v = &second[i] * settings.beta2 + d.square() * (1.0 - settings.beta2);
        // Behind the barrier the parameter reads the new moments. Otherwise XLA computes them again from the old ones, which
        // it must then copy before they are overwritten.
        let moments = g.barrier(&[
            &finite.select(&m, &first[i]),
            &finite.select(&v, &second[i]),
        ]);
        let (m, v) = (&moments[0], &moments[1]);
        let mut direction = (m / &unbias1) / ((v / &unbias2).sqrt() + settings.eps);
        if settings.weight_decay != 0.0 && decays(&spec.name, spec.dims.len()) {
            direction = direction + &params[i] * settings.weight_decay;
        }
        let p = &params[i] - direction * learning_rate;
        updated.params.push(finite.select(&p, &params[i]));
        updated.state.push(m.clone());
        seconds.push(v.clone());
    }
    updated.state.extend(seconds);
    updated.state.push(next_count);
    updated
}
