//! Ctrl-C: once to finish the step and stop, twice to stop at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::terminal::say;

/// Signals as close as this are one: `timeout` sends its to the process and again to the group.
const ONE_PRESS: Duration = Duration::from_millis(200);

/// Whether the user wants the run to stop.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over Ctrl-C for the rest of the process.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = flag.clone();
        let mut first: Option<Instant> = None;
        ctrlc::set_handler(move || {
            if let Some(first) = first {
                if first.elapsed() < ONE_PRESS {
                    return;
                }
                // Files under final names are complete at any moment, so nothing is left to tidy.
                say("stopped at once");
                std::process::exit(130);
            }
            first = Some(Instant::now());
            seen.store(true, Ordering::Relaxed);
            say(
                "finishing this step, then saving a checkpoint; press Ctrl-C again to stop at once",
            );
        })?;
        Ok(Self(flag))
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
