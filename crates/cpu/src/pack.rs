//! Operands rearranged into tiles, filled up with zeros.

use half::bf16;
use half::slice::HalfFloatSliceExt;

use crate::matrix::Matrix;
use crate::tiles::{BLOCK, Element, Tile};
use crate::transpose::{Square, transpose};

/// 32 rows from `first` on, as pairs of left tiles.
///
/// # Shapes
/// `[R,K]` → pairs for every [`Element::DEPTH`] of K.
pub(crate) fn left<T: Element>(a: Matrix<'_, T>, first: usize, tiles: &mut [Tile]) {
    let rows = a.rows().saturating_sub(first).min(BLOCK);
    pairs(a.rows_of(first, rows), tiles, T::left_tile);
}

/// 32 columns from `first` on, as pairs of right tiles.
///
/// # Shapes
/// `[K,N]` → pairs for every [`Element::DEPTH`] of K.
pub(crate) fn right<T: Element>(b: Matrix<'_, T>, first: usize, tiles: &mut [Tile]) {
    let columns = b.columns().saturating_sub(first).min(BLOCK);
    let block = b.columns_of(first, columns).transposed();
    pairs(block, tiles, |part, tile| {
        T::right_tile(part.transposed(), tile)
    });
}

/// Pairs of tiles that hold 32 rows, or as many columns turned; `put` fills a part of one.
fn pairs<T: Element>(
    block: Matrix<'_, T>,
    tiles: &mut [Tile],
    put: impl Fn(Matrix<'_, T>, &mut Square),
) {
    for (step, pair) in tiles.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let depth = block
            .columns()
            .saturating_sub(step * T::DEPTH)
            .min(T::DEPTH);
        let part = block.columns_of(block.columns().min(step * T::DEPTH), depth);
        for (half, tile) in pair.iter_mut().enumerate() {
            let here = block.rows().saturating_sub(16 * half).min(16);
            if here < 16 || depth < T::DEPTH {
                *tile = Tile::ZERO;
            }
            if here > 0 && depth > 0 {
                put(part.rows_of(16 * half, here), &mut tile.0);
            }
        }
    }
}

/// Element (i, k) in word k of row i: a left tile, or a right one of columns k.
#[inline]
pub(crate) fn singles(part: Matrix<'_, f32>, tile: &mut Square) {
    let [row, column] = part.strides();
    if column == 1 {
        for (i, to) in tile[..part.rows()].iter_mut().enumerate() {
            let pairs = to.iter_mut().zip(part.row(i));
            pairs.for_each(|(to, value)| *to = value.to_bits());
        }
    } else if row == 1 && part.rows() == 16 && part.columns() == 16 {
        singles(part.transposed(), tile);
        transpose(tile);
    } else {
        for (i, to) in tile[..part.rows()].iter_mut().enumerate() {
            for (k, to) in to[..part.columns()].iter_mut().enumerate() {
                *to = part.data()[i * row + k * column].to_bits();
            }
        }
    }
}

/// Element (i, k) in half k%2 of word k/2 of row i.
#[inline]
pub(crate) fn left_pairs(part: Matrix<'_, bf16>, tile: &mut Square) {
    let [row, column] = part.strides();
    if row == 1 && column != 1 && part.rows() == 16 && part.columns() == BLOCK {
        interleave(part.transposed(), tile);
        return transpose(tile);
    }
    let tile = halves(tile);
    if column == 1 {
        for (i, to) in tile[..part.rows()].iter_mut().enumerate() {
            let from: &[u16] = part.row(i).reinterpret_cast();
            to[..from.len()].copy_from_slice(from);
        }
    } else {
        for (i, to) in tile[..part.rows()].iter_mut().enumerate() {
            for (k, to) in to[..part.columns()].iter_mut().enumerate() {
                *to = part.data()[i * row + k * column].to_bits();
            }
        }
    }
}

/// Element (k, j) in half k%2 of word j of row k/2.
#[inline]
pub(crate) fn right_pairs(part: Matrix<'_, bf16>, tile: &mut Square) {
    let [row, column] = part.strides();
    if column == 1 && part.columns() == 16 && part.rows() == BLOCK {
        return interleave(part, tile);
    }
    if row == 1 && part.columns() == 16 && part.rows() == BLOCK {
        // A column lies as a row of a left tile does.
        left_pairs(part.transposed(), tile);
        return transpose(tile);
    }
    let pairs = halves(tile);
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

/// 32 rows of 16 elements that lie side by side: the two of a pair of rows one after the other, the first one low.
#[inline]
fn interleave(part: Matrix<'_, bf16>, tile: &mut Square) {
    for (pair, to) in tile.iter_mut().enumerate() {
        let (even, odd) = (part.row(2 * pair), part.row(2 * pair + 1));
        for (to, (even, odd)) in to.iter_mut().zip(even.iter().zip(odd)) {
            *to = u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16;
        }
    }
}

/// A tile's halves of words.
fn halves(tile: &mut Square) -> &mut [[u16; 32]; 16] {
    pulp::bytemuck::cast_mut(tile)
}
