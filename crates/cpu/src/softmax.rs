//! Rows of scores and their exponentials.

use pulp::{Arch, Simd, WithSimd};

use crate::element::Number;

/// Numbers that are summed side by side; a row is as long as a multiple of this.
pub(crate) const LANES: usize = 32;

/// The largest of some numbers; −∞ of none.
#[must_use]
pub fn largest(row: &[f32]) -> f32 {
    struct Largest<'a>(&'a [f32]);
    impl WithSimd for Largest<'_> {
        type Output = f32;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> f32 {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            let (whole, rest) = self.0.as_chunks::<LANES>();
            for chunk in whole {
                for (lane, value) in lanes.iter_mut().zip(chunk) {
                    *lane = if *value > *lane { *value } else { *lane };
                }
            }
            lanes
                .iter()
                .chain(rest)
                .copied()
                .fold(f32::NEG_INFINITY, f32::max)
        }
    }
    Arch::new().dispatch(Largest(row))
}

/// `Σ e^{row[j] − shift}`; not a number if any of them is none.
#[must_use]
pub fn exponential_sum(row: &[f32], shift: f32) -> f32 {
    struct Sum<'a>(&'a [f32], f32);
    impl WithSimd for Sum<'_> {
        type Output = f32;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> f32 {
            let mut sums = [0.0_f32; LANES];
            let (whole, rest) = self.0.as_chunks::<LANES>();
            for chunk in whole {
                for (sum, value) in sums.iter_mut().zip(chunk) {
                    *sum += exp(value - self.1);
                }
            }
            for (sum, value) in sums.iter_mut().zip(rest) {
                *sum += exp(value - self.1);
            }
            sums.iter().sum()
        }
    }
    Arch::new().dispatch(Sum(row, shift))
}

/// `to[j] = e^{scale·row[j] − shift}`, rounded to the element type, for the first `visible` numbers; zero for the others.
/// Returns the sum of what was written. Numbers are summed in an order that does not depend on how many zeros follow.
///
/// # Panics
/// When the slices differ in length or are no whole blocks of 32.
pub fn exponentials<T: Number>(
    row: &[f32],
    scale: f32,
    shift: f32,
    visible: usize,
    to: &mut [T],
) -> f32 {
    assert!(
        row.len() == to.len() && row.len().is_multiple_of(LANES),
        "whole blocks of scores"
    );
    Arch::new().dispatch(Exponentials {
        row,
        scale,
        shift,
        visible,
        to,
    })
}

struct Exponentials<'a, T> {
    row: &'a [f32],
    scale: f32,
    shift: f32,
    visible: usize,
    to: &'a mut [T],
}

impl<T: Number> WithSimd for Exponentials<'_, T> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let mut sums = [0.0_f32; LANES];
        let rows = self.row.as_chunks::<LANES>().0;
        let to = self.to.as_chunks_mut::<LANES>().0;
        for (number, (row, to)) in rows.iter().zip(to).enumerate() {
            let visible = self.visible.saturating_sub(number * LANES);
            if visible == 0 {
                to.fill(T::nearest(0.0));
                continue;
            }
            let mut values = [0.0_f32; LANES];
            for (value, score) in values.iter_mut().zip(row) {
                *value = exp(score.mul_add(self.scale, -self.shift));
            }
            if visible < LANES {
                values[visible..].fill(0.0);
            }
            for ((to, value), sum) in to.iter_mut().zip(values).zip(&mut sums) {
                *to = T::nearest(value);
                *sum += to.wide();
            }
        }
        sums.iter().sum()
    }
}

/// The exponential function to 1 ulp or so, without branches: zero below −87, infinite above 89.
///
/// `e^x = 2^n · e^r` with `n` the nearest whole number to `x / ln 2` and a polynomial for `|r| ≤ ln 2 / 2`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2²³: adding it leaves whole numbers in the low bits.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_145_75, x);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let p = 1.987_569_1e-4_f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let p = (p * r).mul_add(r, r) + 1.0;
    let power = shifted.to_bits().wrapping_shl(23);
    let result = f32::from_bits(p.to_bits().wrapping_add(power));
    let result = if x < -87.0 { 0.0 } else { result };
    let result = if x > 88.7 { f32::INFINITY } else { result };
    if x.is_nan() { x } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_right_to_two_units_in_the_last_place() {
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let (found, right) = (f64::from(exp(x)), f64::from(x).exp());
            assert!(
                (found - right).abs() <= 2.4e-7 * right,
                "{x}: {found} for {right}"
            );
        }
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn zeros_that_follow_change_no_bit_of_the_sum() {
        let row: Vec<f32> = (0..128).map(|i| ((i * 37) % 19) as f32 * 0.3).collect();
        let mut to = vec![0.0_f32; 128];
        let whole = exponentials(&row, 0.7, 1.0, 45, &mut to);
        assert!(to[45..].iter().all(|w| *w == 0.0) && to[..45].iter().all(|w| *w > 0.0));
        let short = exponentials(&row[..64], 0.7, 1.0, 45, &mut to[..64]);
        assert_eq!(whole.to_bits(), short.to_bits());
    }
}
