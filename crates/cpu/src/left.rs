//! Left operands that are prepared once and used by many products.

use std::ops::Range;

use crate::element::Number;
use crate::kept::{Loan, lend};
use crate::matrix::Matrix;
use crate::pack;
use crate::threads::Threads;
use crate::tiles::{self, BLOCK, Element, Tile};

/// A left operand that is prepared once and used by many products, of any threads.
pub struct LeftOperand<'a, T> {
    pub(crate) matrix: Matrix<'a, T>,
    /// For the tile unit: pairs of tiles, rows slowest; none otherwise.
    pub(crate) tiles: Loan<Tile>,
}

impl<'a, T: Number> LeftOperand<'a, T> {
    /// Prepares `[M,K]`, in the memory of another if it is given one.
    #[must_use]
    pub fn of(matrix: Matrix<'a, T>, memory: Loan<Tile>, threads: Threads) -> Self {
        let tiles = T::pack_left(matrix, memory, threads);
        Self { matrix, tiles }
    }

    /// A block of it as it lies.
    pub(crate) fn part(&self, block: &Block) -> Matrix<'a, T> {
        let rows = self.matrix.rows_of(block.rows.start, block.rows.len());
        rows.columns_of(block.depth.start, block.depth.len())
    }

    /// Its memory, for another.
    #[must_use]
    pub fn into_memory(self) -> Loan<Tile> {
        self.tiles
    }
}

/// Tiles of a left operand.
pub(crate) fn pack_left<T: Element>(
    a: Matrix<'_, T>,
    mut tiles: Loan<Tile>,
    threads: Threads,
) -> Loan<Tile> {
    if !tiles::available::<T>() {
        return tiles;
    }
    let of_block = 2 * a.columns().div_ceil(T::DEPTH);
    let count = a.rows().div_ceil(BLOCK) * of_block;
    if tiles.len() < count {
        tiles = lend(count);
    }
    threads.for_each_chunk(&mut tiles[..count], of_block.max(1), |block, tiles| {
        pack::left(a, block * BLOCK, tiles);
    });
    tiles
}

/// Where a product lies in its operands and goes: rows of the left operand, what is summed over, columns of the right one.
#[derive(Clone, Debug)]
pub struct Block {
    /// They begin at a multiple of 32.
    pub rows: Range<usize>,
    /// It begins at a multiple of 32.
    pub depth: Range<usize>,
    /// The first ones.
    pub columns: usize,
    /// From one row of sums to the next.
    pub stride: usize,
    /// Whether sums are written over what is there.
    pub fresh: bool,
}
