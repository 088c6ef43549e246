//! The families: configurations, Hugging Face names and layouts, safetensors in and out.
//!
//! A model folder is read in two steps: [`ModelConfig::load`] says what the model is and what [its parameters](ModelConfig::params)
//! are, [`load`] reads their values. [`save`] writes a folder that `transformers` loads; [`init_params`] makes fresh values.
//! Nothing here knows about training or devices.
//!
//! ```no_run
//! use ferrotune_models::{ModelConfig, load, save};
//! use ferrotune_pjrt::DType;
//!
//! # fn main() -> Result<(), ferrotune_models::Error> {
//! let config = ModelConfig::load("my-model")?;
//! let weights = load("my-model", &config)?;
//! for name in &weights.unused {
//!     eprintln!("not used: {name}");
//! }
//! save("my-copy", &config, &weights.params, weights.stored.unwrap_or(DType::F32), Some("my-model".as_ref()))?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod adapter;
mod config;
mod decoder;
mod error;
mod files;
mod init;
mod layout;
mod memory;
#[cfg(test)]
mod testing;

pub use adapter::{AdapterProblem, Lora};
pub use config::{
    DeltaSizes, ExpertSizes, Family, Feed, LayerKind, Longest, Mixer, ModelConfig, Rotary,
    RotaryScaling, Stack,
};
pub use decoder::{Cache, CacheEntry, Decoder, Forward, Routed};
pub use error::{Error, Result, WeightProblem};
pub use files::{
    AdapterWeights, HfLayout, Survey, Weights, export_gradients, load, load_adapter, save,
    save_adapter, save_from, survey,
};
pub use init::{init_adapter, init_params};
pub use layout::{is_linear_weight, is_read_in_f32};
