//! Saving a run and going on with it.

use std::path::Path;
use std::time::Duration;

use ferrotune_engine::checkpoint::{Keep, Written};

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
        Ok(self.engine.save(dir, &self.progress())?)
    }

    /// The same beside the run, followed by the removal of checkpoints that `keep` does not keep. Returns how long the copy to
    /// the host took, for which the run waited.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// When nobody asked what became of the one before.
    pub fn save_in_background(&mut self, dir: &Path, keep: Keep) -> Result<Duration> {
        let progress = self.progress();
        Ok(self.engine.save_in_background(dir, &progress, keep)?)
    }

    /// What became of the last checkpoint that was begun in the background, if that was not yet asked. Waits for it.
    pub fn saved(&mut self) -> Option<Result<Written>> {
        self.engine.saved().map(|outcome| Ok(outcome?))
    }

    /// Whether a checkpoint is on its way to the disk.
    pub fn is_saving(&self) -> bool {
        self.engine.is_saving()
    }

    fn progress(&self) -> serde_json::Value {
        let progress = Progress {
            schema: Progress::SCHEMA,
            completed: self.completed,
            num_tokens: self.num_tokens,
            failed_updates: self.failed_updates,
            demonstrations: self.demonstrations.as_ref().map(|it| it.order().clone()),
            problems: self.problems.order().clone(),
            data: self.data.fingerprint(),
        };
        serde_json::to_value(progress).expect("progress is plain data")
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
