//! Products of a few rows of f32, which read each weight once.

use pulp::{Arch, Simd, WithSimd};

use crate::Threads;
use crate::matrix::Matrix;
use crate::target::Target;

/// Columns that one thread works on at a time.
const WIDTH: usize = 1024;
/// Columns of a thread are a multiple of this.
const GRAIN: usize = 64;
/// Vectors of columns whose sums are in registers: a panel.
const VECTORS: usize = 4;
/// Rows of weights that are read together, panel by panel: as many as the processor foresees the reading of.
const DEPTH: usize = 16;

/// `out = a · b`, where rows or columns of `b` lie side by side. Each sum is formed in one order, whatever the number of rows.
pub(crate) fn multiply(
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    out: Target<'_, f32>,
    threads: Threads,
) {
    let [row, column] = a.strides();
    let at = |i: usize, k: usize| a.data()[i * row + k * column];
    let rows: Vec<Vec<f32>> = (0..a.rows())
        .map(|i| (0..a.columns()).map(|k| at(i, k)).collect())
        .collect();
    threads.for_each_range(b.columns().div_ceil(GRAIN), 1, |grains| {
        let end = (grains.end * GRAIN).min(b.columns());
        for first in (grains.start * GRAIN..end).step_by(WIDTH) {
            let columns = WIDTH.min(end - first);
            let b = b.columns_of(first, columns);
            let width = columns.next_multiple_of(GRAIN);
            let mut sums = vec![0.0; rows.len() * width];
            let part = Part {
                rows: &rows,
                b,
                sums: &mut sums,
                width,
            };
            Arch::new().dispatch(part);
            for (i, sums) in sums.chunks(width).enumerate() {
                // SAFETY: each thread has columns of its own.
                unsafe { out.part(i, first, columns) }.copy_from_slice(&sums[..columns]);
            }
        }
    });
}

/// The product of all rows and some columns.
struct Part<'a> {
    rows: &'a [Vec<f32>],
    b: Matrix<'a, f32>,
    /// Of each row `width`, whole panels.
    sums: &'a mut [f32],
    width: usize,
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (columns, width) = (self.b.columns(), self.width);
        if self.b.strides()[1] != 1 && columns > 1 {
            let b = self.b.transposed();
            let mut first = 0;
            while first < columns {
                first += match columns - first {
                    1..4 => scalar_products::<S, 1>(simd, (self.rows, width), b, first, self.sums),
                    _ => scalar_products::<S, 4>(simd, (self.rows, width), b, first, self.sums),
                };
            }
            return;
        }
        let panel = VECTORS * S::F32_LANES;
        let mut last = Vec::new();
        for depth in (0..self.b.rows()).step_by(DEPTH) {
            let b = self.b.rows_of(depth, DEPTH.min(self.b.rows() - depth));
            for first in (0..columns).step_by(panel) {
                let b = if first + panel <= columns {
                    b.columns_of(first, panel)
                } else {
                    filled_up(b.columns_of(first, columns - first), panel, &mut last)
                };
                let mut done = 0;
                while done < self.rows.len() {
                    let rows = &self.rows[done..];
                    let sums = &mut self.sums[done * width + first..];
                    // More rows would not fit into registers.
                    done += match rows.len() {
                        1 => add_in_registers::<S, 1>(simd, (rows, depth), b, sums, width),
                        2 => add_in_registers::<S, 2>(simd, (rows, depth), b, sums, width),
                        3 => add_in_registers::<S, 3>(simd, (rows, depth), b, sums, width),
                        _ => add_in_registers::<S, 4>(simd, (rows, depth), b, sums, width),
                    };
                }
            }
        }
    }
}

/// The last columns, and zeros.
fn filled_up<'a>(b: Matrix<'_, f32>, width: usize, to: &'a mut Vec<f32>) -> Matrix<'a, f32> {
    to.clear();
    for k in 0..b.rows() {
        to.extend_from_slice(b.row(k));
        to.resize((k + 1) * width, 0.0);
    }
    Matrix::new(to, [b.rows(), width], [width, 1])
}

