//! Right operands that are prepared once and used by many products of one thread, as attention does.

use crate::element::Number;
use crate::kept::{Loan, lend};
use crate::left::{Block, LeftOperand};
use crate::matrix::Matrix;
use crate::tiles::{self, BLOCK, Element, Left, Tile, Tiles};
use crate::{narrow, pack, tiled, wide};

/// A right operand `[K,N]`, in the form that products of its element type read.
#[derive(Default)]
pub struct Packed {
    dims: [usize; 2],
    /// For the tile unit: pairs of tiles, columns slowest.
    tiles: Loan<Tile>,
    /// Without such a unit: rows of f32.
    wide: Vec<f32>,
}

/// The size of rows that come in pieces.
fn dims<T>(pieces: &[Matrix<'_, T>]) -> [usize; 2] {
    let columns = pieces.first().map_or(0, Matrix::columns);
    [pieces.iter().map(Matrix::rows).sum(), columns]
}

impl Packed {
    /// As [`Number::multiply_packed`], with tiles on the left too.
    pub(crate) fn multiply_left<T: Element>(
        &self,
        a: &LeftOperand<'_, T>,
        block: &Block,
        sums: &mut [f32],
    ) {
        let &Block {
            columns,
            stride,
            fresh,
            ..
        } = block;
        if !tiles::available::<T>() {
            return self.multiply_widened(a.part(block), columns, sums, stride, fresh);
        }
        let (rows, depth) = (block.rows.len(), block.depth.len());
        self.check(rows, depth, columns, sums, stride);
        assert!(
            block.rows.end <= a.matrix.rows() && block.depth.end <= a.matrix.columns(),
            "{block:?} of {} × {}",
            a.matrix.rows(),
            a.matrix.columns()
        );
        let steps = depth.div_ceil(T::DEPTH);
        let all = 2 * a.matrix.columns().div_ceil(T::DEPTH);
        let first = block.rows.start / BLOCK * all + 2 * (block.depth.start / T::DEPTH);
        let left = |row: usize| Left::packed(&a.tiles[first + row * all..][..2 * steps]);
        self.multiply_tiles::<T>(rows, steps, columns, sums, stride, fresh, left);
    }

    /// What the sums of a product with so many columns are wide, at least: whole blocks of 32.
    #[must_use]
    pub fn padded(size: usize) -> usize {
        size.next_multiple_of(BLOCK)
    }

    /// Rows of tiles, one piece after the other.
    pub(crate) fn take<T: Element>(&mut self, pieces: &[Matrix<'_, T>]) {
        if !tiles::available::<T>() {
            return self.take_widened(pieces);
        }
        self.dims = dims(pieces);
        let of_column = self.of_column::<T>();
        let count = self.dims[1].div_ceil(BLOCK) * of_column;
        if self.tiles.len() < count {
            self.tiles = lend(count);
        }
        let columns = self.tiles[..count].chunks_mut(of_column.max(1));
        for (block, mut tiles) in columns.enumerate() {
            for (number, piece) in pieces.iter().enumerate() {
                let last = number + 1 == pieces.len();
                debug_assert!(
                    last || piece.rows() % BLOCK == 0,
                    "whole blocks before the last"
                );
                let here = if last {
                    tiles.len()
                } else {
                    2 * piece.rows() / T::DEPTH
                };
                let (own, rest) = tiles.split_at_mut(here);
                pack::right(*piece, block * BLOCK, own);
                tiles = rest;
            }
        }
    }

    /// The same, of rows that are widened.
    pub(crate) fn take_widened<T: Number>(&mut self, pieces: &[Matrix<'_, T>]) {
        let mut wide = std::mem::take(&mut self.wide);
        wide.clear();
        for piece in pieces {
            narrow::append_widened(*piece, &mut wide);
        }
        let [rows, columns] = dims(pieces);
        if tiles::available::<f32>() {
            self.take(&[Matrix::new(&wide, [rows, columns], [columns, 1])]);
        } else {
            self.dims = [rows, columns];
            wide.resize(Self::padded(rows) * columns, 0.0);
        }
        self.wide = wide;
    }

    /// Tiles of 32 columns: rows of zeros follow, up to a whole block.
    fn of_column<T: Element>(&self) -> usize {
        2 * Self::padded(self.dims[0]) / T::DEPTH
    }

    fn check(&self, rows: usize, depth: usize, columns: usize, sums: &[f32], stride: usize) {
        assert!(
            depth <= Self::padded(self.dims[0]) && columns <= self.dims[1],
            "{depth} × {columns} of an operand of {:?}",
            self.dims
        );
        let (rows, columns) = (Self::padded(rows), Self::padded(columns));
        assert!(
            rows == 0 || (stride >= columns && sums.len() >= (rows - 1) * stride + columns),
            "sums have whole blocks of 32 rows and columns"
        );
    }

    pub(crate) fn multiply<T: Element>(
        &self,
        a: Matrix<'_, T>,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        if !tiles::available::<T>() {
            return self.multiply_widened(a, columns, sums, stride, fresh);
        }
        self.check(a.rows(), a.columns(), columns, sums, stride);
        let steps = a.columns().div_ceil(T::DEPTH);
        let in_place = a.strides()[1] == 1
            && a.rows().is_multiple_of(BLOCK)
            && a.columns().is_multiple_of(T::DEPTH);
        if in_place {
            let left = |block| tiled::in_place(a.rows_of(block * BLOCK, BLOCK));
            return self.multiply_tiles::<T>(a.rows(), steps, columns, sums, stride, fresh, left);
        }
        let blocks = a.rows().div_ceil(BLOCK);
        let mut packed = lend(blocks * 2 * steps);
        for (block, tiles) in packed.chunks_mut((2 * steps).max(1)).enumerate() {
            pack::left(a, block * BLOCK, tiles);
        }
        let left = |block: usize| Left::packed(&packed[block * 2 * steps..][..2 * steps]);
        self.multiply_tiles::<T>(a.rows(), steps, columns, sums, stride, fresh, left);
    }

    pub(crate) fn multiply_widened<T: Number>(
        &self,
        a: Matrix<'_, T>,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        let wide = narrow::widen(a);
        let a = Matrix::new(&wide, [a.rows(), a.columns()], [a.columns(), 1]);
        if tiles::available::<f32>() {
            return self.multiply(a, columns, sums, stride, fresh);
        }
        self.check(a.rows(), a.columns(), columns, sums, stride);
        let b = Matrix::new(&self.wide, [a.columns(), columns], [self.dims[1], 1]);
        wide::add_here(a, b, sums, stride, fresh);
    }

    /// `left` gives each block of rows, `steps` deep.
    #[expect(
        clippy::too_many_arguments,
        reason = "the sizes of a product and where it goes"
    )]
    fn multiply_tiles<T: Element>(
        &self,
        rows: usize,
        steps: usize,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
        left: impl Fn(usize) -> Left,
    ) {
        let all = self.of_column::<T>();
        let tiles = Tiles::configure::<T>();
        for column in 0..columns.div_ceil(BLOCK) {
            let right = &self.tiles[column * all..][..2 * steps];
            for row in 0..rows.div_ceil(BLOCK) {
                let sums = &mut sums[row * BLOCK * stride + column * BLOCK..];
                let columns = columns - column * BLOCK;
                // SAFETY: `left` has `steps` pairs of tiles for each block of rows.
                unsafe { tiles.product(left(row), right, sums, stride, fresh, columns) };
            }
        }
    }
}
