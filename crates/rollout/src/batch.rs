//! The requests of one batch on the host: their arrays, and the answers as they grow.

use ferrotune_pjrt::{Client, HostArray};
use ferrotune_program::{Group, Layout};

use crate::config::SamplerConfig;
use crate::error::{Error, Result};
use crate::request::{Completion, Finish, Request};

/// At most one batch of checked requests, and their answers so far.
pub(crate) struct Batch<'a> {
    config: &'a SamplerConfig,
    requests: &'a [Request],
    /// Number of the first request among all, for messages.
    first: usize,
    vocab_size: usize,
    answers: Vec<Completion>,
    finished: Vec<bool>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        config: &'a SamplerConfig,
        vocab_size: usize,
        requests: &'a [Request],
        first: usize,
    ) -> Self {
        let empty = Completion {
            tokens: vec![],
            logprobs: vec![],
            raw_logprobs: vec![],
            finish: Finish::Length,
        };
        let count = requests.len();
        Self {
            config,
            requests,
            first,
            vocab_size,
            answers: vec![empty; count],
            finished: vec![false; count],
        }
    }

    /// The group of requests. Rows beyond the last request have a limit of 0: they are done from the start.
    pub(crate) fn upload(&self, client: &Client, layout: &Layout) -> Result<Group> {
        let (rows, width) = (self.config.batch, self.config.prompt_width());
        let mut prompt = vec![self.config.pad_id as i32; rows * width];
        let mut start = vec![width as i32 - 1; rows];
        let mut limit = vec![0_i32; rows];
        let mut seed = vec![0_u32; 2 * rows];
        let mut greedy = vec![true; rows];
        let mut inverse_temperature = vec![1_f32; rows];
        for (row, request) in self.requests.iter().enumerate() {
            let begin = width - request.prompt.len();
            let columns = prompt[row * width + begin..(row + 1) * width].iter_mut();
            columns
                .zip(&request.prompt)
                .for_each(|(at, token)| *at = *token as i32);
            start[row] = begin as i32;
            limit[row] = request.max_new_tokens as i32;
            seed[2 * row] = request.seed as u32;
            seed[2 * row + 1] = (request.seed >> 32) as u32;
            if request.temperature > 0.0 {
                greedy[row] = false;
                inverse_temperature[row] = (1.0 / request.temperature) as f32;
            }
        }
        let arrays = [
            HostArray::from_slice(&[rows, width], &prompt)?,
            HostArray::from_slice(&[rows], &start)?,
            HostArray::from_slice(&[rows], &limit)?,
            HostArray::from_slice(&[rows, 2], &seed)?,
            HostArray::from_slice(&[rows], &greedy)?,
            HostArray::from_slice(&[rows], &inverse_temperature)?,
        ];
        Ok(Group::upload(client, layout, &arrays)?)
    }

    /// Appends what a dispatch emitted.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for a log-prob that is NaN or infinite.
    pub(crate) fn absorb(&mut self, emitted: &Group) -> Result<()> {
        let host = emitted.to_host()?;
        let (tokens, columns) = (host[0].as_slice::<i32>(), host[0].dims()[1]);
        let (logprobs, raw_logprobs) = (host[1].as_slice::<f32>(), host[2].as_slice::<f32>());
        for (row, answer) in self.answers.iter_mut().enumerate() {
            for at in row * columns..(row + 1) * columns {
                // Finished rows, and columns after the loop ended early, hold −1.
                if tokens[at] < 0 {
                    break;
                }
                let known = (tokens[at] as usize) < self.vocab_size;
                if !known || !logprobs[at].is_finite() || !raw_logprobs[at].is_finite() {
                    let (request, position) = (self.first + row, answer.tokens.len());
                    return Err(Error::NotFinite { request, position });
                }
                let token = tokens[at] as u32;
                answer.tokens.push(token);
                answer.logprobs.push(logprobs[at]);
                answer.raw_logprobs.push(raw_logprobs[at]);
                if self.config.stop_ids.contains(&token) {
                    answer.finish = Finish::Stop;
                }
            }
            let full = answer.tokens.len() >= self.requests[row].max_new_tokens;
            self.finished[row] = full || answer.finish == Finish::Stop;
        }
        Ok(())
    }

    /// Number of finished answers.
    pub(crate) fn finished(&self) -> usize {
        self.finished.iter().filter(|f| **f).count()
    }

    /// Whether every answer is finished.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.iter().all(|f| *f)
    }

    pub(crate) fn into_answers(self) -> Vec<Completion> {
        self.answers
    }
}
