//! Dot products of pairs in 512-bit registers (AVX512-BF16): `VDPBF16PS` adds the products of 16 pairs to 16 sums.

use super::{Left, Tile};

/// Whether this process may use them.
pub(super) fn available() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// As [`super::Tiles::product`], of at least one pair of right tiles.
///
/// # Safety
/// The unit must be [`available`], `left` must have as many pairs as `right`, and the sums 32 rows of `stride`, or as much of
/// the last as 32.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn product(
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
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rows<const ROWS: usize, const HALVES: usize>(
    mut row: *const u8,
    left: Left,
    right: &[Tile],
    sums: &mut [f32],
    stride: usize,
    fresh: bool,
) {
    use std::arch::x86_64::{
        __m512bh, __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_dpbf16_ps, _mm512_load_si512,
        _mm512_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
    };
    // SAFETY: registers of the same size, both of plain bits.
    let pairs = |bits: __m512i| unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) };
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
        for pair in 0..16 {
            let right: [__m512bh; HALVES] = std::array::from_fn(|half| {
                // SAFETY: a tile is 16 registers, and aligned like one.
                pairs(unsafe { _mm512_load_si512(right[half].0.as_ptr().add(32 * pair).cast()) })
            });
            for (r, found) in found.iter_mut().enumerate() {
                let two = row.wrapping_add(r * left.row + 4 * pair).cast::<i32>();
                // SAFETY: the caller's promise.
                let two = pairs(_mm512_set1_epi32(unsafe { two.read_unaligned() }));
                for (found, right) in found.iter_mut().zip(right) {
                    *found = _mm512_dpbf16_ps(*found, two, right);
                }
            }
        }
        for r in ROWS..2 * ROWS {
            // Rows that follow in memory are often read next, and only once: too many streams for the processor to foresee.
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
pub(super) unsafe fn product(_: Left, _: &[Tile], _: &mut [f32], _: usize, _: bool, _: usize) {}
