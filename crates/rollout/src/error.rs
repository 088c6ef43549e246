//! What can go wrong with a sampler or a request, as data.

use ferrotune_graph::{DType, PlacementError};
use ferrotune_text::TextError;

use crate::refusal::Refusal;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a sampler or a request. Requests are counted from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the sampler that must be at least 1.
    #[error("the sampler's {setting} is 0; it must be at least 1")]
    Zero {
        /// Name of the setting.
        setting: &'static str,
    },
    /// A setting that names a token which the model does not have.
    #[error("the sampler's {setting} names token {token}, but the vocabulary has {vocab_size} tokens (0 to {})", vocab_size - 1)]
    SettingOutsideVocabulary {
        /// Name of the setting.
        setting: &'static str,
        /// The token id.
        token: u32,
        /// Tokens of the model.
        vocab_size: usize,
    },
    /// A compute type that activations cannot have.
    #[error("the sampler cannot compute in {dtype}; use f32, bf16 or f16")]
    Compute {
        /// The type as given.
        dtype: DType,
    },
    /// Texts beyond what the rotary scaling of the model covers.
    #[error(
        "prompt and answer may have {tokens} tokens, but ferrotune takes at most {longest} with longrope scaling; lower max_prompt_tokens or max_new_tokens"
    )]
    TooLong {
        /// The most tokens of both.
        tokens: usize,
        /// The most that may be.
        longest: usize,
    },
    /// A model whose answers cannot name experts.
    #[error(
        "answers of a model of the family {family} cannot say which experts their tokens went to: it has none, or more than 32767"
    )]
    Routes {
        /// The family.
        family: &'static str,
    },
    /// A cache that cannot be addressed.
    #[error(
        "a cache for {batch} rows of {slots} tokens is too large; lower the batch, max_prompt_tokens or max_new_tokens"
    )]
    TooLarge {
        /// Rows.
        batch: usize,
        /// Tokens per row.
        slots: usize,
    },
    /// Rows that cannot be split over the mesh.
    #[error("the sampler's batch of {batch} rows does not fit the mesh: {source}")]
    Batch {
        /// Rows per dispatch.
        batch: usize,
        /// What the sharding rules say.
        source: PlacementError,
    },
    /// Weights that are not those of the model.
    #[error("the weights are not those that the sampler was built for: {reason}")]
    Weights {
        /// The first difference.
        reason: String,
    },
    /// Requests that cannot be served; nothing has been run.
    #[error("{}", describe(refused))]
    Requests {
        /// Which requests, and why; one may be there more than once.
        refused: Vec<(usize, Refusal)>,
    },
    /// The model's numbers are not finite.
    #[error(
        "the model gave a log-prob that is not finite at token {position} of the answer to request {request}; its weights hold NaN or infinity, or are far too large"
    )]
    NotFinite {
        /// Which request.
        request: usize,
        /// Place in the answer, from 0.
        position: usize,
    },
    /// A weight or a cache that the sharding rules cannot place.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// A tokenizer that fails.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A failure to compile or run.
    #[error(transparent)]
    Program(#[from] ferrotune_program::Error),
}

impl From<ferrotune_pjrt::Error> for Error {
    fn from(e: ferrotune_pjrt::Error) -> Self {
        Self::Program(e.into())
    }
}

/// Refusals that are written out; of more, the number is told.
const WRITTEN: usize = 20;

fn describe(refused: &[(usize, Refusal)]) -> String {
    let lines = refused.iter().take(WRITTEN);
    let mut lines: Vec<String> = lines
        .map(|(request, why)| format!("request {request}: {why}"))
        .collect();
    if refused.len() > WRITTEN {
        lines.push(format!("and {} more", refused.len() - WRITTEN));
    }
    lines.join("\n")
}
