//! Writing while the run goes on: one thread, one checkpoint at a time.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Copied, Keep, prune, write};
use crate::error::Error;

/// A checkpoint that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where it is.
    pub path: PathBuf,
    /// Size of its arrays' files.
    pub bytes: u64,
    /// How long the writing took, beside the run.
    pub time: Duration,
}

/// At most one checkpoint on its way to the disk. Dropping it waits for that.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    thread: Option<JoinHandle<Result<Written, Error>>>,
}

impl Writer {
    /// Begins to write, and to remove what the rules no longer keep once that is done.
    ///
    /// # Panics
    /// When the one before was not asked for with [`Self::wait`].
    pub(crate) fn begin(&mut self, dir: PathBuf, state: Copied, keep: Keep) {
        assert!(self.thread.is_none(), "one checkpoint at a time");
        let job = move || {
            let begun = Instant::now();
            let bytes = write(&dir, &state)?;
            if let Some(parent) = dir.parent() {
                prune(parent, keep)?;
            }
            Ok(Written {
                path: dir,
                bytes,
                time: begun.elapsed(),
            })
        };
        self.thread = Some(std::thread::spawn(job));
    }

    /// Whether one is on its way.
    pub(crate) fn is_busy(&self) -> bool {
        self.thread.as_ref().is_some_and(|it| !it.is_finished())
    }

    /// What became of the last one, if that was not yet asked; waits for it.
    pub(crate) fn wait(&mut self) -> Option<Result<Written, Error>> {
        let outcome = self.thread.take()?.join();
        Some(outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // There is nobody left to be told.
            let _ = thread.join();
        }
    }
}
