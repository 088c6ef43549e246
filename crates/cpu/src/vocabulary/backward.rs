//! Gradients of what a vocabulary scores.

use std::ops::Range;

use super::{ROWS, Scratch, Vocabulary};
use crate::element::Number;
use crate::kept::{Lent, Loan, lend};
use crate::left::{Block, LeftOperand};
use crate::logits::LogitSlope;
use crate::matrix::Matrix;
use crate::packed::Packed;
use crate::target::Target;
use crate::threads::Threads;
use crate::tiles::Tile;

impl<T: Number + Lent, W: Number> Vocabulary<'_, T, W> {
    /// Gradients by hidden states, `dx [N,D]`, and by weights, `dw` as the weights lie: written over what is there, or with
    /// `add`, added to it. `slope` tells what the gradient by a token's logits is made of. Logits that were not kept are computed
    /// again.
    ///
    /// # Memory
    /// Two rearranged copies of the hidden states; for every thread a tile of weights, twice, of their gradient and of 512
    /// tokens' logits; and 64 MiB at most of sums over tiles, or one block of 512 tokens for every thread if that is more.
    ///
    /// # Panics
    /// When the shapes do not fit.
    pub fn gradients(
        &self,
        kept: Option<&[f32]>,
        slope: impl Fn(usize) -> LogitSlope + Sync,
        [dx, dw]: [&mut [f32]; 2],
        add: bool,
        threads: Threads,
    ) {
        let shares = threads.count().min(self.tiles()).max(1);
        let group = group(shares, self.width());
        self.gradients_by(group, kept, slope, [dx, dw], add, threads);
    }

    /// The same, `group` tokens after the other: a multiple of [`ROWS`].
    pub(super) fn gradients_by(
        &self,
        group: usize,
        kept: Option<&[f32]>,
        slope: impl Fn(usize) -> LogitSlope + Sync,
        [dx, dw]: [&mut [f32]; 2],
        add: bool,
        threads: Threads,
    ) {
        let (tokens, width, tiles) = (self.targets.len(), self.width(), self.tiles());
        assert!(
            kept.is_none_or(|it| it.len() == tokens * self.entries()),
            "logits of all tokens"
        );
        let x = self.left(threads);
        let by_width = Matrix::new(self.x, [width, tokens], [1, width]);
        let turned = LeftOperand::of(by_width, Loan::default(), threads);
        let by_rows = self.weight.strides()[1] == 1;
        let dims = [width, self.entries()];
        let [rows, columns] = if by_rows { dims } else { [dims[1], dims[0]] };
        let mut pass = Backward {
            vocabulary: self,
            x: &x,
            turned: &turned,
            kept,
            slope: &slope,
            dw: Target::new(dw, rows, columns),
            by_rows,
            add,
            tokens: 0..0,
        };
        let shares = threads.count().min(tiles).max(1);
        let across = Packed::padded(width);
        let of_share = Packed::padded(group.min(tokens)) * across;
        let mut sums: Vec<Loan<f32>> = (0..shares).map(|_| lend(of_share)).collect();
        // Without any token there still is a gradient by weights.
        for first in (0..tokens.max(1)).step_by(group) {
            pass.tokens = first..tokens.min(first + group);
            pass.add = add || first > 0;
            threads.for_each_chunk(&mut sums, 1, |share, sums| {
                let own = share * tiles / shares..(share + 1) * tiles / shares;
                if own.is_empty() {
                    sums[0].fill(0.0);
                }
                let mut scratch = BackwardScratch::of(self);
                for tile in own.clone() {
                    pass.tile(tile, tile == own.start, &mut scratch, &mut sums[0]);
                }
            });
            let dx = &mut dx[first * width..pass.tokens.end * width];
            threads.for_each_share(dx, width, |first, dx| {
                for (row, dx) in dx.chunks_mut(width.max(1)).enumerate() {
                    let from = (first + row) * across;
                    dx.copy_from_slice(&sums[0][from..][..width]);
                    for sums in &sums[1..] {
                        let pairs = dx.iter_mut().zip(&sums[from..]);
                        pairs.for_each(|(dx, sum)| *dx += sum);
                    }
                }
            });
        }
    }
}

/// Bytes that sums over tiles of the gradient by hidden states may take, which every thread has of its own.
const SUMS: usize = 64 << 20;

/// Tokens whose sums take that much: the more they are, the less often the gradient by weights is read and written.
fn group(threads: usize, width: usize) -> usize {
    let of_token = (threads * Packed::padded(width) * size_of::<f32>()).max(1);
    (SUMS / of_token / ROWS).max(1) * ROWS
}

/// One backward pass.
struct Backward<'a, T, W, F> {
    vocabulary: &'a Vocabulary<'a, T, W>,
    /// `[N,D]`.
    x: &'a LeftOperand<'a, T>,
    /// `[D,N]`.
    turned: &'a LeftOperand<'a, T>,
    /// Logits `[N,V]`.
    kept: Option<&'a [f32]>,
    slope: &'a F,
    /// As the weights lie.
    dw: Target<'a, f32>,
    by_rows: bool,
    add: bool,
    /// Those that are looked at.
    tokens: Range<usize>,
}

