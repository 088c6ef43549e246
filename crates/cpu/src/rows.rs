//! What is done to each row of activations between products: norms, rotations, gates.
//!
//! Numbers are rounded where XLA rounds them when it is given the same as operations of the element type, so that a token has the
//! same numbers either way.

use pulp::{Arch, Simd, WithSimd};

use crate::element::Number;
use crate::softmax::exp;

/// Numbers that are summed side by side.
const LANES: usize = 32;

/// `to = weight · row / √(mean(row²) + eps)`.
///
/// # Panics
/// When the three differ in length.
pub fn normalize<T: Number>(row: &[T], weight: &[f32], eps: f32, to: &mut [T]) {
    assert!(
        row.len() == weight.len() && row.len() == to.len(),
        "a row of {}, weights of {}, a result of {}",
        row.len(),
        weight.len(),
        to.len()
    );
    Arch::new().dispatch(Normalize {
        row,
        weight,
        eps,
        to,
    });
}

struct Normalize<'a, T> {
    row: &'a [T],
    weight: &'a [f32],
    eps: f32,
    to: &'a mut [T],
}

impl<T: Number> WithSimd for Normalize<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let mut sums = [0.0_f32; LANES];
        let (whole, rest) = self.row.as_chunks::<LANES>();
        for chunk in whole {
            for (sum, x) in sums.iter_mut().zip(chunk) {
                *sum = x.wide().mul_add(x.wide(), *sum);
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum = x.wide().mul_add(x.wide(), *sum);
        }
        let mean = sums.iter().sum::<f32>() / self.row.len() as f32;
        let scale = (mean + self.eps).sqrt().recip();
        let pairs = self.row.iter().zip(self.weight);
        for (to, (x, weight)) in self.to.iter_mut().zip(pairs) {
            *to = T::nearest(x.wide() * scale * weight);
        }
    }
}

/// Turns the front of a head by angles: element `i` of the first half of the turning ones pairs with element `i` of the second.
///
/// # Panics
/// When there are not as many cosines as sines, or more than half as many as elements.
pub fn rotate<T: Number>(head: &mut [T], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    assert!(
        sin.len() == half && 2 * half <= head.len(),
        "a head of {} turned by {half} angles",
        head.len()
    );
    let (first, rest) = head.split_at_mut(half);
    let pairs = first.iter_mut().zip(&mut rest[..half]);
    for ((a, b), (cos, sin)) in pairs.zip(cos.iter().zip(sin)) {
        let (x, y) = (a.wide(), b.wide());
        *a = T::nearest(x * cos - y * sin);
        *b = T::nearest(y * cos + x * sin);
    }
}

/// `gate = silu(gate) ⊙ up`, with `silu(x) = x / (1 + e^{−x})`; the quotient 1 / (1 + e^{−x}) and both products are rounded.
///
/// # Panics
/// When they differ in length.
pub fn gate_with_silu<T: Number>(gate: &mut [T], up: &[T]) {
    assert_eq!(gate.len(), up.len(), "a gate for each number");
    Arch::new().dispatch(Gate { gate, up });
}

struct Gate<'a, T> {
    gate: &'a mut [T],
    up: &'a [T],
}

impl<T: Number> WithSimd for Gate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            let x = gate.wide();
            let open = T::nearest(1.0 / (1.0 + exp(-x)));
            let silu = T::nearest(x * open.wide());
            *gate = T::nearest(silu.wide() * up.wide());
        }
    }
}

/// `row += more`, rounded.
///
/// # Panics
/// When they differ in length.
pub fn add<T: Number>(row: &mut [T], more: &[T]) {
    assert_eq!(row.len(), more.len(), "rows that are added");
    for (x, more) in row.iter_mut().zip(more) {
        *x = T::nearest(x.wide() + more.wide());
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 / 400.0 - 2.5;
        (0..count).map(number).collect()
    }

    #[test]
    fn a_norm_is_that_of_float64() {
        for count in [1, 31, 32, 33, 576] {
            let (row, weight) = (numbers(count, 1), numbers(count, 2));
            let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
            let scale = 1.0 / (squares / count as f64 + 1e-5).sqrt();
            let mut to = vec![0.0; count];
            normalize(&row, &weight, 1e-5, &mut to);
            let mut narrow = vec![bf16::ZERO; count];
            let row16: Vec<bf16> = row.iter().map(|x| bf16::nearest(*x)).collect();
            normalize(&row16, &weight, 1e-5, &mut narrow);
            for i in 0..count {
                let right = f64::from(row[i]) * scale * f64::from(weight[i]);
                assert!((f64::from(to[i]) - right).abs() <= 1e-6 * right.abs());
                assert!((f64::from(narrow[i].wide()) - right).abs() <= 2e-2 * right.abs());
            }
        }
    }

    #[test]
    fn a_rotation_turns_pairs_of_halves_and_leaves_the_rest() {
        let mut head = [1.0_f32, 2.0, 3.0, 4.0, 5.0];
        let (cos, sin) = ([0.6, 0.0], [0.8, 1.0]);
        rotate(&mut head, &cos, &sin);
        let right = [0.6 - 2.4, -4.0, 1.8 + 0.8, 2.0, 5.0];
        for (found, right) in head.iter().zip(right) {
            assert!((found - right).abs() < 1e-6, "{head:?}");
        }
    }

    #[test]
    fn a_gate_is_that_of_float64() {
        let (mut gate, up) = (numbers(77, 3), numbers(77, 4));
        gate[5] = 200.0;
        gate[6] = -200.0;
        let before = gate.clone();
        gate_with_silu(&mut gate, &up);
        for ((found, x), up) in gate.iter().zip(&before).zip(&up) {
            let x = f64::from(*x);
            let right = x / (1.0 + (-x).exp()) * f64::from(*up);
            assert!(
                (f64::from(*found) - right).abs() <= 1e-6 * right.abs().max(1e-3),
                "{x}: {found}"
            );
        }
    }
}
