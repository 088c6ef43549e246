//! The algorithm: advantages, losses, rewards, the loop.
//!
//! Problems come from a [`Dataset`], in the order of a [`Sampler`]; a [`Checker`] scores answers; an [`Estimator`] turns the scores of
//! a group into advantages, which weigh the tokens in [`policy_gradient`]. A [`Trainer`] does all of it, step by step, after a
//! [`Plan`]: first supervised learning on demonstrations, then reinforcement. [`oracle`] has the same mathematics as the device programs, on the host in f64, for tests.
#![forbid(unsafe_code)]

mod advantage;
mod answers;
mod checkpoint;
mod dataset;
mod error;
mod loss;
pub mod oracle;
mod order;
mod plan;
mod problems;
mod progress;
mod report;
mod reward;
mod seeds;
mod trainer;
mod update;
mod words;

pub use advantage::Estimator;
pub use answers::answer_text;
pub use dataset::{Dataset, Problem, check_disjoint};
pub use error::{Error, LineProblem, Result};
pub use loss::{ClipRange, policy_gradient};
pub use order::{DataOrder, Sampler};
pub use plan::{Imitation, Phase, Plan, Reinforcement};
pub use problems::{Problems, RunData};
pub use reward::Checker;
pub use trainer::{Activity, SampledAnswer, StepReport, Trainer};
pub use words::Words;