struct BackwardScratch<T: Lent> {
    scratch: Scratch<T>,
    /// The tile's weights as a right operand that gives gradients by hidden states.
    back: Packed,
    /// The gradient by logits, and the same as an operand of either side.
    dz: Loan<T>,
    dz_memory: Loan<Tile>,
    dz_packed: Packed,
    dw: Loan<f32>,
}

impl<T: Number + Lent> BackwardScratch<T> {
    fn of<W: Number>(vocabulary: &Vocabulary<'_, T, W>) -> Self {
        Self {
            scratch: vocabulary.scratch(),
            back: Packed::default(),
            dz: lend(ROWS * vocabulary.stride()),
            dz_memory: Loan::default(),
            dz_packed: Packed::default(),
            dw: lend(Packed::padded(vocabulary.width()) * vocabulary.stride()),
        }
    }
}

impl<T, W, F> Backward<'_, T, W, F>
where
    T: Number + Lent,
    W: Number,
    F: Fn(usize) -> LogitSlope,
{
    /// One tile: adds to `sums`, or writes over them when it is the first, and to its part of `dw`.
    fn tile(&self, tile: usize, first_tile: bool, own: &mut BackwardScratch<T>, sums: &mut [f32]) {
        let vocabulary = self.vocabulary;
        let (tokens, width) = (self.tokens.clone(), vocabulary.width());
        let (entry, entries) = vocabulary.tile(tile);
        let stride = vocabulary.stride();
        let weights = vocabulary.read((entry, entries), &mut own.scratch.weights);
        if self.kept.is_none() {
            T::pack(weights, &mut own.scratch.forward);
        }
        T::pack(weights.transposed(), &mut own.back);
        if tokens.is_empty() {
            own.dw.fill(0.0);
        }
        for first in tokens.clone().step_by(ROWS) {
            let count = ROWS.min(tokens.end - first);
            self.slopes(tile, first..first + count, own);
            let dz = Matrix::new(&own.dz, [count, entries], [stride, 1]);
            let memory = std::mem::take(&mut own.dz_memory);
            let left = LeftOperand::of(dz, memory, Threads::One);
            let across = Packed::padded(width);
            let back = Block {
                rows: 0..count,
                depth: 0..entries,
                columns: width,
                stride: across,
                fresh: first_tile,
            };
            let sums = &mut sums[(first - tokens.start) * across..];
            T::multiply_left(&left, &own.back, &back, sums);
            own.dz_memory = left.into_memory();
            T::pack(dz, &mut own.dz_packed);
            let by_weights = Block {
                rows: 0..width,
                depth: first..first + count,
                columns: entries,
                stride,
                fresh: first == tokens.start,
            };
            T::multiply_left(self.turned, &own.dz_packed, &by_weights, &mut own.dw);
        }
        self.write((entry, entries), &own.dw);
    }

    /// The gradient by the logits of some tokens.
    fn slopes(&self, tile: usize, tokens: Range<usize>, own: &mut BackwardScratch<T>) {
        let vocabulary = self.vocabulary;
        let place = vocabulary.tile(tile);
        let (entry, entries) = place;
        let stride = vocabulary.stride();
        let logits = &mut own.scratch.logits;
        if self.kept.is_none() {
            let of = &own.scratch.forward;
            vocabulary.logits(self.x, tokens.clone(), of, entries, logits);
        }
        let rows = own.dz.chunks_mut(stride).zip(logits.chunks(stride));
        for (token, (dz, logits)) in tokens.zip(rows) {
            let hit = vocabulary.hit(token, place);
            let logits = match self.kept {
                Some(kept) => &kept[token * vocabulary.entries() + entry..][..entries],
                None => &logits[..entries],
            };
            (self.slope)(token).by_logits(logits, hit, dz);
        }
    }

    /// Puts the gradient by a tile's weights, `[D,v]`, where it belongs.
    fn write(&self, (entry, entries): (usize, usize), dw: &[f32]) {
        /// Columns that are turned at a time.
        const STRIP: usize = 16;
        let (width, stride) = (self.vocabulary.width(), self.vocabulary.stride());
        let put = |to: &mut f32, from: f32| *to = if self.add { *to + from } else { from };
        if self.by_rows {
            for (row, from) in dw.chunks(stride).take(width).enumerate() {
                // SAFETY: a tile belongs to one thread.
                let to = unsafe { self.dw.part(row, entry, entries) };
                to.iter_mut()
                    .zip(from)
                    .for_each(|(to, from)| put(to, *from));
            }
            return;
        }
        for strip in (0..entries).step_by(STRIP) {
            for column in strip..entries.min(strip + STRIP) {
                // SAFETY: as above.
                let to = unsafe { self.dw.part(entry + column, 0, width) };
                let from = dw.iter().skip(column).step_by(stride);
                to.iter_mut()
                    .zip(from)
                    .for_each(|(to, from)| put(to, *from));
            }
        }
    }
}
