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

/// The derivative of [`normalize`]: with `r = 1 / √(mean(row²) + eps)`, `dx = r · (d ⊙ weight − row · r² · mean(d ⊙ weight ⊙ row))`,
/// and `d ⊙ row · r` is added to the slope of the weight.
///
/// # Panics
/// When they differ in length.
pub fn normalize_back<T: Number>(
    row: &[T],
    weight: &[f32],
    d: &[T],
    eps: f32,
    dx: &mut [T],
    d_weight: &mut [f32],
) {
    let lengths = [weight.len(), d.len(), dx.len(), d_weight.len()];
    assert_eq!(lengths, [row.len(); 4], "a row of {}", row.len());
    Arch::new().dispatch(NormalizeBack {
        row,
        weight,
        d,
        eps,
        dx,
        d_weight,
    });
}

struct NormalizeBack<'a, T> {
    row: &'a [T],
    weight: &'a [f32],
    d: &'a [T],
    eps: f32,
    dx: &'a mut [T],
    d_weight: &'a mut [f32],
}

impl<T: Number> WithSimd for NormalizeBack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let mut sums = [[0.0_f32; LANES]; 2];
        let (rows, row) = self.row.as_chunks::<LANES>();
        let (weights, weight) = self.weight.as_chunks::<LANES>();
        let (slopes, slope) = self.d.as_chunks::<LANES>();
        for ((row, weight), slope) in rows.iter().zip(weights).zip(slopes) {
            add_products(&mut sums, row, weight, slope);
        }
        add_products(&mut sums, row, weight, slope);
        let count = self.row.len() as f32;
        let [squares, along] = sums.map(|sums| sums.iter().sum::<f32>() / count);
        let scale = (squares + self.eps).sqrt().recip();
        let pull = along * scale * scale;
        let given = self.row.iter().zip(self.weight).zip(self.d);
        let slopes = self.dx.iter_mut().zip(self.d_weight);
        for ((dx, d_weight), ((x, weight), d)) in slopes.zip(given) {
            let (x, d) = (x.wide(), d.wide());
            *dx = T::nearest(scale * (d * weight - x * pull));
            *d_weight += d * x * scale;
        }
    }
}

/// Adds the squares of numbers, and their products with weights and slopes.
#[inline(always)]
fn add_products<T: Number>(sums: &mut [[f32; LANES]; 2], row: &[T], weight: &[f32], d: &[T]) {
    let [squares, along] = sums;
    let given = row.iter().zip(weight).zip(d);
    for ((squares, along), ((x, weight), d)) in squares.iter_mut().zip(along).zip(given) {
        let x = x.wide();
        *squares += x * x;
        *along += x * weight * d.wide();
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

/// The derivative of [`gate_with_silu`], f32 until it is rounded: with `σ = 1 / (1 + e^{−gate})`,
/// `d ⊙ up ⊙ (σ + gate · σ · (1 − σ))` of the gate and `d ⊙ gate · σ` of what it lets through.
///
/// # Panics
/// When they differ in length.
pub fn gate_back<T: Number>(gate: &[T], up: &[T], d: &[T], d_gate: &mut [T], d_up: &mut [T]) {
    let lengths = [up.len(), d.len(), d_gate.len(), d_up.len()];
    assert_eq!(lengths, [gate.len(); 4], "{} numbers", gate.len());
    Arch::new().dispatch(GateBack {
        gate,
        up,
        d,
        d_gate,
        d_up,
    });
}

struct GateBack<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    d: &'a [T],
    d_gate: &'a mut [T],
    d_up: &'a mut [T],
}

impl<T: Number> WithSimd for GateBack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let given = self.gate.iter().zip(self.up).zip(self.d);
        let slopes = self.d_gate.iter_mut().zip(self.d_up);
        for ((d_gate, d_up), ((gate, up), d)) in slopes.zip(given) {
            let (x, d) = (gate.wide(), d.wide());
            let open = 1.0 / (1.0 + exp(-x));
            let silu = x * open;
            *d_gate = T::nearest(d * up.wide() * (open + silu * (1.0 - open)));
            *d_up = T::nearest(d * silu);
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

    #[test]
    fn a_norm_s_derivative_is_that_of_float64() {
        for count in [1, 31, 33, 576] {
            let [row, weight, d] = [5, 6, 7].map(|seed| numbers(count, seed));
            let wide = |it: &[f32], i: usize| f64::from(it[i]);
            let mean = |f: &dyn Fn(usize) -> f64| (0..count).map(f).sum::<f64>() / count as f64;
            let scale = (mean(&|i| wide(&row, i).powi(2)) + 1e-5).sqrt().recip();
            let along = mean(&|i| wide(&d, i) * wide(&weight, i) * wide(&row, i));
            let (mut dx, mut d_weight) = (vec![0.0; count], vec![1.0; count]);
            normalize_back(&row, &weight, &d, 1e-5, &mut dx, &mut d_weight);
            for i in 0..count {
                let slope = wide(&d, i) * wide(&weight, i);
                let right = scale * (slope - wide(&row, i) * scale * scale * along);
                assert!((wide(&dx, i) - right).abs() <= 3e-6 * (1.0 + slope.abs() * scale));
                let right = 1.0 + wide(&d, i) * wide(&row, i) * scale;
                assert!((wide(&d_weight, i) - right).abs() <= 1e-5);
            }
        }
    }

    #[test]
    fn a_gate_s_derivative_is_that_of_float64() {
        let [mut gate, up, d] = [8, 9, 10].map(|seed| numbers(77, seed));
        (gate[5], gate[6]) = (200.0, -200.0);
        let (mut d_gate, mut d_up) = (vec![0.0; 77], vec![0.0; 77]);
        gate_back(&gate, &up, &d, &mut d_gate, &mut d_up);
        for i in 0..77 {
            let [x, up, d] = [&gate, &up, &d].map(|it| f64::from(it[i]));
            let open = 1.0 / (1.0 + (-x).exp());
            let right = [d * up * (open + x * open * (1.0 - open)), d * x * open];
            for (found, right) in [d_gate[i], d_up[i]].into_iter().zip(right) {
                let bound = 3e-6 * right.abs().max(1e-1);
                assert!((f64::from(found) - right).abs() <= bound, "{x}: {found}");
            }
        }
    }
}
