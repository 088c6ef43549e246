//! What is asked of a sampler, and what it answers.

use crate::config::SamplerConfig;
use crate::error::{Error, Result};

/// The smallest temperature that logits are divided by; 0 is greedy.
///
/// Below it the quotients lose the precision that sampling needs, and the answer is the greedy one in all but name.
pub const MIN_TEMPERATURE: f64 = 1e-3;

/// A prompt to be continued.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Source of all random numbers of the answer. Equal requests with equal seeds get equal answers.
    pub seed: u64,
    /// Logits are divided by it before sampling. 0 takes the most likely token instead.
    pub temperature: f64,
    /// Longest answer, in tokens; from 1 to the sampler's limit.
    pub max_new_tokens: usize,
}

impl Request {
    pub(crate) fn check(
        &self,
        request: usize,
        config: &SamplerConfig,
        vocab_size: usize,
    ) -> Result<()> {
        let (length, limit) = (self.prompt.len(), config.max_prompt_tokens);
        if length == 0 {
            return Err(Error::EmptyPrompt { request });
        }
        if length > limit {
            return Err(Error::PromptTooLong {
                request,
                length,
                limit,
            });
        }
        if let Some(position) = self.prompt.iter().position(|t| *t as usize >= vocab_size) {
            let token = self.prompt[position];
            return Err(Error::OutsideVocabulary {
                request,
                position,
                token,
                vocab_size,
            });
        }
        let temperature = self.temperature;
        if temperature != 0.0 && !(MIN_TEMPERATURE..f64::INFINITY).contains(&temperature) {
            return Err(Error::Temperature {
                request,
                temperature,
            });
        }
        let (asked, limit) = (self.max_new_tokens, config.max_new_tokens);
        if !(1..=limit).contains(&asked) {
            return Err(Error::NewTokens {
                request,
                asked,
                limit,
            });
        }
        Ok(())
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// With a stop token.
    Stop,
    /// With its last allowed token, which is no stop token.
    Length,
}

/// The answer to a [`Request`]. The three lists have equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Token ids, the stop token included.
    pub tokens: Vec<u32>,
    /// Log-probability of each token in the distribution that it was drawn from, `log_softmax(logits / temperature)`; for
    /// greedy decoding that of the model.
    pub logprobs: Vec<f32>,
    /// Log-probability of each token in the model's own distribution, `log_softmax(logits)`.
    pub raw_logprobs: Vec<f32>,
    /// Why it ended.
    pub finish: Finish,
}
