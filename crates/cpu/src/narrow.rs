//! Numbers of other types rounded and widened, and products of bf16 without tiles.

use crate::Threads;
use crate::element::Number;
use crate::matrix::Matrix;
use crate::target::Target;

/// Rows or columns that are widened at once.
const WIDTH: usize = 1024;

/// Rounds numbers, many at once.
struct Round<'a, I, O> {
    from: &'a [I],
    to: &'a mut [O],
}

impl<I: Number, O: Number> pulp::WithSimd for Round<'_, I, O> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let pairs = self.to.iter_mut().zip(self.from);
        pairs.for_each(|(to, from)| *to = O::nearest(from.wide()));
    }
}

pub(crate) fn round<I: Number, O: Number>(from: &[I], to: &mut [O]) {
    pulp::Arch::new().dispatch(Round { from, to });
}

/// `out = a · b`, rounded once: parts of the operands are widened and multiplied as f32.
pub(crate) fn multiply<T: Number, O: Number>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &mut [O],
    threads: Threads,
) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    let out = Target::new(out, m, n);
    for first_column in (0..n).step_by(WIDTH) {
        let columns = WIDTH.min(n - first_column);
        let b = widen(b.columns_of(first_column, columns));
        let b = Matrix::new(&b, [k, columns], [columns, 1]);
        for first in (0..m).step_by(WIDTH) {
            let rows = WIDTH.min(m - first);
            let a = widen(a.rows_of(first, rows));
            let mut sums = vec![0.0; rows * columns];
            f32::multiply(Matrix::new(&a, [rows, k], [k, 1]), b, &mut sums, threads);
            for (row, sums) in sums.chunks(columns.max(1)).enumerate() {
                // SAFETY: only this thread writes.
                round(sums, unsafe {
                    out.part(first + row, first_column, columns)
                });
            }
        }
    }
}

pub(crate) fn widen<T: Number>(part: Matrix<'_, T>) -> Vec<f32> {
    let mut wide = Vec::new();
    append_widened(part, &mut wide);
    wide
}

/// Appends the elements, row by row.
pub(crate) fn append_widened<T: Number>(part: Matrix<'_, T>, to: &mut Vec<f32>) {
    let [row, column] = part.strides();
    for i in 0..part.rows() {
        to.extend((0..part.columns()).map(|j| part.data()[i * row + j * column].wide()));
    }
}