/// Adds the products of the first `R` rows, from element `depth` on, with a part of a panel, to sums whose rows are `stride` apart.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "k runs over rows and columns")]
fn add_in_registers<S: Simd, const R: usize>(
    simd: S,
    (rows, depth): (&[Vec<f32>], usize),
    b: Matrix<'_, f32>,
    sums: &mut [f32],
    stride: usize,
) -> usize {
    let mut a: [&[f32]; R] = [&[]; R];
    let mut kept = [[simd.splat_f32s(0.0); VECTORS]; R];
    for i in 0..R {
        a[i] = &rows[i][depth..][..b.rows()];
        kept[i].copy_from_slice(&S::as_simd_f32s(&sums[i * stride..]).0[..VECTORS]);
    }
    for k in 0..b.rows() {
        let b = &S::as_simd_f32s(b.row(k)).0[..VECTORS];
        for i in 0..R {
            let factor = simd.splat_f32s(a[i][k]);
            for j in 0..VECTORS {
                kept[i][j] = simd.mul_add_f32s(factor, b[j], kept[i][j]);
            }
        }
    }
    for i in 0..R {
        S::as_mut_simd_f32s(&mut sums[i * stride..]).0[..VECTORS].copy_from_slice(&kept[i]);
    }
    R
}

/// The products of all rows with `C` rows of `b`, which are read from memory once.
#[inline(always)]
fn scalar_products<S: Simd, const C: usize>(
    simd: S,
    (rows, width): (&[Vec<f32>], usize),
    b: Matrix<'_, f32>,
    first: usize,
    sums: &mut [f32],
) -> usize {
    let mut columns: [&[f32]; C] = [&[]; C];
    for (j, column) in columns.iter_mut().enumerate() {
        *column = b.row(first + j);
    }
    let (fours, rest) = rows.as_chunks::<4>();
    for (block, [a, b, c, d]) in fours.iter().enumerate() {
        let found = lanes_of::<S, 4, C>(simd, [a, b, c, d], columns);
        for i in 0..4 {
            sums[(4 * block + i) * width + first..][..C].copy_from_slice(&found[i]);
        }
    }
    for (i, row) in rest.iter().enumerate() {
        let found = lanes_of::<S, 1, C>(simd, [row], columns);
        sums[(4 * fours.len() + i) * width + first..][..C].copy_from_slice(&found[0]);
    }
    C
}

/// The scalar products of some rows with others, each summed in the lanes of one register.
#[inline(always)]
fn lanes_of<S: Simd, const R: usize, const C: usize>(
    simd: S,
    a: [&Vec<f32>; R],
    b: [&[f32]; C],
) -> [[f32; C]; R] {
    // Loops, since closures would not be compiled for the processor's vectors.
    let mut whole_a: [&[S::f32s]; R] = [&[]; R];
    let mut whole_b: [&[S::f32s]; C] = [&[]; C];
    let count = S::as_simd_f32s(b[0]).0.len();
    for i in 0..R {
        whole_a[i] = &S::as_simd_f32s(a[i]).0[..count];
    }
    for j in 0..C {
        whole_b[j] = &S::as_simd_f32s(b[j]).0[..count];
    }
    let mut lanes = [[simd.splat_f32s(0.0); C]; R];
    for k in 0..count {
        for i in 0..R {
            for j in 0..C {
                lanes[i][j] = simd.mul_add_f32s(whole_a[i][k], whole_b[j][k], lanes[i][j]);
            }
        }
    }
    let mut sums = [[0.0; C]; R];
    for i in 0..R {
        for j in 0..C {
            sums[i][j] = simd.reduce_sum_f32s(lanes[i][j]);
            for k in count * S::F32_LANES..b[j].len() {
                sums[i][j] = a[i][k].mul_add(b[j][k], sums[i][j]);
            }
        }
    }
    sums
}
