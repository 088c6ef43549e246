//! The metrics of one step, under the names that TRL uses where it has one.
//!
//! | name | what it is |
//! |---|---|
//! | `step`, `phase` | counted from 1 through both phases; `warmup` or `grpo` |
//! | `loss`, `grad_norm`, `learning_rate` | of the update; the norm before clipping |
//! | `reward`, `reward_std`, `frac_reward_zero_std` | mean over answers; mean deviation within groups; groups without any |
//! | `completions/{mean,min,max}_length`, `completions/clipped_ratio` | tokens an answer; answers cut off by the limit |
//! | `entropy`, `clip_ratio/region_mean` | mean over answer tokens; share of them that were clipped |
//! | `sampling/sampling_logp_difference/{mean,max}` | trainer against sampler, absolute, over answer tokens |
//! | `num_tokens`, `step_time` | seen so far; seconds |
//! | `eval/pass@1` | greedy, held-out |

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
