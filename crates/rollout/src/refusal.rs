//! Requests that cannot be served, and why.

use ferrotune_nn::FilterSettings;

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
    /// A share of probability to keep that is none.
    #[error("top_p is {top_p}; give a share above 0, up to 1 for everything")]
    TopP {
        /// As given.
        top_p: f64,
    },
    /// A least share that is none.
    #[error("min_p is {min_p}; give a share from 0, for everything, to 1")]
    MinP {
        /// As given.
        min_p: f64,
    },
    /// A stop token that the model does not have.
    #[error("the stop token {token} is none of the vocabulary's {vocab_size} tokens")]
    StopOutsideVocabulary {
        /// The token id.
        token: u32,
        /// Tokens of the model.
        vocab_size: usize,
    },
    /// A stop string that any text holds.
    #[error("a stop string is empty")]
    EmptyStopString,
    /// Stop strings for a sampler that knows no text.
    #[error(
        "stop strings are looked for in text, and this sampler has no tokenizer; give it one, or use stop_ids"
    )]
    NoTokenizer,
}

/// All that is wrong with a request.
///
/// `reads_text`: whether the sampler has a tokenizer.
pub(crate) fn check(
    request: &Request,
    config: &SamplerConfig,
    vocab_size: usize,
    reads_text: bool,
) -> Vec<Refusal> {
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
    let FilterSettings { top_p, min_p, .. } = request.filters;
    if !(top_p > 0.0 && top_p <= 1.0) {
        refusals.push(Refusal::TopP { top_p });
    }
    if !(0.0..=1.0).contains(&min_p) {
        refusals.push(Refusal::MinP { min_p });
    }
    check_stops(request, vocab_size, reads_text, &mut refusals);
    refusals
}

fn check_stops(
    request: &Request,
    vocab_size: usize,
    reads_text: bool,
    refusals: &mut Vec<Refusal>,
) {
    for &token in &request.stop_ids {
        if token as usize >= vocab_size {
            refusals.push(Refusal::StopOutsideVocabulary { token, vocab_size });
        }
    }
    if request.stop_strings.iter().any(String::is_empty) {
        refusals.push(Refusal::EmptyStopString);
    }
    if !request.stop_strings.is_empty() && !reads_text {
        refusals.push(Refusal::NoTokenizer);
    }
}
