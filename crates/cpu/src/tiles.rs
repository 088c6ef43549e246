//! Products of bf16 tiles, summed in f32, on the units of a processor that are made for them.
//!
//! A tile of the left operand holds 16 rows of 32 elements; one of the right operand 16 pairs of rows for 16 columns, the
//! two elements of a pair side by side. The sums of a pair of left tiles and a pair of right ones are 32 × 32 f32.
//!
//! Every unit goes over what is summed in one order, two elements at a time, and treats subnormal numbers as zeros.

mod amx;
mod dot;

use std::sync::OnceLock;

/// Rows or columns of a pair of tiles, and elements that one step sums over.
pub(crate) const BLOCK: usize = 32;

/// 16 × 32 elements of an operand, 1 KiB.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Tile(pub(crate) [u16; 512]);

impl Tile {
    pub(crate) const ZERO: Self = Self([0; 512]);
}

/// What multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    /// The tile registers of Intel's processors.
    Amx,
    /// Dot products of pairs in 512-bit registers: AVX512-BF16, of AMD's too.
    Dot,
}

impl Unit {
    /// From the fastest on.
    const ALL: [Self; 2] = [Self::Amx, Self::Dot];

    /// Whether this process may use it.
    fn available(self) -> bool {
        match self {
            Self::Amx => amx::available(),
            Self::Dot => dot::available(),
        }
    }

    fn best() -> Option<Self> {
        static BEST: OnceLock<Option<Unit>> = OnceLock::new();
        *BEST.get_or_init(|| Self::ALL.into_iter().find(|unit| unit.available()))
    }
}

/// Whether this process may multiply tiles.
pub(crate) fn available() -> bool {
    Unit::best().is_some()
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
    /// When the process may not multiply tiles.
    pub(crate) fn configure() -> Self {
        Self::of(Unit::best().expect("the process may multiply tiles"))
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
                Unit::Dot => dot::product(left, right, sums, stride, fresh, columns),
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
    use crate::{Matrix, pack};
    use half::bf16;

    /// Each unit that is here: numbers whose sums are exact, added to sums or instead of them, for a few columns or all.
    #[test]
    fn every_unit_adds_up() {
        let number = |i: usize, seed: usize| ((i * 7919 + seed * 31) % 13) as f32 - 6.0;
        let (depth, stride) = (70, 40);
        let a: Vec<bf16> = (0..32 * depth)
            .map(|i| bf16::from_f32(number(i, 1)))
            .collect();
        let b: Vec<bf16> = (0..depth * 32)
            .map(|i| bf16::from_f32(number(i, 2)))
            .collect();
        let (mut left, mut right) = ([Tile::ZERO; 6], [Tile::ZERO; 6]);
        pack::left(Matrix::new(&a, [32, depth], [depth, 1]), 0, &mut left);
        pack::right(Matrix::new(&b, [depth, 32], [32, 1]), 0, &mut right);
        let units = Unit::ALL.into_iter().filter(|unit| unit.available());
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
                        (0..depth).map(|k| a[i * depth + k].to_f32() * b[k * 32 + j].to_f32());
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
    fn every_unit_takes_small_numbers_for_zeros() {
        let small = bf16::from_bits(0x0040);
        let (left, right) = (
            [Tile([small.to_bits(); 512]); 2],
            [Tile([bf16::ONE.to_bits(); 512]); 2],
        );
        for unit in Unit::ALL.into_iter().filter(|unit| unit.available()) {
            let mut sums = vec![1.0; 32 * 32];
            // SAFETY: a pair of each.
            unsafe {
                Tiles::of(unit).product(Left::packed(&left), &right, &mut sums, 32, true, 32)
            };
            assert!(sums.iter().all(|sum| *sum == 0.0), "{unit:?}");
        }
    }
}
