//! Whether an update is made, and how its gradient is scaled: one global norm for the report, the clip and both refusals.

use ferrotune_graph::{DType, Tensor};

use super::Optimizer;

/// What a gradient that is not finite means for a run. Its update changes nothing either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnNonFinite {
    /// The run goes on with the next batch.
    Skip,
    /// Reading the report of the update is an error.
    Stop,
}

/// Gradients far above those before them are not learned from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpikeGuard {
    /// How many norms it remembers; it refuses nothing until it has as many.
    pub window: usize,
    /// A norm above so many times the median of those is a spike.
    pub factor: f64,
}

/// An update that was refused since its gradient is not finite.
pub(crate) const NOT_FINITE: f32 = 1.0;

/// An update that was refused since its gradient is a spike.
pub(crate) const SPIKE: f32 = 2.0;

/// The judgement of a gradient.
pub(super) struct Gate {
    /// f32 scalar, before clipping.
    pub(super) grad_norm: Tensor,
    /// The same of some of the gradients each, f32 scalars.
    pub(super) group_norms: Vec<Tensor>,
    /// What the gradient is multiplied by, f32 scalar.
    pub(super) scale: Tensor,
    /// Whether the update is made, a boolean scalar.
    pub(super) accepts: Tensor,
    /// Why not, f32 scalar; 0 if it is.
    pub(super) skipped: Tensor,
    /// The remembered norms after it, if there are any.
    pub(super) window: Option<Tensor>,
}

/// Judges gradients.
///
/// n = √Σg² over all of them in f32, and the scale is min(1, max_norm / n), which is 1 when n is 0. Every norm that is finite
/// and above 0 enters the window, a spike's too: if gradients have become larger for good, the median follows after half a
/// window. Zeros in the window are places that were never filled.
///
/// `groups` has places among the gradients, of which the same squares are summed.
pub(super) fn judge(
    optimizer: &Optimizer,
    gradients: &[Tensor],
    window: Option<&Tensor>,
    groups: &[Vec<usize>],
) -> Gate {
    let squares: Vec<Tensor> = gradients.iter().map(|d| d.square().sum_all()).collect();
    let sum = |of: &mut dyn Iterator<Item = &Tensor>| {
        of.cloned()
            .reduce(|a, b| a + b)
            .expect("a model has parameters that learn, and a group is of some of them")
    };
    let total = sum(&mut squares.iter());
    let group_norms = groups
        .iter()
        .map(|places| sum(&mut places.iter().map(|i| &squares[*i])));
    let group_norms = group_norms.map(|it| it.sqrt()).collect();
    let g = total.graph().clone();
    let (zero, one) = (g.scalar(0.0, DType::F32), g.scalar(1.0, DType::F32));
    let grad_norm = total.sqrt();
    let finite = grad_norm.is_finite();
    let limit = g.scalar(optimizer.max_grad_norm.min(f64::from(f32::MAX)), DType::F32);
    let scale = grad_norm.gt(&limit).select(&(&limit / &grad_norm), &one);
    let mut accepts = finite.clone();
    let not_finite = g.scalar(f64::from(NOT_FINITE), DType::F32);
    let mut skipped = finite.select(&zero, &not_finite);
    let mut next = None;
    if let (Some(guard), Some(window)) = (optimizer.spike, window) {
        let (sorted, _) = window.sort_by_key(&[], 0, false);
        let value = |at: usize| sorted.slice(0, at, at + 1).reshape(&[]);
        let full = value(0).gt(&zero);
        let high = grad_norm.gt(&(value(guard.window / 2) * guard.factor));
        let spike = finite.and(&full).and(&high);
        accepts = accepts.and(&spike.not());
        skipped = spike.select(&g.scalar(f64::from(SPIKE), DType::F32), &skipped);
        let newest = grad_norm.reshape(&[1]);
        let moved = match guard.window {
            1 => newest,
            size => Tensor::concatenate(&[&window.slice(0, 1, size), &newest], 0),
        };
        let counts = finite.and(&grad_norm.gt(&zero));
        next = Some(counts.select(&moved, window));
    }
    Gate {
        grad_norm,
        group_norms,
        scale,
        accepts,
        skipped,
        window: next,
    }
}
