//! What a run is to do: plain values, no files, no flags.

#[cfg(test)]
mod tests;

use ferrotune_batch::{Aggregation, Packing};
use ferrotune_engine::Schedule;
use ferrotune_rollout::Request;

use crate::advantage::Estimator;
use crate::loss::ClipRange;
use crate::reward::Checker;

/// A run: warm-up steps, then steps of reinforcement, numbered from 1 through both.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every random draw follows from this.
    pub seed: u64,
    /// Supervised learning on demonstrations.
    pub warmup: Option<Imitation>,
    /// Reinforcement.
    pub grpo: Option<Reinforcement>,
    /// How sequences are laid out in rows.
    pub packing: Packing,
    /// Rows that are computed at once.
    pub rows_per_micro_batch: usize,
    /// How answers are asked for; each request has its own prompt and seed, and held-out problems a temperature of 0.
    pub request: Request,
    /// What makes an answer good.
    pub checker: Checker,
    /// Evaluate also after every so many steps of reinforcement; 0 for never.
    pub evaluate_every: u64,
}

/// Supervised learning.
#[derive(Clone, Debug)]
pub struct Imitation {
    /// Steps, at least 1.
    pub steps: u64,
    /// Demonstrations a step.
    pub batch_size: usize,
    /// The learning rate at each step.
    pub schedule: Schedule,
}

/// Learning from groups of sampled answers.
#[derive(Clone, Debug)]
pub struct Reinforcement {
    /// Steps, at least 1.
    pub steps: u64,
    /// Prompts a step.
    pub prompts_per_step: usize,
    /// Answers to each prompt, at least 2.
    pub group_size: usize,
    /// Updates a step; divides the number of answers.
    pub updates_per_step: usize,
    /// How rewards become advantages.
    pub estimator: Estimator,
    /// How tokens are weighed against each other.
    pub aggregation: Aggregation,
    /// Where the probability ratio stops paying.
    pub clip: ClipRange,
    /// The learning rate at each step; all updates of a step share it.
    pub schedule: Schedule,
}

/// The part of the run that a step belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Supervised learning on demonstrations.
    Warmup,
    /// Reinforcement.
    Grpo,
}

impl Phase {
    /// As metrics name it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warmup => "warmup",
            Self::Grpo => "grpo",
        }
    }
}

impl Plan {
    /// Steps of supervised learning.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup.as_ref().map_or(0, |it| it.steps)
    }

    /// Steps in all.
    pub fn total_steps(&self) -> u64 {
        self.warmup_steps() + self.grpo.as_ref().map_or(0, |it| it.steps)
    }

    /// The phase of a step, counted from 1.
    pub fn phase(&self, step: u64) -> Phase {
        if step <= self.warmup_steps() {
            Phase::Warmup
        } else {
            Phase::Grpo
        }
    }

    /// The most micro-batches that an update of this phase may have: each of its sequences fills a row at most.
    pub fn most_micro_batches(&self, phase: Phase) -> usize {
        let sequences = match phase {
            Phase::Warmup => self.warmup.as_ref().map(|it| it.batch_size),
            Phase::Grpo => self
                .grpo
                .as_ref()
                .map(|it| it.prompts_per_step * it.group_size / it.updates_per_step),
        };
        let rows = sequences.unwrap_or(0).div_ceil(self.rows_per_micro_batch);
        rows.max(1)
    }

    /// Whether held-out problems are answered after this step: the last of a phase, and every so many of reinforcement.
    pub fn evaluates_after(&self, step: u64) -> bool {
        let warmup = self.warmup_steps();
        let every = self.evaluate_every;
        step == self.total_steps()
            || step == warmup
            || (step > warmup && every > 0 && (step - warmup).is_multiple_of(every))
    }
}
