//! The plan: typed configuration, rules, mesh and sharding rules.
//!
//! A *recipe* is a TOML file; `key=value` overrides are laid over it. [`Recipe::load`] reads both into one struct in which
//! every value remembers where it came from, or answers with everything that is wrong at once, each with line, caret and
//! cure. A setting that can have no effect is refused like one that is misspelt.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("sums.toml");
//! std::fs::write(&file, "[rl]\ngroup_sise = 16\n")?;
//!
//! let refused = ferrotune_recipe::Recipe::load(&file, &["seed=7".to_owned()]).unwrap_err();
//! let text = refused.to_string();
//! assert!(text.contains("unknown key `rl.group_sise`"));
//! assert!(text.contains("did you mean `rl.group_size`?"));
//! assert!(text.contains("`data.train` is missing"));
//! # Ok(())
//! # }
//! ```
//!
//! Adding a setting is adding one line to `settings.rs`: the struct, the reader, the resolved file, the error texts and
//! [`Recipe::reference`] all come from it. This crate reads no data, loads no model and starts no device.

#![forbid(unsafe_code)]

mod choice;
mod counted;
mod diagnostics;
mod files;
mod idle;
mod judge;
mod layers;
mod load;
mod mesh;
mod reader;
mod reference;
mod resolved;
mod rules;
mod setting;
mod settings;
mod spec;
mod suggest;
#[cfg(test)]
mod tests;

pub use choice::{
    Advantage, Checker, ComputeDtype, ExpertAdapters, HeadMode, LossAggregation, LrSchedule,
    ModelInit, MomentDtype, Offload, OnNonFinite, OptimizerKind, PadPosition, Routes, RowBalance,
    ShardOverData, TokenOrder,
};
pub use counted::counted;
pub use diagnostics::{Diagnostic, Diagnostics};
pub use mesh::{sampling_rules, sharding_rules};
pub use resolved::{Fault, Origin, Resolved};
pub use settings::{
    Checkpoint, Data, Eval, Head, Mesh, Model, Optimizer, Packing, Recipe, Reward, Rl, Rollout,
    Run, Warmup,
};
pub use suggest::nearest;
