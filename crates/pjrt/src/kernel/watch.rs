//! Failures of kernels on a mesh.
//!
//! A device whose program fails stops there, and the others wait for it in their next collective, for as long as XLA's patience
//! lasts. So on a mesh a failed call fills its outputs with non-numbers and lets the program go on; the failure is kept here, and
//! found by whoever waits for a result of that run. XLA does not say which run a call belongs to: the failure counts for every run
//! that is under way and lists the kernel.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::Kernel;
use crate::{
    Error, ErrorCode, Result,
    abi::{Call, LoadedExecute},
    api::Event,
};

/// One run of a program that calls kernels.
pub(crate) struct Watch {
    kernels: Arc<[&'static Kernel]>,
    devices: usize,
    /// One per device, as soon as the program has been handed over.
    done: OnceLock<Vec<Event>>,
    failure: OnceLock<String>,
}

/// Runs under way, and some that are over. Held here, since a program goes on when all of its results have been dropped.
static RUNS: Mutex<Vec<Arc<Watch>>> = Mutex::new(Vec::new());

fn runs() -> MutexGuard<'static, Vec<Arc<Watch>>> {
    RUNS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Watch {
    /// To be called before the program is started; `None` when it calls no kernels.
    pub(crate) fn begin(kernels: &Arc<[&'static Kernel]>, devices: usize) -> Option<Arc<Watch>> {
        if kernels.is_empty() {
            return None;
        }
        let watch = Arc::new(Watch {
            kernels: Arc::clone(kernels),
            devices,
            done: OnceLock::new(),
            failure: OnceLock::new(),
        });
        let mut runs = runs();
        runs.retain(|run| !run.is_over());
        runs.push(Arc::clone(&watch));
        Some(watch)
    }

    /// The program has been started; the events fire when it is over on each device. None at all: it never started.
    pub(crate) fn started(&self, done: Vec<Event>) {
        // Called once, so there is nothing there yet.
        let _ = self.done.set(done);
    }

    fn is_over(&self) -> bool {
        let over = |event: &Event| event.is_ready().unwrap_or(true);
        self.done.get().is_some_and(|done| done.iter().all(over))
    }

    /// Waits until the run is over on every device, so that no later failure counts for it, and says whether it failed.
    pub(crate) fn wait(&self) -> Result<()> {
        for event in self.done.get().into_iter().flatten() {
            // What XLA itself calls a failure, the results of the run tell.
            let _ = event.wait();
        }
        self.check()
    }

    /// The failure of the run, if it is known by now.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            // As XLA says it of a program on one device.
            Some(message) => Err(Error::Xla {
                function: LoadedExecute::NAME,
                code: ErrorCode::Internal,
                message: message.clone(),
            }),
        }
    }
}

/// Keeps a failure for the runs that it may belong to. `false` when none of them is on a mesh: XLA itself is to be told then.
pub(super) fn keep(kernel: &Kernel, message: &str) -> bool {
    let runs = runs();
    let lists = |run: &&Arc<Watch>| run.kernels.contains(&kernel);
    let concerned: Vec<&Arc<Watch>> = runs
        .iter()
        .filter(lists)
        .filter(|run| !run.is_over())
        .collect();
    if concerned.iter().all(|run| run.devices == 1) {
        return false;
    }
    for run in concerned {
        // The first failure is the one that is told.
        let _ = run.failure.set(message.to_owned());
    }
    true
}
