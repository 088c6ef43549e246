//! What the host waits for, as seen from another thread: a device that stalls can be told from a host that works.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ferrotune_program::Group;

use super::Engine;
use crate::error::Error;

/// What the host waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The micro-batch of that number, counted from 1 since the engine is there.
    MicroBatch(u64),
    /// The update of that number.
    Update(u64),
    /// Terms of an evaluation, or scores.
    Rows,
    /// A copy of the state for a checkpoint.
    State,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awaited::MicroBatch(number) => write!(f, "micro-batch {number}"),
            Awaited::Update(number) => write!(f, "update {number}"),
            Awaited::Rows => f.write_str("scores of rows"),
            Awaited::State => f.write_str("a copy of the state"),
        }
    }
}

/// Says at any time what the host waits for. Clones speak of the same engine.
#[derive(Clone, Debug, Default)]
pub struct DeviceWait(Arc<Mutex<Option<(Awaited, Instant)>>>);

impl DeviceWait {
    /// What the host waits for, and since when; `None` while it works.
    pub fn current(&self) -> Option<(Awaited, Duration)> {
        let (what, since) = (*self.lock())?;
        Some((what, since.elapsed()))
    }

    /// Waits by `wait`, and says so meanwhile.
    pub fn during<T>(&self, what: Awaited, wait: impl FnOnce() -> T) -> T {
        struct Over<'a>(&'a DeviceWait);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                *self.0.lock() = None;
            }
        }
        *self.lock() = Some((what, Instant::now()));
        let _over = Over(self);
        wait()
    }

    /// A panic while the lock was held leaves nothing half-done in it.
    fn lock(&self) -> MutexGuard<'_, Option<(Awaited, Instant)>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Engine {
    /// Waits until no more programs are ahead of the device than may be. The last one is `what`, and makes a group that nobody
    /// overwrites.
    pub(super) fn keep_pace(&mut self, what: Awaited, made: Group) -> Result<(), Error> {
        self.inflight.push_back((what, made));
        let begun = Instant::now();
        while self.inflight.len() > self.config.max_inflight.max(1) {
            if let Some((what, oldest)) = self.inflight.pop_front() {
                self.device_wait.during(what, || oldest.wait())?;
            }
        }
        self.waited += begun.elapsed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_seen_from_elsewhere_until_it_is_over() {
        let wait = DeviceWait::default();
        assert_eq!(wait.current(), None);
        let seen = wait.clone();
        wait.during(Awaited::MicroBatch(7), || {
            std::thread::sleep(Duration::from_millis(2));
            let watching = std::thread::spawn(move || seen.current());
            let (what, time) = watching.join().unwrap().unwrap();
            assert_eq!(what, Awaited::MicroBatch(7));
            assert!(time >= Duration::from_millis(2), "since when: {time:?}");
        });
        assert_eq!(wait.current(), None);
    }

    #[test]
    fn a_wait_that_panics_is_over() {
        let wait = DeviceWait::default();
        let inside = wait.clone();
        let thread = std::thread::spawn(move || inside.during(Awaited::Rows, || panic!("stop")));
        assert!(thread.join().is_err());
        assert_eq!(wait.current(), None);
    }
}
