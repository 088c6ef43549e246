//! The data of a run, ready for the model: problems beside their tokens.

use ferrotune_batch::Trajectory;
use ferrotune_text::Tokenizer;
use sha2::{Digest, Sha256};

use crate::dataset::{Dataset, Problem};
use crate::error::Result;
use crate::progress::Fingerprint;
use crate::words::Words;

/// Problems and the tokens of their prompts; there is at least one.
#[derive(Clone, Debug)]
pub struct Problems {
    problems: Vec<Problem>,
    prompts: Vec<Vec<u32>>,
}

impl Problems {
    /// Encodes a data set, or its first `limit` problems.
    ///
    /// # Errors
    /// As [`Words::prompts`], for every problem of the data set.
    pub fn new(dataset: &Dataset, words: &Words, limit: Option<usize>) -> Result<Self> {
        let mut prompts = words.prompts(dataset)?;
        let mut problems = dataset.problems().to_vec();
        if let Some(limit) = limit {
            prompts.truncate(limit.max(1));
            problems.truncate(limit.max(1));
        }
        Ok(Self { problems, prompts })
    }

    /// The problems.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The tokens of each one's prompt.
    pub fn prompts(&self) -> &[Vec<u32>] {
        &self.prompts
    }

    fn digest(&self) -> String {
        let answers = self.problems.iter().map(|it| it.answer.as_bytes());
        digest(self.prompts.iter().zip(answers))
    }
}

/// Everything that a run reads.
#[derive(Clone, Debug)]
pub struct RunData {
    /// Problems to train on.
    pub train: Problems,
    /// Problems to measure on.
    pub heldout: Problems,
    /// Trajectories to imitate; none if there is no warm-up.
    pub demonstrations: Vec<Trajectory>,
    /// For reading answers.
    pub tokenizer: Tokenizer,
}

impl RunData {
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let none: &[u8] = &[];
        Fingerprint {
            train: self.train.digest(),
            heldout: self.heldout.digest(),
            demonstrations: digest(self.demonstrations.iter().map(|it| (&it.tokens, none))),
        }
    }
}

/// SHA-256, in hexadecimal, of lists of ids and texts. Lengths are part of it, so that no two lists run into each other.
fn digest<'a>(items: impl Iterator<Item = (&'a Vec<u32>, &'a [u8])>) -> String {
    let mut hasher = Sha256::new();
    for (ids, text) in items {
        hasher.update((ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| hasher.update(id.to_le_bytes()));
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    hasher
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}
