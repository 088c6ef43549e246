//! One update: the trajectories of an optimizer batch to weights, rows, micro-batches, gradients.

use ferrotune_batch::{Aggregation, Trajectory};
use ferrotune_engine::{Engine, Loss, Pending};

use crate::error::Result;
use crate::plan::{Phase, Plan};
use crate::trainer::Activity;

/// What an update learns from.
pub(crate) struct OptimizerBatch<'a> {
    pub(crate) trajectories: &'a [Trajectory],
    pub(crate) aggregation: Aggregation,
    /// Of the run, which says how many micro-batches there may be.
    pub(crate) phase: Phase,
    pub(crate) loss: &'a Loss,
    pub(crate) rate: f64,
}

/// Compiles what updates of a phase run: a program for the most micro-batches that one may have, so that no batch, however its
/// answers fit into rows, needs another one.
pub(crate) fn compile(engine: &mut Engine, plan: &Plan, phase: Phase, loss: &Loss) -> Result<()> {
    let (rows, width) = (plan.rows_per_micro_batch, plan.packing.budget);
    Ok(engine.compile_step(plan.most_micro_batches(phase), rows, width, loss)?)
}

/// Hands the update to the device and answers before it is done.
///
/// The weights are those of the whole batch, so its cut into rows and micro-batches changes nothing but rounding. A batch
/// in which nothing is trained on has a zero gradient and is an update like any other.
pub(crate) fn update(
    engine: &mut Engine,
    plan: &Plan,
    batch: OptimizerBatch<'_>,
    watch: &mut dyn FnMut(Activity),
) -> Result<Pending> {
    let weights = batch
        .aggregation
        .weights(batch.trajectories)
        .map_err(ferrotune_batch::Refused::from)?;
    let rows = plan.packing.pack(batch.trajectories, &weights)?;
    let micro_batches = rows.micro_batches(plan.rows_per_micro_batch)?;
    // Of those that are compiled, the engine takes the first that is large enough: here always the same.
    compile(engine, plan, batch.phase, batch.loss)?;
    watch(Activity::Updating {
        micro_batches: micro_batches.len(),
    });
    Ok(engine.train(&micro_batches, batch.loss, batch.rate)?)
}
