//! What is asked of a sampler, and what it answers.

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
    /// Longest answer, in tokens; from 1 to the sampler's limit.
    pub max_new_tokens: usize,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            seed: 0,
            temperature: 1.0,
            max_new_tokens: 16,
        }
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
