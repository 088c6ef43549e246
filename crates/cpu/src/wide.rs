//! Products of f32 matrices.

use gemm::Parallelism;

use crate::Threads;
use crate::few_rows;
use crate::matrix::Matrix;
use crate::target::Target;

/// With so few rows memory is the bound, and nothing is packed.
const FEW: usize = 32;
/// Columns of a thread are a multiple of this.
const GRAIN: usize = 16;

/// `out = a · b`.
pub(crate) fn multiply(a: Matrix<'_, f32>, b: Matrix<'_, f32>, out: &mut [f32], threads: Threads) {
    let (m, n) = (a.rows(), b.columns());
    let target = Target::new(out, m, n);
    if m <= FEW && b.strides().contains(&1) {
        few_rows::multiply(a, b, target, threads);
    } else {
        // Threads have columns of their own, and each packs all rows: few rows are the better side to share.
        threads.for_each_range(n.div_ceil(GRAIN), 4, |grains| {
            let columns = (grains.start * GRAIN).min(n)..(grains.end * GRAIN).min(n);
            let b = b.columns_of(columns.start, columns.len());
            one(a, b, target, columns.start);
        });
    }
}

/// The columns of the result from `first` on that `b` gives.
fn one(a: Matrix<'_, f32>, b: Matrix<'_, f32>, out: Target<'_, f32>, first: usize) {
    let (m, n) = (a.rows(), b.columns());
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: the block lies inside of the result, and each thread has columns of its own.
    unsafe { product(a, b, out.block(first, n), out.columns(), true) }
}

/// Adds `a · b` to sums whose rows are `stride` apart, or writes it over them if they are `fresh`; on this thread.
pub(crate) fn add_here(
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    sums: &mut [f32],
    stride: usize,
    fresh: bool,
) {
    let (m, n) = (a.rows(), b.columns());
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        n <= stride && sums.len() >= (m - 1) * stride + n,
        "room for the sums"
    );
    // SAFETY: there is room for the sums.
    unsafe { product(a, b, sums.as_mut_ptr(), stride, fresh) }
}

/// Adds `a · b` to sums whose rows are `stride` apart, or writes it over them if they are `fresh`.
///
/// # Safety
/// `sums` must be valid for as many rows and columns, and nobody else may hold them.
unsafe fn product(
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    sums: *mut f32,
    stride: usize,
    fresh: bool,
) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    let signed = |stride: usize| isize::try_from(stride).expect("strides were checked");
    let [a_row, a_column] = a.strides().map(signed);
    let [b_row, b_column] = b.strides().map(signed);
    let (before, added) = (if fresh { 0.0 } else { 1.0 }, 1.0);
    let conjugate = false;
    // SAFETY: both views lie inside of their slices; the sums are the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            sums,
            1,
            signed(stride),
            !fresh,
            a.data().as_ptr(),
            a_column,
            a_row,
            b.data().as_ptr(),
            b_column,
            b_row,
            before,
            added,
            conjugate,
            conjugate,
            conjugate,
            Parallelism::None,
        );
    }
}
