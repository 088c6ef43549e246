//! A run directory in a temporary folder, and small runs in it.

mod chart;
mod folder;
mod report;

use std::path::PathBuf;

use ferrotune_rl::Phase;

use super::{RunDir, Sample, StepMetrics};

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("runs/r")
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap()
    }
}

/// Records a step as the trainer would: two answers, then the metrics.
fn record(run: &mut RunDir, step: u64) {
    let phase = if step <= 3 {
        Phase::Warmup
    } else {
        Phase::Grpo
    };
    let mut metrics = StepMetrics::new(step, phase);
    metrics.set("loss", 1.0 / step as f64);
    metrics.set("num_tokens", 10 * step);
    if phase == Phase::Grpo {
        let answer = format!("<b>{step}</b>");
        let sample = |reward: f32| Sample {
            step,
            prompt: "1+1=",
            answer: &answer,
            expected: "2",
            reward,
            advantage: 2.0 * reward - 1.0,
            logprobs: &[-0.1, -0.25],
        };
        run.record_samples(&[sample(0.0), sample(1.0)]).unwrap();
        metrics.set("reward", 0.5);
    }
    run.record_metrics(&metrics).unwrap();
}
