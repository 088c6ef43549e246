//! Right operands that are prepared once and used by many products of one thread, as attention does.

use half::bf16;

use crate::element::Number;
use crate::kept::{Loan, lend};
use crate::left::{Block, LeftOperand};
use crate::matrix::Matrix;
use crate::tiles::{self, BLOCK, Left, Tile, Tiles};
use crate::{narrow, pack, wide};

/// A right operand `[K,N]`, in the form that products of its element type read.
#[derive(Default)]
pub struct Packed {
    dims: [usize; 2],
    /// For the tile unit: pairs of tiles, columns slowest.
    tiles: Loan<Tile>,
    /// Otherwise: elements in the order in which they lay, and their strides.
    wide: Vec<f32>,
    strides: [usize; 2],
}

impl Packed {
    /// As [`Number::multiply_packed`], with tiles on the left too.
    pub(crate) fn multiply_left(&self, a: &LeftOperand<'_, bf16>, block: &Block, sums: &mut [f32]) {
        let (rows, depth) = (block.rows.len(), block.depth.len());
        if !tiles::available() {
            return self.multiply_widened(
                a.part(block),
                block.columns,
                sums,
                block.stride,
                block.fresh,
            );
        }
        self.check(rows, depth, block.columns, sums, block.stride);
        assert!(
            block.rows.end <= a.matrix.rows() && block.depth.end <= a.matrix.columns(),
            "{block:?} of {} × {}",
            a.matrix.rows(),
            a.matrix.columns()
        );
        let (steps, all) = (
            depth.div_ceil(BLOCK),
            2 * a.matrix.columns().div_ceil(BLOCK),
        );
        let first = block.rows.start / BLOCK * all + 2 * (block.depth.start / BLOCK);
        let left = |row: usize| Left::packed(&a.tiles[first + row * all..][..2 * steps]);
        self.multiply_tiles(
            rows,
            steps,
            block.columns,
            sums,
            block.stride,
            block.fresh,
            left,
        );
    }

    /// What the sums of a product with so many columns are wide, at least: whole blocks of 32.
    #[must_use]
    pub fn padded(size: usize) -> usize {
        size.next_multiple_of(BLOCK)
    }

    pub(crate) fn take_f32(&mut self, b: Matrix<'_, f32>) {
        self.dims = [b.rows(), b.columns()];
        self.wide.clear();
        if b.strides()[0] == 1 {
            wide::append_rows(b.transposed(), &mut self.wide);
            self.strides = [1, b.rows()];
        } else {
            wide::append_rows(b, &mut self.wide);
            self.fill_up();
        }
    }

    /// Rows of zeros, up to a whole block.
    fn fill_up(&mut self) {
        self.wide
            .resize(Self::padded(self.dims[0]) * self.dims[1], 0.0);
        self.strides = [self.dims[1], 1];
    }

    /// Rows of f32, one piece after the other.
    pub(crate) fn take_rows_f32(&mut self, pieces: &[Matrix<'_, f32>]) {
        self.begin(pieces);
        for piece in pieces {
            wide::append_rows(*piece, &mut self.wide);
        }
        self.fill_up();
    }

    /// Rows that are widened, one piece after the other.
    pub(crate) fn take_rows_widened<T: Number>(&mut self, pieces: &[Matrix<'_, T>]) {
        self.begin(pieces);
        for piece in pieces {
            narrow::append_widened(*piece, &mut self.wide);
        }
        self.fill_up();
    }

    /// Rows of tiles, one piece after the other.
    pub(crate) fn take_rows_bf16(&mut self, pieces: &[Matrix<'_, bf16>]) {
        if !tiles::available() {
            return self.take_rows_widened(pieces);
        }
        self.begin(pieces);
        let of_column = 2 * self.dims[0].div_ceil(BLOCK);
        let count = self.dims[1].div_ceil(BLOCK) * of_column;
        if self.tiles.len() < count {
            self.tiles = lend(count);
        }
        let mut first = 0;
        for piece in pieces {
            debug_assert!(first % BLOCK == 0, "whole blocks before the last piece");
            let here = 2 * piece.rows().div_ceil(BLOCK);
            let columns = self.tiles[..count].chunks_mut(of_column.max(1));
            for (block, tiles) in columns.enumerate() {
                pack::right(
                    *piece,
                    block * BLOCK,
                    &mut tiles[2 * first / BLOCK..][..here],
                );
            }
            first += piece.rows();
        }
    }

    /// Takes the size of rows, one piece after the other.
    fn begin<T>(&mut self, pieces: &[Matrix<'_, T>]) {
        let columns = pieces.first().map_or(0, Matrix::columns);
        self.dims = [pieces.iter().map(Matrix::rows).sum(), columns];
        self.wide.clear();
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

    pub(crate) fn multiply_f32(
        &self,
        a: Matrix<'_, f32>,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        self.check(a.rows(), a.columns(), columns, sums, stride);
        let b = Matrix::new(&self.wide, [a.columns(), columns], self.strides);
        wide::add_here(a, b, sums, stride, fresh);
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
        self.multiply_f32(a, columns, sums, stride, fresh);
    }

    pub(crate) fn multiply_bf16(
        &self,
        a: Matrix<'_, bf16>,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
    ) {
        self.check(a.rows(), a.columns(), columns, sums, stride);
        if !tiles::available() {
            return self.multiply_widened(a, columns, sums, stride, fresh);
        }
        let steps = a.columns().div_ceil(BLOCK);
        let in_place = a.strides()[1] == 1
            && a.rows().is_multiple_of(BLOCK)
            && a.columns().is_multiple_of(BLOCK);
        if in_place {
            return self.multiply_tiles(a.rows(), steps, columns, sums, stride, fresh, |block| {
                narrow::in_place(a.rows_of(block * BLOCK, BLOCK))
            });
        }
        let blocks = a.rows().div_ceil(BLOCK);
        let mut left = lend(blocks * 2 * steps);
        for (block, tiles) in left.chunks_mut((2 * steps).max(1)).enumerate() {
            pack::left(a, block * BLOCK, tiles);
        }
        self.multiply_tiles(a.rows(), steps, columns, sums, stride, fresh, |block| {
            Left::packed(&left[block * 2 * steps..][..2 * steps])
        });
    }

    /// `left` gives each block of rows, `steps` deep.
    #[expect(
        clippy::too_many_arguments,
        reason = "the sizes of a product and where it goes"
    )]
    fn multiply_tiles(
        &self,
        rows: usize,
        steps: usize,
        columns: usize,
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
        left: impl Fn(usize) -> Left,
    ) {
        let all = 2 * self.dims[0].div_ceil(BLOCK);
        let tiles = Tiles::configure();
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
