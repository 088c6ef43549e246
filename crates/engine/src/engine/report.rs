//! What the engine answers with.

use std::collections::BTreeMap;

use ferrotune_graph::HostArray;
use ferrotune_program::Group;

use crate::error::Error;

/// What an update did, once the device has done it.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateReport {
    /// Updates made since the model was new, this one included.
    pub step: u64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Whether the gradient was not finite, so that nothing was changed.
    pub skipped: bool,
    /// `loss` and the loss's own metrics, over all micro-batches of the update.
    pub metrics: BTreeMap<String, f64>,
}

/// The report of an update that may still be running.
#[derive(Debug)]
pub struct Pending {
    pub(super) step: u64,
    pub(super) report: Group,
    pub(super) metrics: Group,
}

impl Pending {
    /// Whether [`Self::read`] returns at once.
    pub fn is_ready(&self) -> bool {
        self.report.is_ready() && self.metrics.is_ready()
    }

    /// Waits for the update and returns its report.
    ///
    /// # Errors
    /// The failure of any program of the step.
    pub fn read(self) -> Result<UpdateReport, Error> {
        let value = |a: &HostArray| f64::from(a.as_slice::<f32>()[0]);
        let report = self.report.to_host()?;
        let metrics = self.metrics.to_host()?;
        let metrics = self
            .metrics
            .layout()
            .names()
            .map(str::to_owned)
            .zip(metrics.iter().map(value))
            .collect();
        Ok(UpdateReport {
            step: self.step,
            grad_norm: value(&report[0]),
            skipped: value(&report[1]) != 0.0,
            metrics,
        })
    }
}

/// Scores of `[B,T]` rows, row-major; a value sits at its token's own place and is 0 where nothing is predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// Log-probability of each token given those before it in its document.
    pub logprob: Vec<f32>,
    /// Entropy of the distribution at that place, in nats.
    pub entropy: Vec<f32>,
}
