//! The answers of a step: requests to the sampler, rewards, advantages, and the trajectories to learn from.

#[cfg(test)]
mod tests;

use ferrotune_batch::{Field, Trajectory};
use ferrotune_rollout::{Completion, Finish, Request};
use ferrotune_text::{Special, Tokenizer};
use serde_json::{Map, Value};

use crate::advantage::Estimator;
use crate::error::Result;
use crate::problems::Problems;
use crate::report::{Spread, mean};
use crate::reward::Checker;
use crate::seeds::answer_seed;
use crate::trainer::SampledAnswer;

/// The problems of a step; each is answered `group_size` times.
pub(crate) struct Asked<'a> {
    pub(crate) problems: &'a Problems,
    pub(crate) chosen: &'a [usize],
    pub(crate) group_size: usize,
}

impl Asked<'_> {
    /// One request an answer, group after group, with prompts and seeds of their own.
    pub(crate) fn requests(&self, seed: u64, step: u64, request: &Request) -> Vec<Request> {
        let groups = self.chosen.iter().enumerate();
        groups
            .flat_map(|(place, &problem)| (0..self.group_size).map(move |n| (place, problem, n)))
            .map(|(place, problem, sample)| Request {
                prompt: self.problems.prompts()[problem].clone(),
                seed: answer_seed(seed, step, place, sample),
                ..request.clone()
            })
            .collect()
    }

    /// The problem of an answer.
    fn problem(&self, answer: usize) -> usize {
        self.chosen[answer / self.group_size]
    }
}

/// What the model wrote, without the token that ends it, or without the stop string and what follows it in its token.
///
/// Special tokens are written out, so that an answer with a stray one is not taken for the same without. A model may have
/// more ids than its tokenizer: such an id becomes U+FFFD.
///
/// # Errors
/// A tokenizer that fails.
pub fn answer_text(
    tokenizer: &Tokenizer,
    completion: &Completion,
    stop_strings: &[String],
) -> Result<String> {
    let mut tokens = completion.tokens.as_slice();
    if completion.finish == Finish::StopToken {
        tokens = &tokens[..tokens.len() - 1];
    }
    let mut text = String::new();
    for (n, part) in tokens
        .split(|&id| tokenizer.id_to_token(id).is_none())
        .enumerate()
    {
        if n > 0 {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        text.push_str(&tokenizer.decode(part, Special::Keep)?);
    }
    if let Finish::StopString(which) = completion.finish
        && let Some(end) = text.find(&stop_strings[which])
    {
        text.truncate(end);
    }
    Ok(text)
}

/// Judged answers, group after group.
pub(crate) struct Answers {
    prompts: Vec<Vec<u32>>,
    completions: Vec<Completion>,
    samples: Vec<SampledAnswer>,
    group_size: usize,
    /// Whether tokens were drawn from a part of the vocabulary.
    filtered: bool,
}

impl Answers {
    pub(crate) fn judge(
        asked: &Asked<'_>,
        completions: Vec<Completion>,
        request: &Request,
        tokenizer: &Tokenizer,
        checker: Checker,
        estimator: Estimator,
    ) -> Result<Self> {
        let mut samples = Vec::with_capacity(completions.len());
        let mut prompts = Vec::with_capacity(completions.len());
        for (n, completion) in completions.iter().enumerate() {
            let problem = &asked.problems.problems()[asked.problem(n)];
            let answer = answer_text(tokenizer, completion, &request.stop_strings)?;
            prompts.push(asked.problems.prompts()[asked.problem(n)].clone());
            samples.push(SampledAnswer {
                prompt: problem.prompt.clone(),
                reward: checker.score(problem, &answer),
                answer,
                expected: problem.answer.clone(),
                advantage: 0.0,
                logprobs: completion.logprobs.clone(),
            });
        }
        let rewards: Vec<f32> = samples.iter().map(|it| it.reward).collect();
        let advantages = estimator.advantages(&rewards, asked.group_size)?;
        for (sample, advantage) in samples.iter_mut().zip(advantages) {
            sample.advantage = advantage;
        }
        Ok(Self {
            prompts,
            completions,
            samples,
            group_size: asked.group_size,
            filtered: request.is_filtered(),
        })
    }

    /// What there is to learn from, in the order of the answers.
    ///
    /// The old log-probs are the sampler's: trainer and sampler run the same layers, so at the first update of a step the
    /// ratio is 1 but for rounding, and the tokens are not scored once more. The loss knows no filters: where some were
    /// used, the old log-probs are those of the model before them, at its own temperature, which is then the only one allowed.
    /// Where the sampler says which experts tokens went to, they go to the same ones again.
    pub(crate) fn trajectories(&self, step: u64) -> Vec<Trajectory> {
        let answers = self
            .prompts
            .iter()
            .zip(&self.completions)
            .zip(&self.samples);
        answers
            .enumerate()
            .map(|(n, ((prompt, completion), sample))| {
                let logprobs = if self.filtered {
                    &completion.raw_logprobs
                } else {
                    &completion.logprobs
                };
                let mut trajectory = Trajectory::from_prompt(prompt, &completion.tokens)
                    .with_constant(Field::Advantage, sample.advantage)
                    .with_tail(Field::OldLogprob, logprobs)
                    .with_tail(Field::SamplerLogprob, logprobs);
                if let Some(routes) = &completion.routes {
                    trajectory = trajectory.with_expert_ids(routes.per_token, &routes.experts);
                }
                Trajectory {
                    group: n / self.group_size,
                    policy_version: step - 1,
                    ..trajectory
                }
            })
            .collect()
    }

    /// Rewards and lengths.
    ///
    /// `reward_std` is the mean over groups of the sample standard deviation, `frac_reward_zero_std` the share of groups in
    /// which all rewards are equal: these teach nothing, but stay in the batch and in its denominators. Lengths are in
    /// tokens with the one that ends the answer; *terminated* answers are those that ended before the limit.
    pub(crate) fn metrics(&self) -> Map<String, Value> {
        let rewards: Vec<f64> = self.samples.iter().map(|it| f64::from(it.reward)).collect();
        let deviations: Vec<f64> = rewards.chunks(self.group_size).map(deviation).collect();
        let silent = rewards
            .chunks(self.group_size)
            .filter(|group| group.iter().all(|reward| *reward == group[0]));
        let silent = silent.count() as f64 / deviations.len() as f64;
        let length = |it: &Completion| it.tokens.len() as f64;
        let ended = |it: &&Completion| it.finish != Finish::Length;
        let lengths: Spread = self.completions.iter().map(length).collect();
        let terminated: Spread = self.completions.iter().filter(ended).map(length).collect();
        let cut = 1.0 - terminated.count as f64 / lengths.count as f64;
        let named = [
            ("reward", mean(&rewards)),
            ("reward_std", mean(&deviations)),
            ("frac_reward_zero_std", silent),
            ("completions/mean_length", lengths.mean()),
            ("completions/min_length", lengths.min),
            ("completions/max_length", lengths.max),
            ("completions/clipped_ratio", cut),
            ("completions/mean_terminated_length", terminated.mean()),
            ("completions/min_terminated_length", terminated.min),
            ("completions/max_terminated_length", terminated.max),
        ];
        named
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect()
    }

    /// What to show of them.
    pub(crate) fn into_samples(self) -> Vec<SampledAnswer> {
        self.samples
    }
}

/// Sample standard deviation.
fn deviation(values: &[f64]) -> f64 {
    let center = mean(values);
    let squares: f64 = values.iter().map(|it| (it - center).powi(2)).sum();
    (squares / (values.len() as f64 - 1.0)).sqrt()
}
