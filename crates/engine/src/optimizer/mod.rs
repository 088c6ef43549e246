//! The update of parameters from gradients: one program, whatever the rule.
//!
//! With g the gradients and s the clip scale of [`gate`], every rule turns s·g and its own arrays of a parameter into a
//! direction d, and the parameter becomes p − lr · (d + decay · p). The decay is decoupled from the direction (Loshchilov and
//! Hutter, "Decoupled weight decay regularization", 2019). An update that the gate refuses changes nothing but the gate's
//! window of norms.

mod adamw;
mod gate;
mod muon;
mod sgd;

use ferrotune_graph::{DType, Tensor};
use ferrotune_program::{Layout, Leaf};

pub use adamw::AdamW;
pub(crate) use gate::{NOT_FINITE, SPIKE};
pub use gate::{OnNonFinite, SpikeGuard};
pub use muon::Muon;
pub use sgd::Sgd;

/// The rule that turns a gradient into a direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Adam with decoupled decay.
    AdamW(AdamW),
    /// Stochastic gradient descent with momentum.
    Sgd(Sgd),
    /// Orthogonalised momentum for matrices of layers, AdamW for everything else.
    Muon(Muon),
}

/// Settings of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// The rule.
    pub rule: Rule,
    /// Part of a matrix that is taken away per unit of learning rate; norms and biases do not decay.
    pub weight_decay: f64,
    /// Largest global gradient norm; a larger one is scaled down to it. Infinity turns clipping off.
    pub max_grad_norm: f64,
    /// What a gradient that is not finite means.
    pub on_nonfinite: OnNonFinite,
    /// Which gradients are too large to learn from; `None` for none.
    pub spike: Option<SpikeGuard>,
}

/// AdamW with its usual settings, no decay, no clipping.
impl Default for Optimizer {
    fn default() -> Self {
        Self {
            rule: Rule::AdamW(AdamW::default()),
            weight_decay: 0.0,
            max_grad_norm: f64::INFINITY,
            on_nonfinite: OnNonFinite::Skip,
            spike: None,
        }
    }
}

/// What a rule reads besides a parameter's own arrays.
struct Moment {
    /// Updates made, this one included, f32 scalar.
    steps: Tensor,
    /// The same before this update, s32 scalar.
    count: Tensor,
    /// Place of the parameter among all, which tells its random draws from others'.
    place: usize,
}

impl Rule {
    /// Names and number types of the arrays that it keeps for a parameter, each of the parameter's dimensions.
    fn kept(&self, param: &Leaf) -> Vec<(&'static str, DType)> {
        match self {
            Rule::AdamW(it) => it.kept(),
            Rule::Sgd(_) => vec![("momentum", DType::F32)],
            Rule::Muon(it) => it.kept(&param.name, param.dims.len()),
        }
    }

    /// New values of the kept arrays.
    fn advance(&self, name: &str, kept: &[Tensor], gradient: &Tensor, at: &Moment) -> Vec<Tensor> {
        match self {
            Rule::AdamW(it) => it.advance(kept, gradient, at),
            Rule::Sgd(it) => it.advance(kept, gradient),
            Rule::Muon(it) => it.advance(name, kept, gradient, at),
        }
    }

    /// The direction that the new values give, f32.
    fn direction(&self, name: &str, kept: &[Tensor], gradient: &Tensor, at: &Moment) -> Tensor {
        match self {
            Rule::AdamW(it) => it.direction(kept, at),
            Rule::Sgd(it) => it.direction(kept, gradient),
            Rule::Muon(it) => it.direction(name, kept, gradient, at),
        }
    }
}

/// The arrays of the optimizer state: what the rule keeps of each parameter, the number of updates made, the gate's window.
pub(crate) fn state_leaves(optimizer: &Optimizer, params: &[Leaf]) -> Vec<Leaf> {
    let kept = |p: &Leaf| -> Vec<Leaf> {
        let kinds = optimizer.rule.kept(p).into_iter();
        let leaf = |(kind, dtype)| Leaf {
            name: format!("{kind}/{}", p.name),
            dtype,
            ..p.clone()
        };
        kinds.map(leaf).collect()
    };
    let window = optimizer
        .spike
        .map(|it| Leaf::new("recent_norms", DType::F32, &[it.window], &["_"]));
    params
        .iter()
        .flat_map(kept)
        .chain([Leaf::new("count", DType::S32, &[], &[])])
        .chain(window)
        .collect()
}

/// What an update makes.
pub(crate) struct Updated {
    pub(crate) params: Vec<Tensor>,
    pub(crate) state: Vec<Tensor>,
    pub(crate) grad_norm: Tensor,
    pub(crate) group_norms: Vec<Tensor>,
    /// 0 for an update that was made; otherwise one of the numbers in [`gate`].
    pub(crate) skipped: Tensor,
}

/// Whether a parameter decays: matrices do, norms and biases do not. Those of layers are stacked, and have a dimension more.
fn is_matrix(path: &str, rank: usize) -> bool {
    rank > 1 + usize::from(path.contains('/'))
}

/// One update of all parameters.
///
/// # Shapes
/// `learning_rate` f32 scalar; parameters and gradients f32 of equal dimensions; `state` as [`state_leaves`] says; `groups` has
/// places of parameters whose norms are wanted.
pub(crate) fn update(
    optimizer: &Optimizer,
    layout: &Layout,
    params: &[Tensor],
    state: &[Tensor],
    gradients: &[Tensor],
    learning_rate: &Tensor,
    groups: &[Vec<usize>],
) -> Updated {
    let g = learning_rate.graph().clone();
    let windows = usize::from(optimizer.spike.is_some());
    let (kept, rest) = state.split_at(state.len() - 1 - windows);
    let (count, window) = (&rest[0], rest.get(1));
    let gate = gate::judge(optimizer, gradients, window, groups);

    let mut kept = kept.iter();
    let mut updated = Updated {
        params: Vec::new(),
        state: Vec::new(),
        grad_norm: gate.grad_norm,
        group_norms: gate.group_norms,
        skipped: gate.skipped,
    };
    for (place, spec) in layout.specs().iter().enumerate() {
        let leaf = Leaf {
            name: spec.name.clone(),
            dtype: spec.dtype,
            dims: spec.dims.clone(),
            axes: Vec::new(),
        };
        let number = optimizer.rule.kept(&leaf).len();
        let old: Vec<Tensor> = kept.by_ref().take(number).cloned().collect();
        let at = Moment {
            steps: (count + 1.0).convert(DType::F32),
            count: count.clone(),
            place,
        };
        let d = &gradients[place] * &gate.scale;
        let new = optimizer.rule.advance(&spec.name, &old, &d, &at);
        let new: Vec<Tensor> = new
            .iter()
            .zip(&old)
            .map(|(n, o)| gate.accepts.select(n, o))
            .collect();
        // Behind the barrier the parameter reads the new values. Otherwise XLA computes them again from the old ones, which
        // it must then copy before they are overwritten.
        let new = g.barrier(&new.iter().collect::<Vec<_>>());
        let mut direction = optimizer.rule.direction(&spec.name, &new, &d, &at);
        if optimizer.weight_decay != 0.0 && is_matrix(&spec.name, spec.dims.len()) {
            direction = direction + &params[place] * optimizer.weight_decay;
        }
        let p = &params[place] - direction * learning_rate;
        updated.params.push(gate.accepts.select(&p, &params[place]));
        updated.state.extend(new);
    }
    updated.state.push(count + gate.accepts.convert(DType::S32));
    updated.state.extend(gate.window);
    updated
}
