//! Products of tiles, summed in f32, on the units of a processor that are made for them.
//!
//! A tile is 16 × 16 words of 32 bits; a word is an f32, or a pair of bf16. Of a left operand it holds 16 rows, whose elements
//! lie side by side; of a right operand 16 columns: each word what a column has for one word of a left row. The sums of a pair
//! of left tiles and a pair of right ones are 32 × 32 f32.
//!
//! Every unit goes over what is summed in one order, a word at a time; those for bf16 treat subnormal numbers as zeros.

mod amx;
mod registers;

use half::bf16;

use crate::element::Number;
use crate::matrix::Matrix;
use crate::pack;
use crate::transpose::Square;

/// Rows of a pair of left tiles, or columns of a pair of right ones.
pub(crate) const BLOCK: usize = 32;

/// 16 × 16 words of an operand, 1 KiB.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Tile(pub(crate) Square);

impl Tile {
    pub(crate) const ZERO: Self = Self([[0; 16]; 16]);
}

/// An element that tiles hold.
pub(crate) trait Element: Number {
    /// Elements of a row of a left tile: what one step sums over.
    const DEPTH: usize;
    /// What multiplies them, from the fastest on.
    const UNITS: &'static [Unit];

    /// Puts up to 16 rows of as many elements as a row of a tile has into a left tile.
    fn left_tile(part: Matrix<'_, Self>, tile: &mut Square);

    /// Puts up to 16 columns of as many elements into a right tile.
    fn right_tile(part: Matrix<'_, Self>, tile: &mut Square);
}

impl Element for f32 {
    const DEPTH: usize = 16;
    const UNITS: &'static [Unit] = &[Unit::Singles];

    fn left_tile(part: Matrix<'_, Self>, tile: &mut Square) {
        pack::singles(part, tile);
    }

    fn right_tile(part: Matrix<'_, Self>, tile: &mut Square) {
        pack::singles(part, tile);
    }
}

impl Element for bf16 {
    const DEPTH: usize = 32;
    const UNITS: &'static [Unit] = &[Unit::Amx, Unit::Pairs];

    fn left_tile(part: Matrix<'_, Self>, tile: &mut Square) {
        pack::left_pairs(part, tile);
    }

    fn right_tile(part: Matrix<'_, Self>, tile: &mut Square) {
        pack::right_pairs(part, tile);
    }
}

/// What multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unit {
    /// The tile registers of Intel's processors, for bf16.
    Amx,
    /// Dot products of pairs of bf16 in 512-bit registers (AVX512-BF16), of AMD's processors too.
    Pairs,
    /// Fused multiplication and addition of f32 in 512-bit registers.
    Singles,
}

impl Unit {
    /// Whether this process may use it.
    fn available(self) -> bool {
        match self {
            Self::Amx => amx::available(),
            Self::Pairs => registers::pairs::available(),
            Self::Singles => registers::singles::available(),
        }
    }

    fn best<T: Element>() -> Option<Self> {
        T::UNITS.iter().copied().find(|unit| unit.available())
    }
}

/// Whether this process may multiply tiles of such elements.
pub(crate) fn available<T: Element>() -> bool {
    Unit::best::<T>().is_some()
}

/// Where a pair of left tiles (rows 0–15 and 16–31) begins and how its rows lie; the next pair is `step` bytes further.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "there are no units to read it")
)]
pub(crate) struct Left {
    pub(crate) first: *const u8,
    pub(crate) second: *const u8,
    /// Bytes from one row to the next.
    pub(crate) row: usize,
    pub(crate) step: usize,
}

impl Left {
    /// Pairs of packed tiles, one after the other.
    pub(crate) fn packed(pairs: &[Tile]) -> Self {
        let first = pairs.as_ptr().cast::<u8>();
        Self {
            first,
            second: first.wrapping_add(size_of::<Tile>()),
            row: 64,
            step: 2 * size_of::<Tile>(),
        }
    }
}

/// The calling thread's unit, ready until this is dropped.
pub(crate) struct Tiles {
    unit: Unit,
    /// Registers belong to a thread.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Tiles {
    /// # Panics
    /// When the process may not multiply tiles of such elements.
    pub(crate) fn configure<T: Element>() -> Self {
        Self::of(Unit::best::<T>().expect("the process may multiply tiles"))
    }

    fn of(unit: Unit) -> Self {
        if unit == Unit::Amx {
            amx::configure();
        }
        Self {
            unit,
            not_send: std::marker::PhantomData,
        }
    }

