//! Products of f32 matrices.

use gemm::Parallelism;

use crate::Threads;
use crate::few_rows;
use crate::matrix::Matrix;
use crate::target::Target;

/// With so few rows memory is the bound, and nothing is packed.
const FEW: usize = 8;
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
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    if m == 0 || n == 0 {
        return;
    }
    let signed = |stride: usize| isize::try_from(stride).expect("strides were checked");
    let [a_row, a_column] = a.strides().map(signed);
    let [b_row, b_column] = b.strides().map(signed);
    // SAFETY: both views lie inside of their slices; the last row's part is inside of the result, and so are those before
    // it. Each thread writes columns of its own.
    unsafe {
        out.part(m - 1, first, n);
        gemm::gemm(
            m,
            n,
            k,
            out.part(0, first, n).as_mut_ptr(),
            1,
            signed(out.columns()),
            false,
            a.data().as_ptr(),
            a_column,
            a_row,
            b.data().as_ptr(),
            b_column,
            b_row,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Appends the elements, row by row.
pub(crate) fn append_rows(part: Matrix<'_, f32>, to: &mut Vec<f32>) {
    let [row, column] = part.strides();
    for i in 0..part.rows() {
        if column == 1 {
            to.extend_from_slice(part.row(i));
        } else {
            to.extend((0..part.columns()).map(|j| part.data()[i * row + j * column]));
        }
    }
}

/// Adds `a · b` to sums whose rows are `stride` apart, or writes it over them if they are `fresh`; on this thread.
pub(crate) fn add_here(
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    sums: &mut [f32],
    stride: usize,
    fresh: bool,
) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        n <= stride && sums.len() >= (m - 1) * stride + n,
        "room for the sums"
    );
    let signed = |stride: usize| isize::try_from(stride).expect("strides were checked");
    let [a_row, a_column] = a.strides().map(signed);
    let [b_row, b_column] = b.strides().map(signed);
    // SAFETY: both views lie inside of their slices, and there is room for the sums.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            sums.as_mut_ptr(),
            1,
            signed(stride),
            !fresh,
            a.data().as_ptr(),
            a_column,
            a_row,
            b.data().as_ptr(),
            b_column,
            b_row,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
