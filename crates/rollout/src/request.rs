//! What is asked of a sampler, and what it answers.

use ferrotune_nn::FilterSettings;

/// The smallest temperature that logits are divided by; 0 is greedy.
///
/// Below it the quotients lose the precision that sampling needs, and the answer is the greedy one in all but name.
pub const MIN_TEMPERATURE: f64 = 1e-3;

/// A prompt to be continued, and how. [`Request::default`] draws from the model's distribution.
///
/// Tokens are drawn from `softmax(logits / temperature)`, of which first `top_k`, then `top_p` of what is left, then `min_p`
/// keep a part. Entries of equal logits are kept or dropped together.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Source of all random numbers of the answer. Equal requests with equal seeds get equal answers.
    pub seed: u64,
    /// Logits are divided by it before sampling. 0 takes the most likely token instead, which every filter keeps.
    pub temperature: f64,
    /// What may be drawn.
    pub filters: FilterSettings,
    /// Tokens that end this answer, besides those of the sampler.
    pub stop_ids: Vec<u32>,
    /// Strings that end this answer with the token that completes one of them in its text, special tokens written out.
    pub stop_strings: Vec<String>,
    /// Longest answer, in tokens; from 1 to the sampler's limit.
    pub max_new_tokens: usize,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            seed: 0,
            temperature: 1.0,
            filters: FilterSettings::default(),
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            max_new_tokens: 16,
        }
    }
}

impl Request {
    /// Whether a filter may keep some tokens from being drawn.
    pub fn is_filtered(&self) -> bool {
        self.temperature > 0.0 && !self.filters.is_off()
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Finish {
    /// With a stop token.
    StopToken,
    /// With the token that completes a stop string: which one of the request's. Of several the first in its list.
    StopString(usize),
    /// With its last allowed token, which neither is nor completes a stop.
    Length,
}

/// The experts that the tokens of a prompt and its answer went to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// Experts of each token: those of all layers that have some, in their order.
    pub per_token: usize,
    /// The experts of every token but the last of the answer, which the model never reads.
    pub experts: Vec<i16>,
}

/// The answer to a [`Request`]. The three lists have equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Token ids: with the stop token, or with the tokens of the stop string.
    pub tokens: Vec<u32>,
    /// Log-probability of each token in the distribution that it was drawn from: after temperature and filters, its sum being
    /// 1 again. For greedy decoding that of the model.
    pub logprobs: Vec<f32>,
    /// Log-probability of each token in the model's own distribution, `log_softmax(logits)`.
    pub raw_logprobs: Vec<f32>,
    /// The experts, with [`SamplerConfig::routes`](field@crate::SamplerConfig::routes).
    pub routes: Option<Routes>,
    /// Why it ended.
    pub finish: Finish,
}