    /// The product of 32 rows and 32 columns, as deep as there are pairs of right tiles: added to the sums, or instead of
    /// them if they are `fresh`. Rows of sums are `stride` apart. Only the first `columns` are wanted; what is in the others
    /// may be anything.
    ///
    /// # Safety
    /// `left` must have as many pairs of tiles to read.
    pub(crate) unsafe fn product(
        &self,
        left: Left,
        right: &[Tile],
        sums: &mut [f32],
        stride: usize,
        fresh: bool,
        columns: usize,
    ) {
        assert!(sums.len() >= 31 * stride + 32, "32 rows of sums");
        if right.len() < 2 {
            if fresh {
                let rows = sums.chunks_mut(stride).take(BLOCK);
                rows.for_each(|row| row[..BLOCK].fill(0.0));
            }
            return;
        }
        // SAFETY: the left tiles are the caller's promise; the right ones and the sums were checked; the unit is there.
        unsafe {
            match self.unit {
                Unit::Amx => amx::product(left, right, sums, stride, fresh),
                Unit::Pairs => {
                    registers::pairs::product(left, right, sums, stride, fresh, columns);
                }
                Unit::Singles => {
                    registers::singles::product(left, right, sums, stride, fresh, columns);
                }
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        if self.unit == Unit::Amx {
            amx::release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each unit that is here: numbers whose sums are exact, added to sums or instead of them, for a few columns or all.
    #[test]
    fn every_unit_adds_up() {
        every_unit_of_an_element_adds_up::<bf16>();
        every_unit_of_an_element_adds_up::<f32>();
    }

    fn every_unit_of_an_element_adds_up<T: Element>() {
        let number = |i: usize, seed: usize| ((i * 7919 + seed * 31) % 13) as f32 - 6.0;
        let (depth, stride) = (70_usize, 40);
        let steps = depth.div_ceil(T::DEPTH);
        let numbers = |seed: usize| (0..32 * depth).map(move |i| T::nearest(number(i, seed)));
        let (a, b): (Vec<T>, Vec<T>) = (numbers(1).collect(), numbers(2).collect());
        let (mut left, mut right) = (vec![Tile::ZERO; 2 * steps], vec![Tile::ZERO; 2 * steps]);
        pack::left(Matrix::new(&a, [32, depth], [depth, 1]), 0, &mut left);
        pack::right(Matrix::new(&b, [depth, 32], [32, 1]), 0, &mut right);
        let units = T::UNITS.iter().copied().filter(|unit| unit.available());
        for (unit, fresh, columns) in units.flat_map(|unit| {
            [
                (unit, true, 32),
                (unit, false, 32),
                (unit, true, 5),
                (unit, false, 16),
                (unit, false, 17),
            ]
        }) {
            let mut sums: Vec<f32> = (0..31 * stride + 32).map(|i| number(i, 3)).collect();
            let before = sums.clone();
            // SAFETY: as many pairs of each.
            unsafe {
                Tiles::of(unit).product(
                    Left::packed(&left),
                    &right,
                    &mut sums,
                    stride,
                    fresh,
                    columns,
                );
            }
            for i in 0..32 {
                for j in 0..columns {
                    let products =
                        (0..depth).map(|k| a[i * depth + k].wide() * b[k * 32 + j].wide());
                    let kept = if fresh { 0.0 } else { before[i * stride + j] };
                    let right = kept + products.sum::<f32>();
                    assert_eq!(
                        sums[i * stride + j],
                        right,
                        "{unit:?}, {fresh}, {columns}: {i}, {j}"
                    );
                }
                let gap = i * stride + 32..(i * stride + stride).min(sums.len());
                assert_eq!(
                    sums[gap.clone()],
                    before[gap],
                    "{unit:?} leaves what lies between rows"
                );
            }
        }
    }

    #[test]
    fn every_unit_for_bf16_takes_small_numbers_for_zeros() {
        let small = bf16::from_bits(0x0040);
        let pair = |number: bf16| u32::from(number.to_bits()) * 0x0001_0001;
        let (left, right) = (
            [Tile([[pair(small); 16]; 16]); 2],
            [Tile([[pair(bf16::ONE); 16]; 16]); 2],
        );
        for unit in bf16::UNITS.iter().copied().filter(|unit| unit.available()) {
            let mut sums = vec![1.0; 32 * 32];
            // SAFETY: a pair of each.
            unsafe {
                Tiles::of(unit).product(Left::packed(&left), &right, &mut sums, 32, true, 32)
            };
            assert!(sums.iter().all(|sum| *sum == 0.0), "{unit:?}");
        }
    }
}
