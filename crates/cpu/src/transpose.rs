//! Squares of 16 × 16 numbers of 32 bits, transposed: what lies in a tile when an operand lies the other way.

/// Rows of numbers of 32 bits; as wide as a register, as many as a tile has.
pub(crate) type Square = [[u32; 16]; 16];

/// Rows become columns.
#[inline]
pub(crate) fn transpose(square: &mut Square) {
    #[cfg(target_arch = "x86_64")]
    if pulp::x86::V4::is_available() {
        // SAFETY: the processor has these vectors.
        return unsafe { in_registers(square) };
    }
    one_by_one(square);
}

/// The first columns of 32 × 32 sums, as rows of 32.
pub(crate) fn transpose_sums(sums: &[f32; 1024], to: &mut [f32; 1024], columns: usize) {
    #[cfg(target_arch = "x86_64")]
    if pulp::x86::V4::is_available() {
        #[target_feature(enable = "avx512f")]
        fn by_registers(sums: &[f32; 1024], to: &mut [f32; 1024], columns: usize) {
            by_squares(sums, to, columns, |square| in_registers(square));
        }
        // SAFETY: the processor has these vectors.
        return unsafe { by_registers(sums, to, columns) };
    }
    by_squares(sums, to, columns, one_by_one);
}

#[inline(always)]
fn by_squares(
    sums: &[f32; 1024],
    to: &mut [f32; 1024],
    columns: usize,
    transpose: impl Fn(&mut Square),
) {
    for column in (0..columns).step_by(16) {
        for row in [0, 16] {
            let mut square = Square::default();
            for (i, part) in square.iter_mut().enumerate() {
                let from = &sums[column..][32 * (row + i)..][..16];
                for (to, from) in part.iter_mut().zip(from) {
                    *to = from.to_bits();
                }
            }
            transpose(&mut square);
            for (i, part) in square.iter().enumerate() {
                let to = &mut to[row..][32 * (column + i)..][..16];
                for (to, from) in to.iter_mut().zip(part) {
                    *to = f32::from_bits(*from);
                }
            }
        }
    }
}

fn one_by_one(square: &mut Square) {
    let rows = *square;
    for (j, row) in square.iter_mut().enumerate() {
        *row = rows.map(|row| row[j]);
    }
}

/// Pairs of numbers change places between neighbouring rows, pairs of pairs between every second, then quarters of registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn in_registers(square: &mut Square) {
    use std::arch::x86_64::{
        __m512i, _mm512_shuffle_i32x4 as quarters, _mm512_unpackhi_epi32 as high_32,
        _mm512_unpackhi_epi64 as high_64, _mm512_unpacklo_epi32 as low_32,
        _mm512_unpacklo_epi64 as low_64,
    };
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let rows: [__m512i; 16] = pulp::cast(*square);
    // Of four rows from 4g on, quarter q of number 4g + c holds column 4q + c.
    let mut fours = rows;
    for (fours, rows) in fours.chunks_exact_mut(4).zip(rows.chunks_exact(4)) {
        let (a, b) = (low_32(rows[0], rows[1]), high_32(rows[0], rows[1]));
        let (c, d) = (low_32(rows[2], rows[3]), high_32(rows[2], rows[3]));
        fours.copy_from_slice(&[low_64(a, c), high_64(a, c), low_64(b, d), high_64(b, d)]);
    }
    let mut columns = rows;
    for c in 0..4 {
        let [first, second, third, fourth] = [0, 4, 8, 12].map(|g| fours[g + c]);
        let (a, b) = (
            quarters::<EVEN>(first, second),
            quarters::<EVEN>(third, fourth),
        );
        (columns[c], columns[8 + c]) = (quarters::<EVEN>(a, b), quarters::<ODD>(a, b));
        let (a, b) = (
            quarters::<ODD>(first, second),
            quarters::<ODD>(third, fourth),
        );
        (columns[4 + c], columns[12 + c]) = (quarters::<EVEN>(a, b), quarters::<ODD>(a, b));
    }
    *square = pulp::cast(columns);
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_become_columns() {
        let mut square = std::array::from_fn(|i| std::array::from_fn(|j| (16 * i + j) as u32));
        super::transpose(&mut square);
        for (i, row) in square.iter().enumerate() {
            for (j, found) in row.iter().enumerate() {
                assert_eq!(*found as usize, 16 * j + i);
            }
        }
    }
}
