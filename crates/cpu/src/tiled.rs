//! Products of bf16 matrices by tiles, summed in f32.

use std::ops::Range;

use half::bf16;

use crate::Threads;
use crate::element::Number;
use crate::kept::lend;
use crate::matrix::Matrix;
use crate::narrow::round;
use crate::pack;
use crate::target::Target;
use crate::tiles::{BLOCK, Element, Left, Tile, Tiles};
use crate::transpose::transpose_sums;

/// Pairs of tiles that are summed before the next part of the operands is packed: a block of rows of that depth stays in the
/// second-level cache.
const STEPS: usize = 32;
/// Columns that are packed at once.
const WIDTH: usize = 1024;
/// Rows of a block.
const HEIGHT: usize = 256;
/// Left operands of so many bytes are packed once; larger ones block by block, again for each block of columns.
const PACKED_WHOLE: usize = 1 << 25;
/// With so few rows, weights that lie as tiles want them are read where they are.
const FEW: usize = 64;

/// `out = a · b`, rounded once.
pub(crate) fn multiply<O: Number>(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    out: &mut [O],
    threads: Threads,
) {
    let (m, n) = (a.rows(), b.columns());
    let target = Target::new(out, m, n);
    if has_few_rows(a, b) {
        few_rows(a, &[(b, target)], threads);
    } else {
        let blocks = Blocks {
            a,
            b,
            out: target,
            threads,
            height: height(m, threads),
        };
        blocks.run();
    }
}

/// `out = a · b` for each `b` and `out`, rounded once; the threads share the columns of all.
pub(crate) fn multiply_each<O: Number>(
    a: Matrix<'_, bf16>,
    products: &mut [(Matrix<'_, bf16>, &mut [O])],
    threads: Threads,
) {
    if products.iter().all(|(b, _)| has_few_rows(a, *b)) {
        let targets = products
            .iter_mut()
            .map(|(b, out)| (*b, Target::new(out, a.rows(), b.columns())));
        few_rows(a, &targets.collect::<Vec<_>>(), threads);
    } else {
        for (b, out) in products {
            multiply(a, *b, out, threads);
        }
    }
}

/// Whether `b` may be read where it lies, by tiles, for the few rows of `a`.
fn has_few_rows(a: Matrix<'_, bf16>, b: Matrix<'_, bf16>) -> bool {
    let whole = a.columns().is_multiple_of(bf16::DEPTH) && b.columns().is_multiple_of(BLOCK);
    a.rows() <= FEW && b.strides()[0] == 1 && whole
}

/// Every column of `b` lies as a row of a left tile: the product is formed turned, `(bᵀ aᵀ)ᵀ`, and `b` is read once, in place.
fn few_rows<O: Number>(
    a: Matrix<'_, bf16>,
    products: &[(Matrix<'_, bf16>, Target<'_, O>)],
    threads: Threads,
) {
    let steps = a.columns() / bf16::DEPTH;
    let row_blocks = a.rows().div_ceil(BLOCK);
    let mut packed = lend(row_blocks * 2 * steps);
    for (block, tiles) in packed.chunks_mut((2 * steps).max(1)).enumerate() {
        pack::right(a.transposed(), block * BLOCK, tiles);
    }
    let packed = &*packed;
    let blocks = |b: &Matrix<'_, bf16>| b.columns() / BLOCK;
    let all = products.iter().map(|(b, _)| blocks(b)).sum();
    threads.for_each_range(all, 4, |range| {
        let tiles = Tiles::configure::<bf16>();
        let mut sums = [0.0; BLOCK * BLOCK];
        let mut turned = [0.0; BLOCK * BLOCK];
        let places = products
            .iter()
            .flat_map(|(b, out)| (0..blocks(b)).map(move |block| (b, out, block)));
        for (b, out, block) in places.skip(range.start).take(range.len()) {
            let left = in_place(b.transposed().rows_of(block * BLOCK, BLOCK));
            for (row_block, right) in packed.chunks((2 * steps).max(1)).enumerate() {
                let first = row_block * BLOCK;
                let rows = (a.rows() - first).min(BLOCK);
                // SAFETY: 32 rows, as many steps long.
                unsafe { tiles.product(left, right, &mut sums, BLOCK, true, rows) };
                transpose_sums(&sums, &mut turned, rows);
                for (row, sums) in turned.as_chunks::<BLOCK>().0[..rows].iter().enumerate() {
                    // SAFETY: each block of columns is written by one thread.
                    let to = unsafe { out.part(first + row, block * BLOCK, BLOCK) };
                    round(sums, to);
                }
            }
        }
    });
}

/// 32 rows whose elements lie side by side.
pub(crate) fn in_place<T: Element>(rows: Matrix<'_, T>) -> Left {
    debug_assert!(rows.strides()[1] == 1 && rows.rows() == BLOCK);
    let second = rows.rows_of(BLOCK / 2, BLOCK / 2);
    Left {
        first: rows.data().as_ptr().cast(),
        second: second.data().as_ptr().cast(),
        row: size_of::<T>() * rows.strides()[0],
        step: 64,
    }
}

/// One product whose operands are packed into tiles, block by block.
struct Blocks<'a, O> {
    a: Matrix<'a, bf16>,
    b: Matrix<'a, bf16>,
    out: Target<'a, O>,
    threads: Threads,
    /// Rows of a block.
    height: usize,
}

/// A block of columns, and a part of what is summed over.
struct Part<'a> {
    columns: Range<usize>,
    depth: Range<usize>,
    /// The right operand's tiles of both.
    right: &'a [Tile],
}

