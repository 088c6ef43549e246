//! The algorithm: advantages, losses, rewards, the loop.
//!
//! Problems come from a [`Dataset`], in the order of a [`Sampler`]; a [`Checker`] scores answers; an [`Estimator`] turns the scores of
//! a group into advantages. [`oracle`] has the same mathematics as the device programs, on the host in f64, for tests.
#![forbid(unsafe_code)]

mod advantage;
mod dataset;
mod error;
pub mod oracle;
mod order;
mod reward;

pub use advantage::Estimator;
pub use dataset::{Dataset, Problem, check_disjoint};
pub use error::{Error, LineProblem, Result};
pub use order::{DataOrder, Sampler};
pub use reward::Checker;
