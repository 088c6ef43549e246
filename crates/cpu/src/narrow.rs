//! Products of bf16 matrices, summed in f32.

use std::cell::Cell;

use half::bf16;

use crate::Threads;
use crate::amx::{self, Left, Tile, Tiles};
use crate::element::Number;
use crate::matrix::Matrix;
use crate::pack::{self, BLOCK};
use crate::target::Target;
use crate::wide;

/// Elements that are summed before the next part of the operands is packed: a block of rows of that depth stays in the
/// second-level cache.
const DEPTH: usize = 1024;
/// Columns that are packed at once.
const WIDTH: usize = 1024;
/// Rows of a block.
const HEIGHT: usize = 256;
/// Left operands of so many elements are packed once; larger ones block by block, again for each block of columns.
const PACKED_WHOLE: usize = 1 << 24;
/// With so few rows, weights that lie as tiles want them are read where they are.
const FEW: usize = 64;

/// `out = a · b`, rounded once.
pub(crate) fn multiply<O: Number>(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    out: &mut [O],
    threads: Threads,
) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    let target = Target::new(out, m, n);
    if !amx::available() {
        widened(a, b, target, threads);
    } else if m <= FEW && b.strides()[0] == 1 && n.is_multiple_of(BLOCK) && k.is_multiple_of(BLOCK)
    {
        few_rows(a, b, target, threads);
    } else {
        blocks(a, b, target, threads);
    }
}

/// Every column of `b` lies as a row of a left tile: the product is formed turned, `(bᵀ aᵀ)ᵀ`, and `b` is read once, in place.
fn few_rows<O: Number>(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    out: Target<'_, O>,
    threads: Threads,
) {
    let steps = a.columns() / BLOCK;
    let row_blocks = a.rows().div_ceil(BLOCK);
    with_tiles(&PACKED_RIGHT, row_blocks * 2 * steps, |packed| {
        for (block, tiles) in packed.chunks_mut((2 * steps).max(1)).enumerate() {
            pack::right(a.transposed(), block * BLOCK, tiles);
        }
        let packed = &*packed;
        let features = b.transposed();
        threads.for_each_range(b.columns() / BLOCK, 4, |blocks| {
            let tiles = Tiles::configure();
            let mut sums = [0.0; BLOCK * BLOCK];
            for block in blocks {
                let rows = features.rows_of(block * BLOCK, BLOCK);
                let left = in_place(rows);
                for (row_block, right) in packed.chunks((2 * steps).max(1)).enumerate() {
                    sums.fill(0.0);
                    // SAFETY: 32 rows of `32 · steps` elements.
                    unsafe { tiles.add_product(left, right, &mut sums, BLOCK) };
                    let first = row_block * BLOCK;
                    for row in first..a.rows().min(first + BLOCK) {
                        // SAFETY: each block of columns is written by one thread.
                        let to = unsafe { out.part(row, block * BLOCK, BLOCK) };
                        for (j, to) in to.iter_mut().enumerate() {
                            *to = O::nearest(sums[BLOCK * j + row - first]);
                        }
                    }
                }
            }
        });
    });
}

/// 32 rows whose elements lie side by side.
fn in_place(rows: Matrix<'_, bf16>) -> Left {
    debug_assert!(rows.strides()[1] == 1 && rows.rows() == BLOCK);
    let second = rows.rows_of(BLOCK / 2, BLOCK / 2);
    Left {
        first: rows.data().as_ptr().cast(),
        second: second.data().as_ptr().cast(),
        row: 2 * rows.strides()[0],
        step: 2 * BLOCK,
    }
}

/// Both operands packed into tiles, block by block.
fn blocks<O: Number>(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    out: Target<'_, O>,
    threads: Threads,
) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    let height = height(m, threads);
    let whole = m * k <= PACKED_WHOLE;
    let all_steps = k.div_ceil(BLOCK);
    let row_blocks = m.div_ceil(BLOCK);
    with_tiles(
        &PACKED_LEFT,
        if whole { row_blocks * 2 * all_steps } else { 0 },
        |packed_a| {
            if whole {
                threads.for_each_chunk(packed_a, (2 * all_steps).max(1), |block, tiles| {
                    pack::left(a, block * BLOCK, tiles);
                });
            }
            let packed_a = &*packed_a;
            for first_column in (0..n).step_by(WIDTH) {
                let columns = WIDTH.min(n - first_column);
                let padded = columns.next_multiple_of(BLOCK);
                let b = b.columns_of(first_column, columns);
                let once = k <= DEPTH;
                let mut kept: Vec<Vec<f32>> =
                    vec![Vec::new(); if once { 0 } else { m.div_ceil(height) }];
                for first in (0..k.max(1)).step_by(DEPTH) {
                    let depth = DEPTH.min(k - first);
                    let steps = depth.div_ceil(BLOCK);
                    with_tiles(&PACKED_RIGHT, padded / BLOCK * 2 * steps, |packed_b| {
                        let part = b.rows_of(first, depth);
                        threads.for_each_chunk(packed_b, (2 * steps).max(1), |block, tiles| {
                            pack::right(part, block * BLOCK, tiles);
                        });
                        let packed_b = &*packed_b;
                        let one = |block: usize, sums: &mut [f32]| {
                            let rows = block * height..m.min((block + 1) * height);
                            let mut of_block =
                                |packed: &[Tile],
                                 row_blocks: std::ops::Range<usize>,
                                 stride: usize,
                                 skip: usize| {
                                    add_block(
                                        packed,
                                        stride,
                                        skip,
                                        row_blocks.len(),
                                        packed_b,
                                        steps,
                                        sums,
                                        padded,
                                    );
                                };
                            let these = rows.start / BLOCK..rows.end.div_ceil(BLOCK);
                            if whole {
                                let packed = &packed_a[these.start * 2 * all_steps..];
                                of_block(packed, these, 2 * all_steps, 2 * first / BLOCK);
                            } else {
                                with_tiles(&PACKED_LEFT, these.len() * 2 * steps, |packed| {
                                    let part = a.columns_of(first, depth);
                                    for (i, tiles) in
                                        packed.chunks_mut((2 * steps).max(1)).enumerate()
                                    {
                                        pack::left(part, rows.start + i * BLOCK, tiles);
                                    }
                                    of_block(packed, these, 2 * steps, 0);
                                });
                            }
                            if first + depth == k {
                                for row in rows.clone() {
                                    // SAFETY: each block of rows is written by one thread.
                                    let to = unsafe { out.part(row, first_column, columns) };
                                    round(&sums[(row - rows.start) * padded..][..columns], to);
                                }
                            }
                        };
                        if once {
                            threads.for_each_range(m.div_ceil(height), 1, |blocks| {
                                for block in blocks {
                                    with_sums(height * padded, |sums| one(block, sums));
                                }
                            });
                        } else {
                            threads.for_each_chunk(&mut kept, 1, |block, kept| {
                                if first == 0 {
                                    kept[0] = vec![0.0; height * padded];
                                }
                                one(block, &mut kept[0]);
                            });
                        }
                    });
                }
            }
        },
    );
}

