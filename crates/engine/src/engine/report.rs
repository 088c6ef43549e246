//! What the engine answers with.

use std::collections::BTreeMap;

use ferrotune_graph::HostArray;
use ferrotune_program::Group;

use super::{Awaited, DeviceWait};
use crate::error::Error;
use crate::optimizer::{NOT_FINITE, OnNonFinite, SPIKE};
use crate::step::GROUP;

/// What an update did, once the device has done it.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateReport {
    /// Updates made since the model was new, this one included.
    pub step: u64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// The same of the parameters that fit each of [`EngineConfig::group_norms`](super::EngineConfig::group_norms), by pattern.
    pub group_norms: BTreeMap<String, f64>,
    /// Why nothing was changed, if so.
    pub skipped: Option<Skipped>,
    /// `loss` and the loss's own metrics, over all micro-batches of the update.
    pub metrics: BTreeMap<String, f64>,
}

/// Why an update changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// The norm of its gradient was not finite.
    NotFinite,
    /// Its gradient was too large beside those before it.
    Spike,
}

/// Scalars by the names of their layout.
pub(super) fn named(scalars: &Group) -> Result<BTreeMap<String, f64>, Error> {
    let values = scalars.to_host()?;
    let names = scalars.layout().names().map(str::to_owned);
    Ok(names.zip(values.iter().map(value)).collect())
}

fn value(scalar: &HostArray) -> f64 {
    f64::from(scalar.as_slice::<f32>()[0])
}

/// The report of an update that may still be running.
#[derive(Debug)]
pub struct Pending {
    pub(super) step: u64,
    pub(super) on_nonfinite: OnNonFinite,
    pub(super) device_wait: DeviceWait,
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
    /// The failure of any program of the step; [`Error::NotFinite`] where that ends the run.
    pub fn read(self) -> Result<UpdateReport, Error> {
        let awaited = Awaited::Update(self.step);
        let report = self.device_wait.during(awaited, || self.report.to_host())?;
        let grad_norm = value(&report[0]);
        let code = value(&report[1]);
        let groups = self.report.layout().names().skip(2);
        let groups = groups.filter_map(|name| name.strip_prefix(GROUP));
        let skipped = match code {
            _ if code == f64::from(NOT_FINITE) => Some(Skipped::NotFinite),
            _ if code == f64::from(SPIKE) => Some(Skipped::Spike),
            _ => None,
        };
        if skipped == Some(Skipped::NotFinite) && self.on_nonfinite == OnNonFinite::Stop {
            let step = self.step;
            return Err(Error::NotFinite { step, grad_norm });
        }
        Ok(UpdateReport {
            step: self.step,
            grad_norm,
            group_norms: groups
                .map(str::to_owned)
                .zip(report[2..].iter().map(value))
                .collect(),
            skipped,
            metrics: named(&self.metrics)?,
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
    /// What filters leave of the distribution, where some were given.
    pub kept: Option<Kept>,
}

/// What a sampler's filters leave of the distributions of [`Scores`].
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The probability of all that may be drawn; 1 where nothing is predicted.
    pub mass: Vec<f32>,
    /// Whether the token itself may be drawn; false where nothing is predicted.
    pub token: Vec<bool>,
}

impl Kept {
    /// Log-probabilities in the distributions that the filters leave, from those in the whole ones: −∞ where the token may not be
    /// drawn. They are at most 0: what rounding adds to the log-prob of a token that alone is kept is taken away.
    pub fn sampling_logprob(&self, logprob: &[f32]) -> Vec<f32> {
        let each = logprob.iter().zip(&self.mass).zip(&self.token);
        each.map(|((logprob, mass), may)| match may {
            true if *logprob > mass.ln() => 0.0,
            true => logprob - mass.ln(),
            false => f32::NEG_INFINITY,
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_prob_under_filters_is_at_most_0() {
        let kept = Kept {
            mass: vec![0.5, 0.5, 0.999_99, 0.5, f32::NAN],
            token: vec![true, true, true, false, true],
        };
        let found = kept.sampling_logprob(&[-2.0, 0.5_f32.ln(), -1e-6, -1.0, -1.0]);
        assert_eq!(
            found[..4],
            [-2.0 - 0.5_f32.ln(), 0.0, 0.0, f32::NEG_INFINITY]
        );
        assert!(found[4].is_nan(), "what is not known is not made up");
    }
}
