//! Operands rearranged into tiles, filled up with zeros.

use half::bf16;
use half::slice::HalfFloatSliceExt;

use crate::matrix::Matrix;
use crate::tiles::{BLOCK, Tile};
use crate::transpose::{Square, transpose};

/// 32 rows from `first` on, as pairs of left tiles.
///
/// # Shapes
/// `[R,K]` → `⌈K/32⌉` pairs.
pub(crate) fn left(a: Matrix<'_, bf16>, first: usize, tiles: &mut [Tile]) {
    let rows = a.rows().saturating_sub(first).min(BLOCK);
    let block = a.rows_of(first, rows);
    for (step, pair) in tiles.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let depth = (a.columns() - step * BLOCK).min(BLOCK);
        let part = block.columns_of(step * BLOCK, depth);
        for (half, tile) in pair.iter_mut().enumerate() {
            let here = rows.saturating_sub(16 * half).min(16);
            if here < 16 || depth < BLOCK {
                *tile = Tile::ZERO;
            }
            if here > 0 {
                left_tile(part.rows_of(16 * half, here), &mut tile.0);
            }
        }
    }
}

/// Element (i, k) at `32 i + k`.
#[inline]
fn left_tile(part: Matrix<'_, bf16>, tile: &mut [u16; 512]) {
    let [row, column] = part.strides();
    if column == 1 {
        for (i, to) in tile.as_chunks_mut::<BLOCK>().0[..part.rows()]
            .iter_mut()
            .enumerate()
        {
            let from: &[u16] = part.row(i).reinterpret_cast();
            to[..from.len()].copy_from_slice(from);
        }
    } else if row == 1 && part.rows() == 16 && part.columns() == BLOCK {
        interleave(part.transposed(), tile);
        transpose(square(tile));
    } else if row == 1 {
        let turned = part.transposed();
        for k in 0..part.columns() {
            for (i, value) in turned.row(k).iter().enumerate() {
                tile[BLOCK * i + k] = value.to_bits();
            }
        }
    } else {
        for i in 0..part.rows() {
            for k in 0..part.columns() {
                tile[BLOCK * i + k] = part.data()[i * row + k * column].to_bits();
            }
        }
    }
}

/// 32 columns from `first` on, as pairs of right tiles.
///
/// # Shapes
/// `[K,N]` → `⌈K/32⌉` pairs.
pub(crate) fn right(b: Matrix<'_, bf16>, first: usize, tiles: &mut [Tile]) {
    let columns = b.columns().saturating_sub(first).min(BLOCK);
    let block = b.columns_of(first, columns);
    for (step, pair) in tiles.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let depth = (b.rows() - step * BLOCK).min(BLOCK);
        let part = block.rows_of(step * BLOCK, depth);
        for (half, tile) in pair.iter_mut().enumerate() {
            let here = columns.saturating_sub(16 * half).min(16);
            if here < 16 || depth < BLOCK {
                *tile = Tile::ZERO;
            }
            if here > 0 {
                right_tile(part.columns_of(16 * half, here), &mut tile.0);
            }
        }
    }
}

/// Element (k, j) at `32 (k/2) + 2 j + k%2`.
#[inline]
fn right_tile(part: Matrix<'_, bf16>, tile: &mut [u16; 512]) {
    let [row, column] = part.strides();
    if column == 1 && part.columns() == 16 && part.rows() == BLOCK {
        return interleave(part, tile);
    }
    if row == 1 && part.columns() == 16 && part.rows() == BLOCK {
        // A column lies as a row of a left tile does.
        left_tile(part.transposed(), tile);
        return transpose(square(tile));
    }
    let pairs = tile.as_chunks_mut::<BLOCK>().0;
    if row == 1 && part.rows() == BLOCK {
        let turned = part.transposed();
        for j in 0..part.columns() {
            let from = turned.row(j).as_chunks::<2>().0;
            for (to, two) in pairs.iter_mut().zip(from) {
                [to[2 * j], to[2 * j + 1]] = two.map(bf16::to_bits);
            }
        }
    } else {
        for k in 0..part.rows() {
            for j in 0..part.columns() {
                pairs[k / 2][2 * j + k % 2] = part.data()[k * row + j * column].to_bits();
            }
        }
    }
}

/// 32 rows of 16 elements that lie side by side: the two of a pair of rows one after the other.
#[inline]
fn interleave(part: Matrix<'_, bf16>, tile: &mut [u16; 512]) {
    for (pair, to) in square(tile).iter_mut().enumerate() {
        let (even, odd) = (part.row(2 * pair), part.row(2 * pair + 1));
        for (to, (even, odd)) in to.iter_mut().zip(even.iter().zip(odd)) {
            *to = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
        }
    }
}

/// A tile's pairs of elements, the first one low.
fn square(tile: &mut [u16; 512]) -> &mut Square {
    pulp::bytemuck::cast_mut(tile)
}
