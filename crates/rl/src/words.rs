//! From problems as text to token ids: templates, limits, and every line that cannot be used, at once.

#[cfg(test)]
pub(crate) mod tests;

use ferrotune_batch::Trajectory;
use ferrotune_text::Tokenizer;

use crate::dataset::{Dataset, Problem};
use crate::error::{Error, LineProblems, Result};

/// How texts become tokens.
#[derive(Clone, Debug)]
pub struct Words {
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// What the model reads: `{prompt}` stands for the prompt.
    pub template: String,
    /// Token ids must be below this.
    pub vocab_size: usize,
    /// The longest prompt, in tokens.
    pub max_prompt_tokens: usize,
    /// Tokens in a row: the longest demonstration.
    pub row_tokens: usize,
}

impl Words {
    /// The ids that end an answer.
    ///
    /// # Errors
    /// [`Error::NoEnd`]: answers would never end, and demonstrations could not show how. [`Error::EndOutside`].
    pub fn stop_ids(&self) -> Result<&[u32]> {
        let ids = self.tokenizer.eos_ids();
        if ids.is_empty() {
            return Err(Error::NoEnd);
        }
        let vocab_size = self.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(Error::EndOutside { id, vocab_size }),
            None => Ok(ids),
        }
    }

    /// The ids of every prompt, with those that the tokenizer itself puts around a text.
    ///
    /// # Errors
    /// [`Error::Lines`] with every prompt that is too long, that the vocabulary cannot express, or that has ids which the
    /// model does not have.
    pub fn prompts(&self, dataset: &Dataset) -> Result<Vec<Vec<u32>>> {
        self.each(dataset, |problem| self.prompt(problem))
    }

    /// Prompt, completion (the data set's answers) and end of every demonstration; trained on are the latter two.
    ///
    /// # Errors
    /// As [`Words::prompts`], and for demonstrations that do not fit a row; [`Words::stop_ids`].
    pub fn demonstrations(&self, dataset: &Dataset) -> Result<Vec<Trajectory>> {
        let end = self.stop_ids()?[0];
        self.each(dataset, |problem| {
            let prompt = self.prompt(problem)?;
            let mut completion = self.encode(&problem.answer, false)?;
            completion.push(end);
            let tokens = prompt.len() + completion.len();
            if tokens > self.row_tokens {
                return Err(format!(
                    "prompt and completion have {tokens} tokens, but a row holds {}: shorten them, or raise packing.row_tokens",
                    self.row_tokens
                ));
            }
            Ok(Trajectory::from_prompt(&prompt, &completion))
        })
    }

    /// How many answers of the data set, with their end, have more than `limit` tokens, or cannot be expressed: no model
    /// could give them literally.
    pub fn unreachable_answers(&self, dataset: &Dataset, limit: usize) -> usize {
        let unreachable = |problem: &&Problem| {
            self.encode(problem.answer.trim(), false)
                .map_or(true, |ids| ids.len() + 1 > limit)
        };
        dataset.problems().iter().filter(unreachable).count()
    }

    fn prompt(&self, problem: &Problem) -> Result<Vec<u32>, String> {
        let text = self.template.replace("{prompt}", &problem.prompt);
        let ids = self.encode(&text, true)?;
        let limit = self.max_prompt_tokens;
        match ids.len() {
            0 => Err("the prompt has no tokens".to_owned()),
            tokens if tokens > limit => Err(format!(
                "the prompt has {tokens} tokens, more than the {limit} that are allowed: shorten it, or raise rollout.max_prompt_tokens"
            )),
            _ => Ok(ids),
        }
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        let encoded = self.tokenizer.encode(text, add_special);
        let ids = encoded.map_err(|error| error.to_string())?;
        match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(id) => Err(format!(
                "token id {id} is outside of the model's vocabulary of {}: use the tokenizer that belongs to the model",
                self.vocab_size
            )),
            None => Ok(ids),
        }
    }

    fn each<T>(
        &self,
        dataset: &Dataset,
        convert: impl Fn(&Problem) -> Result<T, String>,
    ) -> Result<Vec<T>> {
        let mut bad = LineProblems::default();
        let mut good = Vec::with_capacity(dataset.problems().len());
        for problem in dataset.problems() {
            match convert(problem) {
                Ok(item) => good.push(item),
                Err(message) => bad.push(problem.line, message),
            }
        }
        if bad.count > 0 {
            return Err(Error::Lines {
                path: dataset.path().to_owned(),
                problems: bad.first,
                count: bad.count,
            });
        }
        Ok(good)
    }
}
