//! The projection to a vocabulary, tile by tile, with what log-probs and gradients need of the logits in between.
//!
//! A thread has tiles of its own and does all that is to be done with one: logits never leave its caches, and weights are
//! read, rounded and rearranged once.

mod backward;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::element::Number;
use crate::kept::{Lent, Loan, lend};
use crate::left::{Block, LeftOperand};
use crate::logits::OnlineSums;
use crate::matrix::Matrix;
use crate::narrow;
use crate::packed::Packed;
use crate::target::Target;
use crate::threads::Threads;

/// Tokens whose logits are in a cache at a time.
const ROWS: usize = 512;

/// Hidden states, the weights that make logits of them, and the entries that are sought.
pub struct Vocabulary<'a, T, W> {
    /// `[N,D]`, row-major.
    x: &'a [T],
    /// `[D,V]`, rounded to the type of the hidden states when it is read.
    weight: Matrix<'a, W>,
    /// `[N]`.
    targets: &'a [i32],
    /// What logits are multiplied by.
    scale: f32,
    /// Entries of a tile.
    tile: usize,
}

/// What is known of a token.
#[derive(Clone, Copy, Debug)]
pub struct Scored {
    /// Of all of its logits.
    pub sums: OnlineSums,
    /// The logit of its target; 0 if that is none of the entries.
    pub target: f32,
}

/// The memory of one thread for one tile.
struct Scratch<T: Lent> {
    /// The tile's weights in the type of products.
    weights: Loan<T>,
    /// As a right operand that gives logits.
    forward: Packed,
    logits: Loan<f32>,
}

impl<'a, T: Number + Lent, W: Number> Vocabulary<'a, T, W> {
    /// # Panics
    /// When the shapes do not fit, or a tile is empty.
    #[track_caller]
    #[must_use]
    pub fn new(
        x: &'a [T],
        weight: Matrix<'a, W>,
        targets: &'a [i32],
        scale: f32,
        tile: usize,
    ) -> Self {
        assert_eq!(x.len(), targets.len() * weight.rows(), "hidden states");
        assert!(tile > 0, "a tile without entries");
        Self {
            x,
            weight,
            targets,
            scale,
            tile,
        }
    }

    fn entries(&self) -> usize {
        self.weight.columns()
    }

    fn width(&self) -> usize {
        self.weight.rows()
    }

    /// Tiles of the vocabulary.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.entries().div_ceil(self.tile)
    }

    /// The entries of a tile: the first, and how many.
    fn tile(&self, tile: usize) -> (usize, usize) {
        let first = tile * self.tile;
        (first, self.tile.min(self.entries() - first))
    }

    /// From one row of logits, or of terms, to the next.
    fn stride(&self) -> usize {
        Packed::padded(self.tile.min(self.entries()))
    }

    /// Where in a tile the target of a token lies.
    fn hit(&self, token: usize, (first, count): (usize, usize)) -> Option<usize> {
        let target = usize::try_from(self.targets[token]).ok()?;
        let at = target.checked_sub(first)?;
        (at < count).then_some(at)
    }

    fn scratch(&self) -> Scratch<T> {
        Scratch {
            weights: lend(self.width() * self.tile.min(self.entries())),
            forward: Packed::default(),
            logits: lend(ROWS * self.stride()),
        }
    }

    /// Reads the weights of a tile: `[D,v]`, however they lie.
    fn read<'s>(&self, (first, count): (usize, usize), weights: &'s mut [T]) -> Matrix<'s, T> {
        let part = self.weight.columns_of(first, count);
        let by_rows = part.strides()[1] == 1;
        let lying = if by_rows { part } else { part.transposed() };
        let size = lying.columns();
        let rows = weights.chunks_mut(size.max(1)).take(lying.rows());
        for (row, to) in rows.enumerate() {
            narrow::round(lying.row(row), to);
        }
        let read = Matrix::new(weights, [lying.rows(), size], [size, 1]);
        if by_rows { read } else { read.transposed() }
    }

    /// The hidden states as a left operand.
    fn left(&self, threads: Threads) -> LeftOperand<'a, T> {
        let dims = [self.targets.len(), self.width()];
        let x = Matrix::new(self.x, dims, [dims[1], 1]);
        LeftOperand::of(x, Loan::default(), threads)
    }

    /// Logits of some tokens, up to [`ROWS`], as they are scaled: rows are [`Self::stride`] apart.
    fn logits(
        &self,
        x: &LeftOperand<'_, T>,
        tokens: Range<usize>,
        of: &Packed,
        entries: usize,
        to: &mut [f32],
    ) {
        let count = tokens.len();
        let block = Block {
            rows: tokens,
            depth: 0..self.width(),
            columns: entries,
            stride: self.stride(),
            fresh: true,
        };
        T::multiply_left(x, of, &block, to);
        if self.scale != 1.0 {
            for row in to.chunks_mut(self.stride()).take(count) {
                row[..entries].iter_mut().for_each(|z| *z *= self.scale);
            }
        }
    }

    /// What is known of each token in the end. Keeps the logits `[N,V]`, if there is a place for them.
    ///
    /// # Panics
    /// When that place has another size.
    pub fn score(&self, keep: Option<&mut [f32]>, threads: Threads) -> Vec<Scored> {
        let tokens = self.targets.len();
        let keep = keep.map(|to| Target::new(to, tokens, self.entries()));
        let nothing = Scored {
            sums: OnlineSums::NONE,
            target: 0.0,
        };
        let shares = threads.count().min(self.tiles()).max(1);
        let mut found = vec![vec![nothing; tokens]; shares];
        let x = self.left(threads);
        threads.for_each_chunk(&mut found, 1, |share, found| {
            let mut scratch = self.scratch();
            for tile in share * self.tiles() / shares..(share + 1) * self.tiles() / shares {
                self.score_tile(tile, &x, &mut scratch, &mut found[0], keep.as_ref());
            }
        });
        let mut shares = found.into_iter();
        let mut all = shares.next().unwrap_or_default();
        for share in shares {
            for (one, other) in all.iter_mut().zip(share) {
                one.sums.join(other.sums);
                one.target += other.target;
            }
        }
        all
    }

    fn score_tile(
        &self,
        tile: usize,
        x: &LeftOperand<'_, T>,
        scratch: &mut Scratch<T>,
        found: &mut [Scored],
        keep: Option<&Target<'_, f32>>,
    ) {
        let place = self.tile(tile);
        let (entry, entries) = place;
        let weights = self.read(place, &mut scratch.weights);
        T::pack(weights, &mut scratch.forward);
        for first in (0..found.len()).step_by(ROWS) {
            let count = ROWS.min(found.len() - first);
            let logits = &mut scratch.logits;
            self.logits(x, first..first + count, &scratch.forward, entries, logits);
            for (row, logits) in logits.chunks(self.stride()).take(count).enumerate() {
                let (token, logits) = (first + row, &logits[..entries]);
                let known = &mut found[token];
                known.target += self.hit(token, place).map_or(0.0, |at| logits[at]);
                known.sums.absorb(logits);
                if let Some(keep) = keep {
                    // SAFETY: a tile belongs to one thread.
                    unsafe { keep.part(token, entry, entries) }.copy_from_slice(logits);
                }
            }
        }
    }
}
