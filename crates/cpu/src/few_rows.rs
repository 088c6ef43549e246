//! Products of a few rows of f32, which read each weight once.

use pulp::{Arch, Simd, WithSimd};

use crate::Threads;
use crate::matrix::Matrix;
use crate::target::Target;

/// Columns that one thread works on at a time: the sums stay in the first-level cache.
const WIDTH: usize = 1024;
/// Columns of a thread are a multiple of this.
const GRAIN: usize = 16;

/// `out = a · b`, where rows or columns of `b` lie side by side.
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
    threads.for_each_range(b.columns().div_ceil(GRAIN), 4, |grains| {
        let end = (grains.end * GRAIN).min(b.columns());
        for first in (grains.start * GRAIN..end).step_by(WIDTH) {
            let columns = WIDTH.min(end - first);
            let b = b.columns_of(first, columns);
            let mut sums = vec![0.0; rows.len() * columns];
            if columns > 0 {
                let (rows, sums) = (&rows, &mut sums);
                Arch::new().dispatch(Part { rows, b, sums });
            }
            for (i, sums) in sums.chunks(columns.max(1)).enumerate() {
                // SAFETY: each thread has columns of its own.
                unsafe { out.part(i, first, columns) }.copy_from_slice(sums);
            }
        }
    });
}

/// The product of all rows and some columns.
struct Part<'a> {
    rows: &'a [Vec<f32>],
    b: Matrix<'a, f32>,
    sums: &'a mut [f32],
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let columns = self.b.columns();
        let out = self.rows.iter().zip(self.sums.chunks_exact_mut(columns));
        if self.b.strides()[1] != 1 && columns > 1 {
            let turned = self.b.transposed();
            for (a, sums) in out {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = scalar_product(simd, a, turned.row(j));
                }
            }
            return;
        }
        let whole = self.b.rows() / 4 * 4;
        let mut out: Vec<(&Vec<f32>, &mut [f32])> = out.collect();
        for k in (0..whole).step_by(4) {
            let b: [&[f32]; 4] = std::array::from_fn(|i| self.b.row(k + i));
            for (a, sums) in &mut out {
                add_rows(simd, std::array::from_fn(|i| a[k + i]), b, sums);
            }
        }
        for k in whole..self.b.rows() {
            for (a, sums) in &mut out {
                add_rows(simd, [a[k]], [self.b.row(k)], sums);
            }
        }
    }
}

/// `sums += Σ factors[i] · rows[i]`, one after the other.
#[inline(always)]
fn add_rows<S: Simd, const N: usize>(
    simd: S,
    factors: [f32; N],
    rows: [&[f32]; N],
    sums: &mut [f32],
) {
    let (sums, last) = S::as_mut_simd_f32s(sums);
    let rows = rows.map(|row| S::as_simd_f32s(row));
    let wide = factors.map(|factor| simd.splat_f32s(factor));
    let whole = rows.map(|(whole, _)| &whole[..sums.len()]);
    for (j, sum) in sums.iter_mut().enumerate() {
        for i in 0..N {
            *sum = simd.mul_add_f32s(wide[i], whole[i][j], *sum);
        }
    }
    for (j, sum) in last.iter_mut().enumerate() {
        for i in 0..N {
            *sum = factors[i].mul_add(rows[i].1[j], *sum);
        }
    }
}

/// In four lanes of registers.
#[inline(always)]
fn scalar_product<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_last), (b, b_last)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let mut lanes = [simd.splat_f32s(0.0); 4];
    let ((a4, a), (b4, b)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    for (a, b) in a4.iter().zip(b4) {
        for i in 0..4 {
            lanes[i] = simd.mul_add_f32s(a[i], b[i], lanes[i]);
        }
    }
    for ((a, b), lane) in a.iter().zip(b).zip(&mut lanes) {
        *lane = simd.mul_add_f32s(*a, *b, *lane);
    }
    let both = [
        simd.add_f32s(lanes[0], lanes[1]),
        simd.add_f32s(lanes[2], lanes[3]),
    ];
    let mut sum = simd.reduce_sum_f32s(simd.add_f32s(both[0], both[1]));
    for (a, b) in a_last.iter().zip(b_last) {
        sum = a.mul_add(*b, sum);
    }
    sum
}
