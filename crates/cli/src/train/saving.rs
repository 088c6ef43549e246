//! Checkpoints of a run, written beside it.

use ferrotune_engine::checkpoint::Keep;

use super::{Run, of_run_dir};
use crate::failure::{Failure, OrFail};
use crate::terminal::bytes;

impl Run {
    /// Begins to save the state after the last step, once what was recorded up to it is on the disk.
    pub(super) fn checkpoint(&mut self) -> Result<(), Failure> {
        let step = self.trainer.completed();
        self.watch.busy("writing the checkpoint before");
        self.note_saved();
        self.watch.busy("copying a checkpoint");
        self.run_dir.sync().map_err(of_run_dir)?;
        let folder = self.run_dir.checkpoints();
        let rules = &self.resolved.recipe().checkpoint;
        let keep = Keep {
            last: rules.keep_last,
            every: rules.keep_every as u64,
        };
        let dir = folder.join(format!("step-{step}"));
        self.copy_time = self.trainer.save_in_background(&dir, keep).or_fail()?;
        self.copied = true;
        self.run_dir
            .write_report(&self.resolved.recipe().run.name)
            .map_err(of_run_dir)?;
        Ok(())
    }

    /// Says what became of the checkpoint that was begun last. The run outlives one that failed: the one before is still good.
    pub(super) fn note_saved(&mut self) {
        match self.trainer.saved() {
            None => {}
            Some(Ok(written)) => self.watch.say(&format!(
                "saved    {} of {}: the run waited {:.3} s, the disk {:.3} s",
                written.path.display(),
                bytes(written.bytes),
                self.copy_time.as_secs_f64(),
                written.time.as_secs_f64(),
            )),
            Some(Err(error)) => {
                self.failed_saves += 1;
                let text = format!("the run goes on, but a checkpoint could not be saved: {error}");
                self.watch.say(&text);
            }
        }
    }

    /// Waits for the checkpoint of the last step, without which the run must not end well.
    pub(super) fn await_saved(&mut self) -> Result<(), Failure> {
        self.watch.busy("writing a checkpoint");
        let failed = self.failed_saves;
        self.note_saved();
        if self.failed_saves > failed {
            return Err(Failure::failed(anyhow::anyhow!(
                "the last checkpoint could not be saved; make room in {} and go on with: {}",
                self.run_dir.checkpoints().display(),
                self.command
            )));
        }
        Ok(())
    }
}
