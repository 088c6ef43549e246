//! What can go wrong in the algorithm, as data.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong in the algorithm.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A data file cannot be read.
    #[error("cannot read the data set {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason given by the system.
        source: std::io::Error,
    },
    /// Lines of a data file are not problems; the first few are listed.
    #[error("the data set {} has {count} bad line(s):{}", path.display(), lines(path, problems, *count))]
    Lines {
        /// The file.
        path: PathBuf,
        /// The first problems, in the order of the file.
        problems: Vec<LineProblem>,
        /// How many there are in all.
        count: usize,
    },
    /// A data file has no problems in it.
    #[error("the data set {} is empty: put one JSON object with prompt and answer on each line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Problems for training are also among those held out; the first few are listed, by the line where they are held out.
    #[error(
        "{count} prompt(s) of {} are also in {}, so the held-out result would not be one: remove them from either:{}",
        heldout.display(), train.display(), lines(heldout, problems, *count)
    )]
    Overlap {
        /// The file of problems for training.
        train: PathBuf,
        /// The file of problems held out.
        heldout: PathBuf,
        /// The first problems.
        problems: Vec<LineProblem>,
        /// How many there are in all.
        count: usize,
    },
    /// A stored position does not belong to the data set.
    #[error(
        "the stored data position is number {position} of {stored} problems, but the data set has {found}: \
         resume with the data set of the run, or start a new run"
    )]
    OrderMismatch {
        /// Position within the epoch.
        position: usize,
        /// Number of problems when the position was stored.
        stored: usize,
        /// Number of problems now.
        found: usize,
    },
    /// A group of one answer has nothing to be compared with.
    #[error(
        "the group size must be at least 2, found {size}: an advantage compares answers to the same prompt"
    )]
    GroupSize {
        /// The size given.
        size: usize,
    },
    /// The rewards are not whole groups.
    #[error("{rewards} rewards are not whole groups of {group_size}")]
    PartialGroup {
        /// Number of rewards.
        rewards: usize,
        /// Answers in a group.
        group_size: usize,
    },
    /// The tokenizer names no id that ends a text.
    #[error(
        "the model folder names no end-of-sequence token, so no answer could ever end: \
         set eos_token_id in generation_config.json, or eos_token in tokenizer_config.json"
    )]
    NoEnd,
    /// The tokenizer ends a text with an id that the model does not have.
    #[error(
        "the end-of-sequence token has id {id}, but the model's vocabulary has {vocab_size} tokens: use the tokenizer that belongs to the model"
    )]
    EndOutside {
        /// The id.
        id: u32,
        /// Tokens of the model.
        vocab_size: usize,
    },
    /// A warm-up without demonstrations.
    #[error("the warm-up has no demonstrations: give at least one, or leave the warm-up out")]
    NoDemonstrations,
    /// Gradients stay NaN or infinite.
    #[error(
        "the gradient was not finite in {updates} updates in a row, up to step {step}: \
         lower the learning rate, and go on from an earlier checkpoint or start anew"
    )]
    Diverged {
        /// How many updates.
        updates: u32,
        /// The step of the last.
        step: u64,
    },
    /// A checkpoint whose state is of another kind of run.
    #[error("checkpoint {} does not fit this run: {reason}", path.display())]
    Progress {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A checkpoint of a run on other data.
    #[error(
        "checkpoint {} was made with other data: {} changed since; put the old files back, or start a new run",
        path.display(), changed.join(", ")
    )]
    OtherData {
        /// The checkpoint.
        path: PathBuf,
        /// The settings that name what changed.
        changed: Vec<&'static str>,
    },
    /// A failure of the engine.
    #[error(transparent)]
    Engine(#[from] ferrotune_engine::Error),
    /// A failure of the sampler.
    #[error(transparent)]
    Rollout(#[from] ferrotune_rollout::Error),
    /// Trajectories that cannot be laid out.
    #[error(transparent)]
    Batch(#[from] ferrotune_batch::Refused),
    /// Tokens that cannot be read.
    #[error(transparent)]
    Text(#[from] ferrotune_text::TextError),
    /// A reward is NaN or infinite.
    #[error("reward {index} (group {}) is {value}: a checker must return a finite number", index / group_size)]
    Reward {
        /// Which reward.
        index: usize,
        /// Answers in a group.
        group_size: usize,
        /// Its value.
        value: f32,
    },
}

/// One bad line of a data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineProblem {
    /// Line in the file, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// Collects the problems of a file: all are counted, the first few kept.
#[derive(Default)]
pub(crate) struct LineProblems {
    pub(crate) first: Vec<LineProblem>,
    pub(crate) count: usize,
}

impl LineProblems {
    /// More than a person reads; a file with one slip often has it on every line.
    pub(crate) const KEPT: usize = 20;

    pub(crate) fn push(&mut self, line: usize, message: impl Into<String>) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(LineProblem {
                line,
                message: message.into(),
            });
        }
    }
}

fn lines(path: &std::path::Path, problems: &[LineProblem], count: usize) -> String {
    let mut text = String::new();
    for LineProblem { line, message } in problems {
        let _ = write!(text, "\n  {}:{line}: {message}", path.display());
    }
    if count > problems.len() {
        let _ = write!(text, "\n  and {} more", count - problems.len());
    }
    text
}

impl fmt::Display for LineProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}
