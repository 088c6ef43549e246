//! Saving a run and going on with it.

use std::path::Path;

use crate::error::{Error, Result};
use crate::order::Sampler as Order;
use crate::progress::Progress;
use crate::trainer::Trainer;

impl Trainer {
    /// Writes a checkpoint to the folder `dir`, which appears only when it is complete.
    ///
    /// # Errors
    /// A file that cannot be written, or a failure of the device.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let progress = Progress {
            schema: Progress::SCHEMA,
            completed: self.completed,
            num_tokens: self.num_tokens,
            failed_updates: self.failed_updates,
            demonstrations: self.demonstrations.as_ref().map(|it| it.order().clone()),
            problems: self.problems.order().clone(),
            data: self.data.fingerprint(),
        };
        let extra = serde_json::to_value(progress).expect("progress is plain data");
        Ok(self.engine.save(dir, &extra)?)
    }

    /// Takes over the state of a checkpoint.
    ///
    /// # Errors
    /// The engine's three answers (absent, corrupt, incompatible); [`Error::Progress`], [`Error::OtherData`].
    pub fn restore(&mut self, dir: &Path) -> Result<()> {
        let unusable = |reason: String| Error::Progress {
            path: dir.to_owned(),
            reason,
        };
        let extra = self.engine.restore(dir)?;
        let progress = Progress::read(extra).map_err(unusable)?;
        let changed = progress.data.differences(&self.data.fingerprint());
        if !changed.is_empty() {
            return Err(Error::OtherData {
                path: dir.to_owned(),
                changed,
            });
        }
        if progress.completed > self.plan.total_steps() {
            let (done, planned) = (progress.completed, self.plan.total_steps());
            return Err(unusable(format!(
                "it is of step {done}, the run ends with step {planned}"
            )));
        }
        self.problems = Order::resume(self.data.train.problems().len(), progress.problems)?;
        let count = self.data.demonstrations.len();
        let resume = |order| Order::resume(count, order);
        self.demonstrations = progress.demonstrations.map(resume).transpose()?;
        if self.demonstrations.is_none() && self.plan.warmup.is_some() {
            return Err(unusable("it has no place in the demonstrations".to_owned()));
        }
        self.completed = progress.completed;
        self.num_tokens = progress.num_tokens;
        self.failed_updates = progress.failed_updates;
        Ok(())
    }
}
