//! One update: the trajectories of an optimizer batch to weights, rows, micro-batches, gradients.

use ferrotune_batch::{Aggregation, Trajectory};
use ferrotune_engine::{Engine, Loss, Pending};

use crate::error::Result;
use crate::plan::Plan;
use crate::trainer::Activity;

/// What an update learns from.
pub(crate) struct OptimizerBatch<'a> {
    pub(crate) trajectories: &'a [Trajectory],
    pub(crate) aggregation: Aggregation,
    pub(crate) loss: &'a Loss,
    pub(crate) rate: f64,
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
    let total = micro_batches.len();
    for (done, micro_batch) in micro_batches.iter().enumerate() {
        engine.forward_backward(micro_batch, batch.loss)?;
        watch(Activity::Updating {
            done: done + 1,
            total,
        });
    }
    Ok(engine.update(batch.rate)?)
}