impl<O: Number> Blocks<'_, O> {
    fn run(&self) {
        let (m, k, n) = (self.a.rows(), self.a.columns(), self.b.columns());
        // Left operands that are not too large are packed once.
        let whole = m * k * size_of::<bf16>() <= PACKED_WHOLE;
        let (row_blocks, steps) = (m.div_ceil(BLOCK), k.div_ceil(bf16::DEPTH));
        let mut left = lend(if whole { row_blocks * 2 * steps } else { 0 });
        if whole {
            let of_block = (2 * steps).max(1);
            self.threads
                .for_each_chunk(&mut left, of_block, |block, tiles| {
                    pack::left(self.a, block * BLOCK, tiles);
                });
        }
        let left = whole.then_some(&*left);
        for first in (0..n).step_by(WIDTH) {
            self.columns(first..n.min(first + WIDTH), left);
        }
    }

    /// A block of columns of the result.
    fn columns(&self, columns: Range<usize>, left: Option<&[Tile]>) {
        let k = self.a.columns();
        let b = self.b.columns_of(columns.start, columns.len());
        let width = columns.len().next_multiple_of(BLOCK);
        let of_block = self.height * width;
        let once = k <= STEPS * bf16::DEPTH;
        let blocks = self.a.rows().div_ceil(self.height);
        // Sums that wait for the next part of what is summed over; otherwise each thread has those of one block.
        let mut kept = lend(if once { 0 } else { blocks * of_block });
        for first in (0..k.max(1)).step_by(STEPS * bf16::DEPTH) {
            let depth = first..k.min(first + STEPS * bf16::DEPTH);
            let steps = depth.len().div_ceil(bf16::DEPTH);
            let mut right = lend(width / BLOCK * 2 * steps);
            let part_of_b = b.rows_of(first, depth.len());
            let of_column = (2 * steps).max(1);
            self.threads
                .for_each_chunk(&mut right, of_column, |block, tiles| {
                    pack::right(part_of_b, block * BLOCK, tiles);
                });
            let part = Part {
                columns: columns.clone(),
                depth,
                right: &right,
            };
            if once {
                self.threads.for_each_range(blocks, 1, |blocks| {
                    let mut sums = lend(of_block);
                    for block in blocks {
                        self.block(block, &part, left, &mut sums);
                    }
                });
            } else {
                self.threads
                    .for_each_chunk(&mut kept, of_block, |block, sums| {
                        self.block(block, &part, left, sums);
                    });
            }
        }
    }

    /// Adds a part to the sums of one block of rows, and writes them when it is the last.
    fn block(&self, block: usize, part: &Part<'_>, left: Option<&[Tile]>, sums: &mut [f32]) {
        let rows = block * self.height..self.a.rows().min((block + 1) * self.height);
        let row_blocks = rows.start / BLOCK..rows.end.div_ceil(BLOCK);
        let steps = part.depth.len().div_ceil(bf16::DEPTH);
        if let Some(left) = left {
            let stride = 2 * self.a.columns().div_ceil(bf16::DEPTH);
            let left = &left[row_blocks.start * stride..];
            add(
                part,
                (left, stride, 2 * part.depth.start / bf16::DEPTH),
                row_blocks.len(),
                sums,
            );
        } else {
            let mut left = lend(row_blocks.len() * 2 * steps);
            let a = self.a.columns_of(part.depth.start, part.depth.len());
            for (block, tiles) in row_blocks.clone().zip(left.chunks_mut(2 * steps)) {
                pack::left(a, block * BLOCK, tiles);
            }
            add(part, (&left, 2 * steps, 0), row_blocks.len(), sums);
        }
        if part.depth.end < self.a.columns() {
            return;
        }
        let width = part.columns.len().next_multiple_of(BLOCK);
        for (row, sums) in rows.zip(sums.chunks(width.max(1))) {
            // SAFETY: each block of rows has one thread.
            let to = unsafe { self.out.part(row, part.columns.start, part.columns.len()) };
            round(&sums[..to.len()], to);
        }
    }
}

/// Adds a part of a block of packed rows to its sums. The left tiles: where the block begins, tiles of 32 rows, and tiles
/// before the part.
fn add(part: &Part<'_>, left: (&[Tile], usize, usize), row_blocks: usize, sums: &mut [f32]) {
    let (left, stride, skip) = left;
    let steps = part.depth.len().div_ceil(bf16::DEPTH);
    let width = part.columns.len().next_multiple_of(BLOCK);
    let tiles = Tiles::configure::<bf16>();
    let fresh = part.depth.start == 0;
    for column in 0..width / BLOCK {
        let columns = part.columns.len() - column * BLOCK;
        let right = &part.right[column * 2 * steps..][..2 * steps];
        for row in 0..row_blocks {
            let pairs = &left[row * stride + skip..][..2 * steps];
            let sums = &mut sums[row * BLOCK * width + column * BLOCK..];
            // SAFETY: the slice has as many pairs.
            unsafe { tiles.product(Left::packed(pairs), right, sums, width, fresh, columns) };
        }
    }
}

/// Rows of a block: a multiple of 32, such that threads have equal shares.
fn height(m: usize, threads: Threads) -> usize {
    let share = threads.count();
    let rounds = m.div_ceil(share * HEIGHT).max(1);
    m.div_ceil(share * rounds)
        .next_multiple_of(BLOCK)
        .max(BLOCK)
}
