//! The metrics of one step, under the names that TRL uses where it has one.
//!
//! | name | what it is |
//! |---|---|
//! | `step`, `phase` | counted from 1 through both phases; `warmup` or `grpo` |
//! | `loss`, `grad_norm`, `learning_rate` | mean over the updates of the step; the norm before clipping |
//! | `grad_norm/PATTERN` | the same of the parameters that fit a pattern of `optimizer.group_norms` |
//! | `skipped_updates` | updates that changed nothing, since their gradient was not finite or a spike |
//! | `reward`, `reward_std`, `frac_reward_zero_std` | mean over answers; mean deviation within groups; groups without any |
//! | `completions/{mean,min,max}_length` | tokens an answer, its end included |
//! | `completions/{mean,min,max}_terminated_length`, `completions/clipped_ratio` | of answers that ended; share cut off by the limit |
//! | `entropy`, `approx_kl` | mean over answer tokens; divergence from the policy that sampled |
//! | `clip_ratio/{low,high,region}_mean`, `clip_ratio/low_min`, `clip_ratio/high_max` | share of answer tokens held at the lower, upper, either bound; extremes over the updates |
//! | `sampling/sampling_logp_difference/{mean,max}` | trainer against sampler, absolute, over answer tokens of the first update |
//! | `num_tokens`, `step_time` | seen so far, prompts included; seconds without evaluation |
//! | `checkpoint/failed` | checkpoints before the step that could not be saved; left out where there is none |
//! | `checkpoint/copy_seconds` | how long the step waited for the copy of a checkpoint to the host; left out where none was begun |
//! | `eval/pass@1` | greedy, held-out, after the step |
//!
//! A run without a warm-up begins with a line of step 0 that has only `eval/pass@1`: what it starts from.
//!
//! What is not defined for a step, such as a mean over nothing, is `null`.

use ferrotune_rl::Phase;
use serde::Serialize;
use serde_json::{Map, Value};

/// One line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct StepMetrics(Map<String, Value>);

impl StepMetrics {
    /// A line that holds only its step and phase.
    pub(crate) fn new(step: u64, phase: Phase) -> Self {
        let mut map = Map::new();
        map.insert("step".to_owned(), step.into());
        map.insert("phase".to_owned(), phase.word().into());
        Self(map)
    }

    /// Adds a metric, or replaces it. A number that is not finite becomes `null`, since JSON has none.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}
