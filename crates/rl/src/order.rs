//! The order in which problems are used: every one once in each epoch, shuffled anew, the same for the same seed everywhere.
//!
//! The whole state is three numbers and the size of the data set, so a checkpoint holds it and a resumed run goes on exactly.

#[cfg(test)]
mod tests;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where a run stands in its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataOrder {
    /// Seed of all shuffles.
    pub seed: u64,
    /// Epochs begun and finished before this one.
    pub epoch: u64,
    /// Problems of this epoch that are used up.
    pub position: usize,
    /// Problems in the data set, to notice another one.
    pub problems: usize,
}

/// Hands out the problems of a data set by index, epoch after epoch, without end.
#[derive(Clone, Debug)]
pub struct Sampler {
    order: DataOrder,
    /// Of the current epoch.
    permutation: Vec<usize>,
}

impl Sampler {
    /// Starts at the first problem of the first epoch.
    ///
    /// # Panics
    /// If there are no problems: a [`Dataset`](crate::Dataset) has at least one.
    #[track_caller]
    pub fn new(problems: usize, seed: u64) -> Sampler {
        assert!(problems > 0, "a data set has at least one problem");
        let order = DataOrder {
            seed,
            epoch: 0,
            position: 0,
            problems,
        };
        Sampler {
            permutation: permutation(&order),
            order,
        }
    }

    /// Goes on where `order` was stored.
    ///
    /// # Errors
    /// [`Error::OrderMismatch`] if the data set has another number of problems, or the position is not one of them.
    pub fn resume(problems: usize, order: DataOrder) -> Result<Sampler> {
        if order.problems != problems || order.position >= problems {
            return Err(Error::OrderMismatch {
                position: order.position,
                stored: order.problems,
                found: problems,
            });
        }
        Ok(Sampler {
            permutation: permutation(&order),
            order,
        })
    }

    /// What to store, to go on from here.
    pub fn order(&self) -> &DataOrder {
        &self.order
    }

    /// The indices of the next `count` problems. A batch may end one epoch and begin the next.
    pub fn next_batch(&mut self, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.next_index()).collect()
    }

    fn next_index(&mut self) -> usize {
        let index = self.permutation[self.order.position];
        self.order.position += 1;
        if self.order.position == self.order.problems {
            self.order.position = 0;
            self.order.epoch += 1;
            self.permutation = permutation(&self.order);
        }
        index
    }
}

/// The shuffle of one epoch (Fisher and Yates), from a random stream of its own.
///
/// Written out here because the results of a library's shuffle may change with its version.
fn permutation(order: &DataOrder) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(order.seed);
    rng.set_stream(order.epoch);
    let mut indices: Vec<usize> = (0..order.problems).collect();
    for last in (1..indices.len()).rev() {
        // A multiplication instead of a remainder: the bias is below 2^-32 for any data set that fits into memory.
        let pick = (u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64;
        indices.swap(last, pick as usize);
    }
    indices
}
