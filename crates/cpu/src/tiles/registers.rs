//! 512-bit registers: a word of a left row times 16 words of a right tile, added to 16 sums.

use super::{Left, Tile};

/// A unit: its name, what it needs of a processor, and the sums after another word.
macro_rules! unit {
    ($name:ident, [$($feature:tt),+], |$sums:ident, $left:ident, $right:ident| $step:expr) => {
        pub(super) mod $name {
            use super::*;
            #[cfg(target_arch = "x86_64")]
            use std::arch::x86_64::*;

            /// Whether this process may use it.
            pub(in super::super) fn available() -> bool {
                #[cfg(target_arch = "x86_64")]
                {
                    $(std::arch::is_x86_feature_detected!($feature))&&+
                }
                #[cfg(not(target_arch = "x86_64"))]
                {
                    false
                }
            }

            /// As [`Tiles::product`](super::super::Tiles::product), of at least one pair of right tiles.
            ///
            /// # Safety
            /// The unit must be [`available`], `left` must have as many pairs as `right`, and the sums 32 rows of `stride`, or
            /// as much of the last as 32.
            #[cfg(target_arch = "x86_64")]
            #[target_feature($(enable = $feature),+)]
            pub(in super::super) unsafe fn product(
                left: Left,
                right: &[Tile],
                sums: &mut [f32],
                stride: usize,
                fresh: bool,
                columns: usize,
            ) {
                let tiles = [left.first, left.second];
                for (half, tile) in tiles.into_iter().enumerate() {
                    let sums = &mut sums[16 * half * stride..];
                    // SAFETY: the caller's promise, for 16 rows.
                    unsafe {
                        if columns > 16 {
                            rows::<8, 2>(tile, left, right, sums, stride, fresh);
                            let tile = tile.wrapping_add(8 * left.row);
                            rows::<8, 2>(tile, left, right, &mut sums[8 * stride..], stride, fresh);
                        } else {
                            rows::<16, 1>(tile, left, right, sums, stride, fresh);
                        }
                    }
                }
            }

            /// The product of `ROWS` rows from `row` on, with the first `HALVES` of each pair of right tiles.
            ///
            /// # Safety
            /// As [`product`].
            #[cfg(target_arch = "x86_64")]
            #[inline]
            #[target_feature($(enable = $feature),+)]
            unsafe fn rows<const ROWS: usize, const HALVES: usize>(
                mut row: *const u8,
                left: Left,
                right: &[Tile],
                sums: &mut [f32],
                stride: usize,
                fresh: bool,
            ) {
                let to = sums.as_mut_ptr();
                let mut found = [[_mm512_setzero_ps(); HALVES]; ROWS];
                if !fresh {
                    for (r, found) in found.iter_mut().enumerate() {
                        for (half, found) in found.iter_mut().enumerate() {
                            // SAFETY: within the sums.
                            *found = unsafe { _mm512_loadu_ps(to.add(r * stride + 16 * half)) };
                        }
                    }
                }
                for right in right.as_chunks::<2>().0 {
                    for word in 0..16 {
                        let right: [__m512i; HALVES] = std::array::from_fn(|half| {
                            // SAFETY: a tile is 16 registers, and aligned like one.
                            unsafe { _mm512_load_si512(right[half].0[word].as_ptr().cast()) }
                        });
                        for (r, found) in found.iter_mut().enumerate() {
                            let left = row.wrapping_add(r * left.row + 4 * word).cast::<i32>();
                            // SAFETY: the caller's promise.
                            let $left = _mm512_set1_epi32(unsafe { left.read_unaligned() });
                            for ($sums, $right) in found.iter_mut().zip(right) {
                                *$sums = $step;
                            }
                        }
                    }
                    for r in ROWS..2 * ROWS {
                        // Rows that follow in memory are often read next, and only once: too many streams for the processor to
                        // foresee.
                        _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(r * left.row).cast());
                    }
                    row = row.wrapping_add(left.step);
                }
                for (r, found) in found.iter().enumerate() {
                    for (half, found) in found.iter().enumerate() {
                        // SAFETY: within the sums.
                        unsafe { _mm512_storeu_ps(to.add(r * stride + 16 * half), *found) };
                    }
                }
            }

            #[cfg(not(target_arch = "x86_64"))]
            pub(in super::super) unsafe fn product(
                _: Left,
                _: &[Tile],
                _: &mut [f32],
                _: usize,
                _: bool,
                _: usize,
            ) {
            }
        }
    };
}

unit!(pairs, ["avx512f", "avx512bf16"], |sums, left, right| {
    // SAFETY: registers of the same size, all of plain bits.
    let [left, right] =
        [left, right].map(|bits| unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) });
    _mm512_dpbf16_ps(*sums, left, right)
});

unit!(singles, ["avx512f"], |sums, left, right| {
    _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), *sums)
});
