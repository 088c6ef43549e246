//! Answers as they grow.

use ferrotune_pjrt::HostArray;
use ferrotune_text::Tokenizer;

use crate::config::SamplerConfig;
use crate::error::{Error, Result};
use crate::request::{Completion, Finish, Request, Routes};
use crate::stop::StopStrings;

/// The answers to all requests so far.
pub(crate) struct Answers<'a> {
    config: &'a SamplerConfig,
    vocab_size: usize,
    requests: &'a [Request],
    completions: Vec<Completion>,
    /// The text of each answer that may end with a string.
    texts: Vec<Option<StopStrings<'a>>>,
    finished: usize,
}

/// What one dispatch emitted: row-major arrays of rows and columns.
struct Emitted<'a> {
    tokens: &'a [i32],
    logprobs: &'a [f32],
    raw_logprobs: &'a [f32],
    /// Where answers name experts: how many each token has, and those of the tokens that were read.
    experts: Option<(usize, &'a [i32])>,
}

impl<'a> Answers<'a> {
    pub(crate) fn new(
        config: &'a SamplerConfig,
        vocab_size: usize,
        requests: &'a [Request],
        tokenizer: Option<&'a Tokenizer>,
    ) -> Self {
        let text = |request: &'a Request| {
            let strings = request.stop_strings.as_slice();
            tokenizer
                .filter(|_| !strings.is_empty())
                .map(|tokenizer| StopStrings::new(tokenizer, strings))
        };
        let empty = Completion {
            tokens: vec![],
            logprobs: vec![],
            raw_logprobs: vec![],
            routes: None,
            finish: Finish::Length,
        };
        Self {
            config,
            vocab_size,
            requests,
            completions: vec![empty; requests.len()],
            texts: requests.iter().map(text).collect(),
            finished: 0,
        }
    }

    /// Begins the routes of answers with those of their prompts' tokens but the last, `[A,P−1,N,J]` in `routes` if answers name
    /// experts; `read` says which request has which prompt.
    pub(crate) fn absorb_prompts(&mut self, routes: &[HostArray], read: &[(usize, usize)]) {
        let Some(routes) = routes.first() else {
            return;
        };
        let (columns, per_token) = (routes.dims()[1], routes.dims()[2..].iter().product());
        for &(request, place) in read {
            let tokens = self.requests[request].prompt.len() - 1;
            let end = (place + 1) * columns * per_token;
            let ids = &routes.as_slice::<i32>()[end - tokens * per_token..end];
            self.completions[request].routes = Some(Routes {
                per_token,
                experts: ids.iter().map(|id| *id as i16).collect(),
            });
        }
    }

    /// Appends what a dispatch emitted for rows that work on requests, and returns the rows whose answers are complete.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for a log-prob that is NaN or infinite; a tokenizer that fails.
    pub(crate) fn absorb(
        &mut self,
        emitted: &[HostArray],
        at_work: &[(usize, usize)],
    ) -> Result<Vec<usize>> {
        let columns = emitted[0].dims()[1];
        let emitted = Emitted {
            tokens: emitted[0].as_slice(),
            logprobs: emitted[1].as_slice(),
            raw_logprobs: emitted[2].as_slice(),
            experts: emitted.get(3).map(|ids| {
                let per_token = ids.dims()[2..].iter().product();
                (per_token, ids.as_slice())
            }),
        };
        let mut complete = Vec::new();
        for &(row, request) in at_work {
            for at in row * columns..(row + 1) * columns {
                // Finished rows, and columns after the loop ended early, hold −1.
                if emitted.tokens[at] < 0 {
                    break;
                }
                if self.push(request, &emitted, at)? {
                    complete.push(row);
                    break;
                }
            }
        }
        self.finished += complete.len();
        Ok(complete)
    }

    /// Appends one token and says whether it is the last of its answer.
    fn push(&mut self, request: usize, emitted: &Emitted<'_>, at: usize) -> Result<bool> {
        let answer = &mut self.completions[request];
        let (logprob, raw_logprob) = (emitted.logprobs[at], emitted.raw_logprobs[at]);
        let token = emitted.tokens[at] as u32;
        let known = (token as usize) < self.vocab_size;
        if !known || !logprob.is_finite() || !raw_logprob.is_finite() {
            let position = answer.tokens.len();
            return Err(Error::NotFinite { request, position });
        }
        answer.tokens.push(token);
        answer.logprobs.push(logprob);
        answer.raw_logprobs.push(raw_logprob);
        if let (Some(routes), Some((per_token, ids))) = (&mut answer.routes, emitted.experts) {
            let read = &ids[at * per_token..][..per_token];
            routes.experts.extend(read.iter().map(|id| *id as i16));
        }
        let asked = &self.requests[request];
        if self.config.stop_ids.contains(&token) || asked.stop_ids.contains(&token) {
            answer.finish = Finish::StopToken;
            return Ok(true);
        }
        if let Some(text) = &mut self.texts[request]
            && let Some(string) = text.push(token)?
        {
            answer.finish = Finish::StopString(string);
            return Ok(true);
        }
        Ok(answer.tokens.len() >= asked.max_new_tokens)
    }

    /// Number of complete answers.
    pub(crate) fn finished(&self) -> usize {
        self.finished
    }

    pub(crate) fn into_completions(self) -> Vec<Completion> {
        self.completions
    }
}
