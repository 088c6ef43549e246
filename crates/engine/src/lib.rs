//! The trainer: state, step programs, optimizer, metrics, checkpoints.
//!
//! A step is `forward_backward` for each micro-batch, which accumulates gradients of a *sum* weighted per token, and one
//! `update`. The weights hold the whole mean, so that any cut of a batch into micro-batches, rows or shards gives the same
//! gradient. State lives on the devices in groups that are moved into the program that overwrites them.
//!
//! | call | reads | overwrites |
//! |---|---|---|
//! | [`Engine::forward_backward`] | parameters, rows | accumulation, histories of 8-bit products |
//! | [`Engine::update`] | accumulation | parameters, optimizer state |
//! | [`Engine::train`] | rows | parameters, optimizer state |
//! | [`Engine::evaluate`], [`Engine::score`], [`Engine::score_filtered`] | parameters, rows | nothing |
//! | [`Engine::snapshot`], [`Engine::weights_for`] | parameters | nothing |
//! | [`Engine::save`], [`Engine::restore`] | checkpoint files | all state |
//!
//! Parameters are lent for as long as nothing overwrites them, and whoever wants to keep them takes a snapshot:
//!
//! ```no_run
//! # use ferrotune_engine::{Engine, Error};
//! fn publish(engine: &mut Engine) -> Result<(), Error> {
//!     let kept = engine.snapshot()?;
//!     engine.update(1e-3)?;
//!     println!("{} arrays as they were", kept.len());
//!     let [trained, _] = engine.weights()?;
//!     println!("{} arrays as they are", trained.len());
//!     Ok(())
//! }
//! ```
//!
//! What an update has moved cannot be read:
//!
//! ```compile_fail,E0502
//! # use ferrotune_engine::{Engine, Error};
//! fn publish(engine: &mut Engine) -> Result<(), Error> {
//!     let [trained, _] = engine.weights()?;
//!     engine.update(1e-3)?;
//!     println!("{} arrays", trained.len()); // they were given to the update
//!     Ok(())
//! }
//! ```
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
mod order;
mod scaling;
mod schedule;
mod scores;
mod step;

pub use data_shards::ShardOverData;
pub use engine::{
    Awaited, Compiled, DeviceWait, Engine, EngineConfig, Kept, Offload, Pending, RouterSettings,
    Scores, Skipped, Trains, UpdateReport,
};
pub use error::Error;
pub use ferrotune_batch::OrderKind;
pub use ferrotune_models::{HfLayout, Lora};
pub use ferrotune_nn::{Combine, EntropyUse, FilterSettings, HeadMode, HeadSettings, HeadSizes};
pub use loss::{Loss, LossFunction, LossInputs, LossTerms, Metric};
pub use optimizer::{AdamW, Muon, OnNonFinite, Optimizer, Rule, Sgd, SpikeGuard};
pub use schedule::{Schedule, ScheduleKind};
pub use scores::DROPPED;