/// Rows of a block: a multiple of 32, such that threads have equal shares.
fn height(m: usize, threads: Threads) -> usize {
    let share = threads.count();
    let rounds = m.div_ceil(share * HEIGHT).max(1);
    m.div_ceil(share * rounds).next_multiple_of(BLOCK)
}

/// Adds the product of a block of packed rows and all packed columns to `sums`.
#[expect(clippy::too_many_arguments, reason = "places in two packed operands")]
fn add_block(
    left: &[Tile],
    stride: usize,
    skip: usize,
    row_blocks: usize,
    right: &[Tile],
    steps: usize,
    sums: &mut [f32],
    columns: usize,
) {
    let tiles = Tiles::configure();
    for (column, right) in right.chunks((2 * steps).max(1)).enumerate() {
        for row in 0..row_blocks {
            let pairs = &left[row * stride + skip..][..2 * steps];
            let sums = &mut sums[row * BLOCK * columns + column * BLOCK..];
            // SAFETY: the slice has `steps` pairs.
            unsafe { tiles.add_product(Left::packed(pairs), right, sums, columns) };
        }
    }
}

/// Rounds sums, many at once.
struct Round<'a, O> {
    sums: &'a [f32],
    to: &'a mut [O],
}

impl<O: Number> pulp::WithSimd for Round<'_, O> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let pairs = self.to.iter_mut().zip(self.sums);
        pairs.for_each(|(to, sum)| *to = O::nearest(*sum));
    }
}

fn round<O: Number>(sums: &[f32], to: &mut [O]) {
    pulp::Arch::new().dispatch(Round { sums, to });
}

/// Without tiles: parts of the operands are widened and multiplied as f32.
fn widened<O: Number>(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    out: Target<'_, O>,
    threads: Threads,
) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    for first_column in (0..n).step_by(WIDTH) {
        let columns = WIDTH.min(n - first_column);
        let b = widen(b.columns_of(first_column, columns));
        let b = Matrix::new(&b, [k, columns], [columns, 1]);
        for first in (0..m).step_by(WIDTH) {
            let rows = WIDTH.min(m - first);
            let a = widen(a.rows_of(first, rows));
            let mut sums = vec![0.0; rows * columns];
            wide::multiply(Matrix::new(&a, [rows, k], [k, 1]), b, &mut sums, threads);
            for (row, sums) in sums.chunks(columns.max(1)).enumerate() {
                // SAFETY: only this thread writes.
                round(sums, unsafe {
                    out.part(first + row, first_column, columns)
                });
            }
        }
    }
}

fn widen(part: Matrix<'_, bf16>) -> Vec<f32> {
    let [row, column] = part.strides();
    let mut wide = Vec::with_capacity(part.rows() * part.columns());
    for i in 0..part.rows() {
        wide.extend((0..part.columns()).map(|j| part.data()[i * row + j * column].wide()));
    }
    wide
}

type Kept<T> = std::thread::LocalKey<Cell<Vec<T>>>;

thread_local! {
    // Memory that is used again: fresh pages cost more than what is written to them.
    static PACKED_LEFT: Cell<Vec<Tile>> = const { Cell::new(Vec::new()) };
    static PACKED_RIGHT: Cell<Vec<Tile>> = const { Cell::new(Vec::new()) };
    static SUMS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Lends so many tiles that hold anything. A second loan inside of the first gets memory of its own.
fn with_tiles<R>(
    kept: &'static Kept<Tile>,
    count: usize,
    body: impl FnOnce(&mut [Tile]) -> R,
) -> R {
    let mut tiles = kept.take();
    if tiles.len() < count {
        tiles.resize(count, Tile::ZERO);
    }
    let result = body(&mut tiles[..count]);
    kept.set(tiles);
    result
}

/// Lends so many zeros.
fn with_sums<R>(count: usize, body: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut sums = SUMS.take();
    sums.clear();
    sums.resize(count, 0.0);
    let result = body(&mut sums);
    SUMS.set(sums);
    result
}
