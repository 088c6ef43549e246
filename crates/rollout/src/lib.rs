//! The sampler: a model answers prompts, with the same layer code that trains it.
//!
//! [`Sampler::new`] traces and compiles two programs over [`ferrotune_models::Decoder`]: *prefill* reads the prompts of a
//! batch into a key-value cache, *decode* appends several tokens per dispatch and ends early when every row has finished.
//! Cache and decoding state are moved from dispatch to dispatch, so they are updated in place; the weights are borrowed
//! from whoever trains them. The host reads only tokens and log-probs.
//!
//! The answer to a [`Request`] depends on its prompt, seed, temperature and limit alone, not on its place in a batch or on
//! its neighbours: the random number behind token `i` and vocabulary entry `v` is a function of (seed, i, v). What remains
//! is the rounding of matrix products, which may differ in the last bits between places and between meshes.
//!
//! ```no_run
//! # use ferrotune_graph::{DType, Rules};
//! # use ferrotune_models::ModelConfig;
//! # use ferrotune_pjrt::Client;
//! # use ferrotune_program::Group;
//! # use ferrotune_rollout::{Error, Request, Sampler, SamplerConfig};
//! # fn demo(client: &Client, rules: &Rules, model: &ModelConfig, weights: &Group) -> Result<(), Error> {
//! let config = SamplerConfig {
//!     batch: 64,
//!     max_prompt_tokens: 16,
//!     max_new_tokens: 32,
//!     tokens_per_dispatch: 16,
//!     compute: DType::F32,
//!     stop_ids: vec![2],
//!     pad_id: 0,
//! };
//! let sampler = Sampler::new(client, rules, model, weights.layout(), config)?;
//! let request = Request { prompt: vec![1, 17, 4], seed: 7, temperature: 1.0, max_new_tokens: 32 };
//! let answers = sampler.generate(weights, &[request], &mut |done, total| println!("{done} of {total}"))?;
//! println!("{:?} {:?}", answers[0].tokens, answers[0].finish);
//! # Ok(())
//! # }
//! ```
//!
//! Not here: text and tokenizers, rewards, top-k and its relatives, replacing a finished row before its batch is done.
#![forbid(unsafe_code)]

mod batch;
mod choice;
mod config;
mod error;
mod layouts;
mod programs;
mod request;
mod sampler;

pub use config::SamplerConfig;
pub use error::{Error, Result};
pub use request::{Completion, Finish, MIN_TEMPERATURE, Request};
pub use sampler::Sampler;
