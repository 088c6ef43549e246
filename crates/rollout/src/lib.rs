//! The sampler: a model answers prompts, with the same layer code that trains it.
//!
//! [`Sampler::new`] traces and compiles programs over [`ferrotune_models::Decoder`]: *admit* reads prompts into free rows of
//! a cache, *decode* appends several tokens per dispatch to all rows. A row whose answer is complete is given to the next
//! request while the others go on. Cache and decoding state are moved from dispatch to dispatch, so they are updated in
//! place; the weights are borrowed from whoever trains them, and converted once for any number of calls. The host reads only tokens and
//! log-probs.
//!
//! The answer to a [`Request`] depends on the request alone, not on its row, on the other rows or on when it began: the
//! random number behind token `i` and vocabulary entry `v` is a function of (seed, i, v), and a row reads its cache in the
//! order of its tokens, wherever in the ring they lie. What remains is the rounding of matrix products, which may differ in
//! the last bits between samplers of another number of rows and, where a compiler so chooses, between rows.
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
//!     adapter_scale: 1.0,
//!     routes: false,
//!     pad_id: 0,
//! };
//! let sampler = Sampler::new(client, rules, model, &[weights.layout()], config)?;
//! let request = Request { prompt: vec![1, 17, 4], seed: 7, max_new_tokens: 32, ..Request::default() };
//! let weights = sampler.weights(&[weights])?;
//! let answers = sampler.generate(&weights, &[request], &mut |done, total| println!("{done} of {total}"))?;
//! println!("{:?} {:?}", answers[0].tokens, answers[0].finish);
//! # Ok(())
//! # }
//! ```
//!
//! Not here: chat templates, rewards.
#![forbid(unsafe_code)]

mod admission;
mod answers;
mod choice;
mod config;
mod error;
mod layouts;
mod programs;
mod refusal;
mod request;
mod rows;
mod sampler;
mod stop;

pub use config::SamplerConfig;
pub use error::{Error, Result};
pub use ferrotune_nn::FilterSettings;
pub use refusal::Refusal;
pub use request::{Completion, Finish, MIN_TEMPERATURE, Request, Routes};
pub use sampler::{Sampler, Weights};
