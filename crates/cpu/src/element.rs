//! Elements that products read and write.

use half::{bf16, f16};

use crate::kept::Loan;
use crate::left::{Block, LeftOperand, pack_left};
use crate::matrix::Matrix;
use crate::packed::Packed;
use crate::tiles::{self, Tile};
use crate::{Threads, narrow, tiled, wide};

/// f32, bf16 or f16.
pub trait Number: Copy + Send + Sync + 'static {
    /// The number as f32; exact.
    fn wide(self) -> f32;

    /// The nearest number, ties to even.
    fn nearest(value: f32) -> Self;

    /// `out = a · b`, summed in f32.
    ///
    /// # Shapes
    /// `a [M,K]`, `b [K,N]` → `out [M,N]`, row-major.
    /// # Panics
    /// When the shapes do not fit.
    fn multiply(a: Matrix<'_, Self>, b: Matrix<'_, Self>, out: &mut [f32], threads: Threads);

    /// Prepares a right operand `[K,N]`.
    fn pack(b: Matrix<'_, Self>, packed: &mut Packed) {
        Self::pack_rows(&[b], packed);
    }

    /// Prepares a right operand `[K,N]` whose rows come in pieces, all but the last of whole blocks of 32 rows.
    fn pack_rows(pieces: &[Matrix<'_, Self>], packed: &mut Packed);

    /// Adds `a · b` to sums whose rows are `stride` apart, or writes it over them if they are `fresh`, where `b` is as many
    /// rows of a prepared operand as `a` has columns, and its first columns. On the calling thread. Rows of zeros follow an
    /// operand whose rows lay side by side, up to a block of 32, so that `a` may have as many columns.
    ///
    /// # Shapes
    /// `a [M,K]`, `b [≥K,≥N]` → `[M,N]`, rows and columns filled up to blocks of 32 with what is to be ignored.
    /// # Panics
    /// When the shapes do not fit.
    fn multiply_packed(
        a: Matrix<'_, Self>,
        b: &Packed,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    );

    /// Tiles of a left operand, in such memory, if this type of element has them.
    fn pack_left(a: Matrix<'_, Self>, memory: Loan<Tile>, threads: Threads) -> Loan<Tile> {
        let _ = (a, threads);
        memory
    }

    /// As [`Self::multiply_packed`], for a block of a prepared left operand.
    ///
    /// # Panics
    /// When the shapes do not fit.
    fn multiply_left(a: &LeftOperand<'_, Self>, b: &Packed, block: &Block, sums: &mut [f32]) {
        let a = a.part(block);
        Self::multiply_packed(a, b, block.columns, sums, block.stride, block.fresh);
    }
}

impl Number for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        value
    }

    fn pack_left(a: Matrix<'_, f32>, memory: Loan<Tile>, threads: Threads) -> Loan<Tile> {
        pack_left(a, memory, threads)
    }

    fn multiply_left(a: &LeftOperand<'_, f32>, b: &Packed, block: &Block, sums: &mut [f32]) {
        b.multiply_left(a, block, sums);
    }

    fn pack_rows(pieces: &[Matrix<'_, f32>], packed: &mut Packed) {
        packed.take(pieces);
    }

    fn multiply_packed(
        a: Matrix<'_, f32>,
        b: &Packed,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        b.multiply(a, columns, sums, stride, fresh);
    }

    #[track_caller]
    fn multiply(a: Matrix<'_, f32>, b: Matrix<'_, f32>, out: &mut [f32], threads: Threads) {
        assert_eq!(a.columns(), b.rows(), "elements that are summed over");
        wide::multiply(a, b, out, threads);
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Written without branches, so that the compiler may do many at once.
    #[inline(always)]
    fn nearest(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        let quiet = ((bits >> 16) | 0x40) as u16;
        Self::from_bits(if value.is_nan() { quiet } else { rounded })
    }

    fn pack_left(a: Matrix<'_, bf16>, memory: Loan<Tile>, threads: Threads) -> Loan<Tile> {
        pack_left(a, memory, threads)
    }

    fn multiply_left(a: &LeftOperand<'_, bf16>, b: &Packed, block: &Block, sums: &mut [f32]) {
        b.multiply_left(a, block, sums);
    }

    fn pack_rows(pieces: &[Matrix<'_, bf16>], packed: &mut Packed) {
        packed.take(pieces);
    }

    fn multiply_packed(
        a: Matrix<'_, bf16>,
        b: &Packed,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        b.multiply(a, columns, sums, stride, fresh);
    }

    #[track_caller]
    fn multiply(a: Matrix<'_, bf16>, b: Matrix<'_, bf16>, out: &mut [f32], threads: Threads) {
        assert_eq!(a.columns(), b.rows(), "elements that are summed over");
        if tiles::available::<bf16>() {
            tiled::multiply(a, b, out, threads);
        } else {
            narrow::multiply(a, b, out, threads);
        }
    }
}

/// Widened to f32 before it is multiplied.
impl Number for f16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn pack_rows(pieces: &[Matrix<'_, f16>], packed: &mut Packed) {
        packed.take_widened(pieces);
    }

    fn multiply_packed(
        a: Matrix<'_, f16>,
        b: &Packed,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        b.multiply_widened(a, columns, sums, stride, fresh);
    }

    #[track_caller]
    fn multiply(a: Matrix<'_, f16>, b: Matrix<'_, f16>, out: &mut [f32], threads: Threads) {
        let (left, right) = (narrow::widen(a), narrow::widen(b));
        let a = Matrix::new(&left, [a.rows(), a.columns()], [a.columns(), 1]);
        let b = Matrix::new(&right, [b.rows(), b.columns()], [b.columns(), 1]);
        f32::multiply(a, b, out, threads);
    }
}

/// `out = a · b`, summed in f32 and rounded once.
///
/// # Shapes
/// `a [M,K]`, `b [K,N]` → `out [M,N]`, row-major.
/// # Panics
/// When the shapes do not fit.
#[track_caller]
pub fn multiply_rounded(
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    out: &mut [bf16],
    threads: Threads,
) {
    multiply_each_rounded(a, &mut [(b, out)], threads);
}

/// [`multiply_rounded`] of the same rows with several matrices, at once.
///
/// # Panics
/// When the shapes do not fit.
#[track_caller]
pub fn multiply_each_rounded(
    a: Matrix<'_, bf16>,
    products: &mut [(Matrix<'_, bf16>, &mut [bf16])],
    threads: Threads,
) {
    for (b, _) in &*products {
        assert_eq!(a.columns(), b.rows(), "elements that are summed over");
    }
    if tiles::available::<bf16>() {
        return tiled::multiply_each(a, products, threads);
    }
    for (b, out) in products {
        narrow::multiply(a, *b, out, threads);
    }
}
