//! The trainer: state, step programs, optimizer, metrics, checkpoints.
//!
//! A step is `forward_backward` for each micro-batch, which accumulates gradients of a *sum* weighted per token, and one
//! `update`. The weights hold the whole mean, so that any cut of a batch into micro-batches, rows or shards gives the same
//! gradient. State lives on the devices in groups that are moved into the program that overwrites them.
//!
//! | call | reads | overwrites |
//! |---|---|---|
//! | [`Engine::forward_backward`] | parameters, rows | accumulation |
//! | [`Engine::update`] | accumulation | parameters, optimizer state |
//! | [`Engine::train`] | rows | parameters, optimizer state |
//! | [`Engine::evaluate`], [`Engine::score`] | parameters, rows | nothing |
//! | [`Engine::snapshot`] | parameters | nothing |
//! | [`Engine::save`], [`Engine::restore`] | checkpoint files | all state |
//!
//! The engine knows nothing of rewards or prompts; what a token is worth comes in with the rows.
#![forbid(unsafe_code)]

mod batch;
pub mod checkpoint;
mod data_shards;
mod engine;
mod error;
mod loss;
mod optimizer;
mod schedule;
mod scores;
mod step;

pub use data_shards::ShardOverData;
pub use engine::{
    Engine, EngineConfig, Pending, RouterSettings, Scores, Skipped, Trains, UpdateReport,
};
pub use error::Error;
pub use ferrotune_models::Lora;
pub use ferrotune_nn::{Combine, EntropyUse, HeadMode, HeadSettings, HeadSizes};
pub use loss::{Loss, LossFunction, LossInputs, LossTerms, Metric};
pub use optimizer::{AdamW, Muon, OnNonFinite, Optimizer, Rule, Sgd, SpikeGuard};
pub use schedule::{Schedule, ScheduleKind};
