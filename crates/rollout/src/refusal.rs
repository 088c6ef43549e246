//! Requests that cannot be served, and why.

use crate::config::SamplerConfig;
use crate::request::{MIN_TEMPERATURE, Request};

/// Why a request cannot be served.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A prompt without tokens.
    #[error(
        "the prompt is empty; give at least one token, such as the beginning-of-sequence token"
    )]
    EmptyPrompt,
    /// A prompt longer than the compiled programs take.
    #[error(
        "the prompt has {length} tokens, but max_prompt_tokens is {limit}; shorten the prompt or raise the limit"
    )]
    PromptTooLong {
        /// Tokens of its prompt.
        length: usize,
        /// The sampler's `max_prompt_tokens`.
        limit: usize,
    },
    /// A prompt token that the model does not have.
    #[error(
        "token {position} of the prompt is {token}, but the vocabulary has {vocab_size} tokens; is this the model's tokenizer?"
    )]
    OutsideVocabulary {
        /// Place in the prompt, from 0.
        position: usize,
        /// The token id.
        token: u32,
        /// Tokens of the model.
        vocab_size: usize,
    },
    /// A temperature that is negative, not finite, or too small to divide by.
    #[error(
        "the temperature is {temperature}; use 0 for greedy decoding, or a finite value of at least {MIN_TEMPERATURE}"
    )]
    Temperature {
        /// The temperature as given.
        temperature: f64,
    },
    /// A limit of 0 or beyond the compiled programs.
    #[error(
        "{asked} new tokens are asked for; the sampler gives 1 to {limit} (its max_new_tokens)"
    )]
    NewTokens {
        /// The request's `max_new_tokens`.
        asked: usize,
        /// The sampler's `max_new_tokens`.
        limit: usize,
    },
}

/// All that is wrong with a request.
pub(crate) fn check(request: &Request, config: &SamplerConfig, vocab_size: usize) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let (length, limit) = (request.prompt.len(), config.max_prompt_tokens);
    if length == 0 {
        refusals.push(Refusal::EmptyPrompt);
    }
    if length > limit {
        refusals.push(Refusal::PromptTooLong { length, limit });
    }
    let outside = |t: &u32| *t as usize >= vocab_size;
    if let Some(position) = request.prompt.iter().position(outside) {
        refusals.push(Refusal::OutsideVocabulary {
            position,
            token: request.prompt[position],
            vocab_size,
        });
    }
    let temperature = request.temperature;
    if temperature != 0.0 && !(MIN_TEMPERATURE..f64::INFINITY).contains(&temperature) {
        refusals.push(Refusal::Temperature { temperature });
    }
    let (asked, limit) = (request.max_new_tokens, config.max_new_tokens);
    if !(1..=limit).contains(&asked) {
        refusals.push(Refusal::NewTokens { asked, limit });
    }
    refusals
}
