//! The mean, decided once on the host: masks of the whole optimizer batch to one loss weight a token.
//!
//! The device computes `sum(loss * weight)` and nothing else, so any cut into micro-batches, rows or shards gives the same
//! gradient. Not here: the losses, and factors that depend on log-probs.

use std::fmt;

use crate::error::BatchError;
use crate::option::{Idle, PackingOption};
use crate::trajectory::Trajectory;

/// How the losses of the tokens become one number.
///
/// With `m_i` the trained tokens of sequence `i`, `N` the sequences and `N⁺` those with any trained token, the weight of a
/// trained token of sequence `i` is given with each mode. Every other token has weight 0. Where the denominator is 0 there
/// is no trained token and all weights are 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Aggregation {
    /// `token-mean`: `1 / sum_i m_i`. Every token counts alike.
    TokenMean,
    /// `sequence-mean-token-mean`: `1 / (N⁺ m_i)`. The mean of the sequences' means; empty ones do not count.
    SequenceMeanTokenMean,
    /// `sequence-mean-token-sum`: `1 / N⁺`. The mean of the sequences' sums; empty ones do not count.
    SequenceMeanTokenSum,
    /// `token-sum`: `1 / constant`, whatever the batch holds (Dr. GRPO divides by sequences × longest answer).
    TokenSum {
        /// What the sum is divided by.
        constant: f64,
    },
    /// `sequence-mean`: `1 / (N m_i)`. The mean of the sequences' means; empty ones count as 0.
    SequenceMean,
}

impl Aggregation {
    const NAMES: &'static str =
        "token-mean, sequence-mean-token-mean, sequence-mean-token-sum, token-sum, sequence-mean";

    /// The mode of that name. `constant` belongs to `token-sum`, which needs it; with another mode it is refused.
    pub fn parse(name: &str, constant: Option<f64>) -> Result<Aggregation, BatchError> {
        let mode = match (name, constant) {
            ("token-mean", _) => Aggregation::TokenMean,
            ("sequence-mean-token-mean", _) => Aggregation::SequenceMeanTokenMean,
            ("sequence-mean-token-sum", _) => Aggregation::SequenceMeanTokenSum,
            ("sequence-mean", _) => Aggregation::SequenceMean,
            ("token-sum", Some(constant)) => Aggregation::TokenSum { constant }.checked()?,
            ("token-sum", None) => return Err(BatchError::ConstantMissing),
            _ => {
                let (what, given) = ("aggregation", name.to_owned());
                return Err(BatchError::UnknownName {
                    what,
                    given,
                    known: Aggregation::NAMES,
                });
            }
        };
        match (mode, constant) {
            (Aggregation::TokenSum { .. }, _) | (_, None) => Ok(mode),
            (_, Some(constant)) => Err(BatchError::NoEffect {
                option: PackingOption::Constant,
                value: constant.to_string(),
                with: Idle::OtherAggregation,
            }),
        }
    }

    /// The name that [`Aggregation::parse`] takes.
    pub fn name(self) -> &'static str {
        match self {
            Aggregation::TokenMean => "token-mean",
            Aggregation::SequenceMeanTokenMean => "sequence-mean-token-mean",
            Aggregation::SequenceMeanTokenSum => "sequence-mean-token-sum",
            Aggregation::TokenSum { .. } => "token-sum",
            Aggregation::SequenceMean => "sequence-mean",
        }
    }

    /// One weight for each token of a whole optimizer batch. The arithmetic is done in 64 bits and rounded once.
    ///
    /// # Errors
    ///
    /// [`BatchError::Constant`].
    pub fn weights(self, batch: &[Trajectory]) -> Result<LossWeights, BatchError> {
        self.checked()?;
        let counts: Vec<usize> = batch.iter().map(Trajectory::trained_tokens).collect();
        let tokens: usize = counts.iter().sum();
        let active = counts.iter().filter(|&&count| count > 0).count();
        let weight = |count: usize| match self {
            Aggregation::TokenMean => 1.0 / tokens as f64,
            Aggregation::SequenceMeanTokenMean => 1.0 / (active as f64 * count as f64),
            Aggregation::SequenceMeanTokenSum => 1.0 / active as f64,
            Aggregation::TokenSum { constant } => 1.0 / constant,
            Aggregation::SequenceMean => 1.0 / (batch.len() as f64 * count as f64),
        };
        let per_token = batch.iter().zip(&counts).map(|(trajectory, &count)| {
            // Only read where the mask is on, so a count of 0 never divides.
            let weight = weight(count) as f32;
            trajectory
                .loss_mask
                .iter()
                .map(|&on| if on { weight } else { 0.0 })
                .collect()
        });
        Ok(LossWeights {
            per_token: per_token.collect(),
            trained_tokens: tokens,
            masked_trajectories: batch.len() - active,
        })
    }

    fn checked(self) -> Result<Aggregation, BatchError> {
        match self {
            Aggregation::TokenSum { constant }
                if !((1.0 / constant) as f32).is_normal() || constant < 0.0 =>
            {
                Err(BatchError::Constant { constant })
            }
            _ => Ok(self),
        }
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The loss weights of an optimizer batch, in the order of its trajectories.
#[derive(Clone, PartialEq, Debug)]
pub struct LossWeights {
    /// One weight for each token of each trajectory; 0 where the loss mask is off.
    pub per_token: Vec<Vec<f32>>,
    /// Tokens that are trained on.
    pub trained_tokens: usize,
    /// Trajectories of which no token is trained on.
    pub masked_trajectories: usize,
}
