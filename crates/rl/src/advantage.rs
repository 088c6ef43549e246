//! Advantages: how much better an answer is than the others to the same prompt.
//!
//! Pure functions of the rewards of one group, in f64. Which tokens an advantage goes to, and with what weight, is not decided here.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How rewards become advantages.
///
/// `r` are the rewards of one group of `G` answers to one prompt, `mean` is over the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// `A_i = (r_i - mean) / (std + 1e-6)`, with the sample standard deviation (`G - 1` below).
    ///
    /// Source: GRPO, Shao et al. 2024, arXiv:2402.03300, equation 2 and section 4.1.2.
    #[default]
    GroupNorm,
    /// `A_i = r_i - mean`: without the division, which favours prompts whose answers are nearly all right or nearly all wrong.
    ///
    /// Source: Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, section 3.2.
    GroupMean,
    /// `A_i = r_i - (sum - r_i) / (G - 1)`: the baseline is the mean of the *other* answers; `G / (G - 1)` times [`GroupMean`].
    ///
    /// Source: RLOO, Ahmadian et al. 2024, arXiv:2402.14740, section 2.3.
    ///
    /// [`GroupMean`]: Estimator::GroupMean
    Rloo,
}

/// Keeps the division of [`Estimator::GroupNorm`] finite.
const STD_EPSILON: f64 = 1e-6;

impl Estimator {
    /// The advantage of each answer; answers of one group stand together.
    ///
    /// A group whose rewards are all equal gets exact zeros: it says nothing about which answer is better.
    ///
    /// # Shapes
    /// `rewards` `[groups * group_size]`, and so the result.
    ///
    /// # Errors
    /// [`Error::GroupSize`] below 2, [`Error::PartialGroup`], [`Error::Reward`] for one that is not finite.
    pub fn advantages(self, rewards: &[f32], group_size: usize) -> Result<Vec<f32>> {
        if group_size < 2 {
            return Err(Error::GroupSize { size: group_size });
        }
        if !rewards.len().is_multiple_of(group_size) {
            return Err(Error::PartialGroup {
                rewards: rewards.len(),
                group_size,
            });
        }
        if let Some(index) = rewards.iter().position(|r| !r.is_finite()) {
            return Err(Error::Reward {
                index,
                group_size,
                value: rewards[index],
            });
        }
        Ok(rewards
            .chunks_exact(group_size)
            .flat_map(|group| self.of_group(group))
            .collect())
    }

    /// The advantages of one group of two or more finite rewards.
    fn of_group(self, rewards: &[f32]) -> Vec<f32> {
        let size = rewards.len() as f64;
        // In f64 the sum of equal f32 values is exact, so their mean is one of them and the differences are exact zeros.
        let sum: f64 = rewards.iter().map(|&r| f64::from(r)).sum();
        let mean = sum / size;
        let squares: f64 = rewards.iter().map(|&r| (f64::from(r) - mean).powi(2)).sum();
        let std = (squares / (size - 1.0)).sqrt();
        let advantage = |reward: f64| match self {
            Self::GroupNorm => (reward - mean) / (std + STD_EPSILON),
            Self::GroupMean => reward - mean,
            Self::Rloo => reward - (sum - reward) / (size - 1.0),
        };
        rewards
            .iter()
            .map(|&r| advantage(f64::from(r)) as f32)
            .collect()
    }
}
