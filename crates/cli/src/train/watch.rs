//! What the user sees while a run is under way: a bar on a terminal, else a line for each step; and a sign of life when a
//! step or a compilation takes long.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use ferrotune_engine::DeviceWait;
use ferrotune_rl::{Activity, StepReport};
use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::{counted, say, short_count};

/// Without a line for so long, a sign of life is due.
const SILENCE: Duration = Duration::from_secs(20);

/// Watches a run.
pub(crate) struct Watch {
    bar: Option<ProgressBar>,
    now: Arc<Mutex<Now>>,
    /// Dropped to end the thread that gives signs of life.
    _alive: Sender<()>,
}

/// What the run is busy with.
struct Now {
    what: String,
    since: Instant,
    spoke: Instant,
    /// What the host waits for, once there is a device.
    device: Option<DeviceWait>,
}

impl Now {
    /// What of the device is waited for, if it has been for so long.
    fn stall(&self, least: Duration) -> Option<String> {
        let (awaited, time) = self.device.as_ref()?.current()?;
        let seconds = time.as_secs();
        (time >= least).then(|| format!("waiting for the device: {awaited}, for {seconds} s"))
    }

    /// What takes so long, and whether that is the device.
    fn sign_of_life(&self) -> String {
        let what = if self.what.is_empty() {
            "a step"
        } else {
            &self.what
        };
        let mut line = format!("... {what} ({} s)", self.since.elapsed().as_secs());
        if let Some(stall) = self.stall(Duration::from_secs(1)) {
            line.push_str(&format!("; {stall}"));
        }
        line
    }
}

impl Watch {
    /// Begins to watch.
    pub(crate) fn begin() -> Self {
        let start = Instant::now();
        let now = Arc::new(Mutex::new(Now {
            what: "starting".to_owned(),
            since: start,
            spoke: start,
            device: None,
        }));
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let (alive, ended) = channel::<()>();
        let (shared, shown) = (now.clone(), bar.clone());
        thread::spawn(move || {
            while ended.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                let mut now = lock(&shared);
                match &shown {
                    // A bar moves by itself; what it says may be old.
                    Some(bar) => {
                        if let Some(stall) = now.stall(SILENCE) {
                            bar.set_message(stall);
                        }
                    }
                    None if now.spoke.elapsed() >= SILENCE => {
                        say(now.sign_of_life());
                        now.spoke = Instant::now();
                    }
                    None => {}
                }
            }
        });
        Self {
            bar,
            now,
            _alive: alive,
        }
    }

    /// There is a device, and this says when it is waited for.
    pub(crate) fn device(&self, wait: DeviceWait) {
        lock(&self.now).device = Some(wait);
    }

    /// A line of its own.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            // A bar that is finished or not drawn would swallow the line.
            Some(bar) => bar.suspend(|| say(line)),
            None => {
                say(line);
                lock(&self.now).spoke = Instant::now();
            }
        }
    }

    /// The run has begun something that may take a while.
    pub(crate) fn busy(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
        let mut now = lock(&self.now);
        now.what = what.to_owned();
        now.since = Instant::now();
    }

    /// The steps begin.
    pub(crate) fn steps(&self, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            let style =
                ProgressStyle::with_template("{bar:20} {pos}/{len}, {eta} left  {prefix}  {msg}");
            bar.set_style(style.expect("the template is part of the program"));
            bar.set_length(total);
            bar.set_position(done);
            // Steps done in an earlier process took none of this one's time.
            bar.reset_eta();
        }
        self.busy("");
    }

    /// A step says what it does.
    pub(crate) fn activity(&self, step: u64, activity: Activity) {
        let what = match activity {
            Activity::Sampling { done, total } => format!("sampled {done}/{total}"),
            Activity::Updating { micro_batches } => {
                format!("learning from {}", counted(micro_batches, "micro-batch"))
            }
            Activity::Evaluating { done, total } => format!("evaluated {done}/{total}"),
        };
        if let Some(bar) = &self.bar {
            bar.set_message(what.clone());
        }
        lock(&self.now).what = format!("step {step}: {what}");
    }

    /// A step is done.
    pub(crate) fn step(&self, report: &StepReport) {
        let line = step_line(report);
        match &self.bar {
            Some(bar) => {
                if report.pass_at_1.is_some() {
                    bar.suspend(|| say(&line));
                }
                bar.set_position(report.step);
                bar.set_prefix(line);
            }
            None => self.say(&line),
        }
        self.busy("");
    }

    /// Nothing more will happen.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Watch {
    /// Whatever is said next, an error perhaps, must not share a line with the bar.
    fn drop(&mut self) {
        self.end();
    }
}

/// A panic while the lock was held leaves nothing half-done in it.
fn lock(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    now.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// `step 31 grpo  loss -0.0123  reward 0.25  12.3 k tokens/s`
fn step_line(report: &StepReport) -> String {
    let mut line = format!("step {} {}", report.step, report.phase.word());
    for name in ["loss", "reward"] {
        if let Some(value) = report.metrics.get(name) {
            let value = value
                .as_f64()
                .map_or_else(|| "nan".to_owned(), |it| format!("{it:.4}"));
            line.push_str(&format!("  {name} {value}"));
        }
    }
    let rate = report.tokens as f64 / report.seconds.max(1e-9);
    line.push_str(&format!(
        "  {} tokens/s  {:.2} s",
        short_count(rate as u64),
        report.seconds
    ));
    if let Some(value) = report.pass_at_1 {
        line.push_str(&format!("  held-out pass@1 {value:.3}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use ferrotune_engine::Awaited;
    use ferrotune_rl::Phase;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sign_of_life_says_what_the_run_does() {
        let now = |what: &str| Now {
            what: what.to_owned(),
            since: Instant::now(),
            spoke: Instant::now(),
            device: Some(DeviceWait::default()),
        };
        assert_eq!(now("").sign_of_life(), "... a step (0 s)");
        assert_eq!(
            now("step 3: sampled 1/2").sign_of_life(),
            "... step 3: sampled 1/2 (0 s)"
        );
        let device = DeviceWait::default();
        let stalled = Now {
            device: Some(device.clone()),
            ..now("")
        };
        let stall = |least| device.during(Awaited::MicroBatch(7), || stalled.stall(least));
        let expected = "waiting for the device: micro-batch 7, for 0 s";
        assert_eq!(stall(Duration::ZERO).as_deref(), Some(expected));
        assert_eq!(stall(SILENCE), None, "it is not yet worth a word");
    }

    #[test]
    fn a_step_is_one_line() {
        let metrics = json!({ "loss": -0.01234, "reward": 0.25, "entropy": 1.0 });
        let report = StepReport {
            step: 31,
            phase: Phase::Grpo,
            metrics: metrics.as_object().unwrap().clone(),
            samples: vec![],
            tokens: 5000,
            seconds: 2.0,
            pass_at_1: Some(0.5),
        };
        assert_eq!(
            step_line(&report),
            "step 31 grpo  loss -0.0123  reward 0.2500  2500 tokens/s  2.00 s  held-out pass@1 0.500"
        );
    }
}
