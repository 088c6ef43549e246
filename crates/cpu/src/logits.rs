//! Rows of logits: what log-probs need to know of them, and gradients by them.

use pulp::{Arch, Simd, WithSimd};

use crate::element::Number;
use crate::softmax::{LANES, exp};

/// What is known of a row of logits `z` after some of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnlineSums {
    /// The largest; not a number if any is none.
    pub peak: f32,
    /// `Σ e^{z − m}`, with `m` the peak where it is finite, else 0.
    pub total: f32,
    /// `Σ e^{z − m}·(z − m)`; a logit of −∞ adds nothing.
    pub weighted: f32,
}

/// Not a number if either is none.
fn largest_of(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else {
        a.max(b)
    }
}

impl OnlineSums {
    /// Of no logits.
    pub const NONE: Self = Self {
        peak: f32::NEG_INFINITY,
        total: 0.0,
        weighted: 0.0,
    };

    /// What logits are shifted by.
    #[must_use]
    pub fn shift(&self) -> f32 {
        if self.peak.is_finite() {
            self.peak
        } else {
            0.0
        }
    }

    /// Takes more logits in.
    ///
    /// # Source
    /// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3.
    pub fn absorb(&mut self, logits: &[f32]) {
        self.rise_to(logits);
        self.add(Arch::new().dispatch(Sums(logits, self.shift())));
    }

    fn rise_to(&mut self, logits: &[f32]) {
        let peak = Arch::new().dispatch(Peak(logits));
        self.move_to(largest_of(self.peak, peak));
    }

    /// Takes in what is known of other logits.
    pub fn join(&mut self, mut other: Self) {
        let peak = largest_of(self.peak, other.peak);
        self.move_to(peak);
        other.move_to(peak);
        self.add([other.total, other.weighted]);
    }

    /// The same sums with another peak, not below this one.
    fn move_to(&mut self, peak: f32) {
        let before = std::mem::replace(&mut self.peak, peak);
        let by = before - self.shift();
        let moved = self.weighted + self.total * if by.is_finite() { by } else { 0.0 };
        let factor = exp(by);
        self.total *= factor;
        self.weighted = moved * factor;
    }

    fn add(&mut self, [total, weighted]: [f32; 2]) {
        self.total += total;
        self.weighted += weighted;
    }
}

/// The largest of some logits; not a number if any is none.
struct Peak<'a>(&'a [f32]);

impl WithSimd for Peak<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f32 {
        let (mut lanes, mut none) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
        let mut take = |block: &[f32]| {
            for ((lane, none), z) in lanes.iter_mut().zip(&mut none).zip(block) {
                *lane = if *z > *lane { *z } else { *lane };
                *none |= z.is_nan();
            }
        };
        let (whole, rest) = self.0.as_chunks::<LANES>();
        whole.iter().for_each(|block| take(block));
        take(rest);
        if none.contains(&true) {
            return f32::NAN;
        }
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// What a logit adds to the sums: `e^{z − m}`, and that times `z − m`.
#[inline(always)]
fn terms(z: f32, shift: f32) -> (f32, f32) {
    let shifted = z - shift;
    let term = exp(shifted);
    (term, if term == 0.0 { 0.0 } else { term * shifted })
}

struct Sums<'a>(&'a [f32], f32);

impl WithSimd for Sums<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f32; 2] {
        let (mut total, mut weighted) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        let mut take = |block: &[f32]| {
            for ((total, weighted), z) in total.iter_mut().zip(&mut weighted).zip(block) {
                let (term, moment) = terms(*z, self.1);
                *total += term;
                *weighted += moment;
            }
        };
        let (whole, rest) = self.0.as_chunks::<LANES>();
        whole.iter().for_each(|block| take(block));
        take(rest);
        [total.iter().sum(), weighted.iter().sum()]
    }
}

/// What the gradient by the logits of a row is made of.
#[derive(Clone, Copy, Debug)]
pub struct LogitSlope {
    /// What logits are shifted by.
    pub shift: f32,
    /// The cotangent of the log-prob, `g`.
    pub logprob: f32,
    /// `g / total`.
    pub share: f32,
    /// The mean of `z − m`, and the cotangent of the entropy over the total, if it has one.
    pub entropy: Option<[f32; 2]>,
    /// What the gradient is multiplied by in the end.
    pub scale: f32,
}

impl LogitSlope {
    /// `to[j] = scale·(g·hit − e^{z − m}·(share + h·(z − m − mean)))`, where `hit` is 1 at the place of the target, else 0.
    ///
    /// # Panics
    /// When `to` is shorter than `logits`, or the target lies outside.
    pub fn by_logits<T: Number>(&self, logits: &[f32], target: Option<usize>, to: &mut [T]) {
        let to = &mut to[..logits.len()];
        Arch::new().dispatch(Slope {
            of: *self,
            logits,
            to: &mut *to,
        });
        if let Some(at) = target {
            to[at] = T::nearest((self.logprob - self.expected(logits[at])) * self.scale);
        }
    }

    /// What is taken from `g·hit`.
    #[inline(always)]
    fn expected(&self, z: f32) -> f32 {
        let shifted = z - self.shift;
        let term = exp(shifted);
        match self.entropy {
            None => term * self.share,
            Some([mean, by]) => {
                let moment = term * (shifted - mean);
                term * self.share + if term == 0.0 { 0.0 } else { moment } * by
            }
        }
    }
}

struct Slope<'a, T> {
    of: LogitSlope,
    logits: &'a [f32],
    to: &'a mut [T],
}

impl<T: Number> WithSimd for Slope<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let of = self.of;
        let (whole, rest) = self.logits.as_chunks::<LANES>();
        let (to_whole, to_rest) = self.to.as_chunks_mut::<LANES>();
        for (to, logits) in to_whole.iter_mut().zip(whole) {
            let mut block = [0.0_f32; LANES];
            for (block, z) in block.iter_mut().zip(logits) {
                *block = -of.expected(*z) * of.scale;
            }
            for (to, value) in to.iter_mut().zip(block) {
                *to = T::nearest(value);
            }
        }
        for (to, z) in to_rest.iter_mut().zip(rest) {
            *to = T::nearest(-of.expected(*z) * of.scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 37) % 101) as f32 * 0.13 - 6.0)
            .collect()
    }

    #[test]
    fn sums_of_parts_are_those_of_the_whole() {
        let z = row(1000);
        let wide: Vec<f64> = z.iter().map(|z| f64::from(*z)).collect();
        let peak = wide.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = wide.iter().map(|z| (z - peak).exp()).sum();
        let weighted: f64 = wide.iter().map(|z| (z - peak).exp() * (z - peak)).sum();
        for part in [1, 31, 32, 33, 500, 1000] {
            let (mut sums, mut joined) = (OnlineSums::NONE, OnlineSums::NONE);
            for part in z.chunks(part) {
                sums.absorb(part);
                let mut alone = OnlineSums::NONE;
                alone.absorb(part);
                joined.join(alone);
            }
            assert!((joined.total / sums.total - 1.0).abs() < 1e-6, "{joined:?}");
            assert!(
                (joined.weighted / sums.weighted - 1.0).abs() < 1e-6,
                "{joined:?}"
            );
            assert_eq!(f64::from(sums.peak), f64::from(peak as f32));
            assert!(
                (f64::from(sums.total) / total - 1.0).abs() < 1e-6,
                "{sums:?}"
            );
            assert!(
                (f64::from(sums.weighted) / weighted - 1.0).abs() < 1e-6,
                "{sums:?}"
            );
        }
    }

    #[test]
    fn numbers_that_are_none_and_infinities_are_kept_in_mind() {
        let of = |parts: &[&[f32]]| {
            let mut sums = OnlineSums::NONE;
            parts.iter().for_each(|part| sums.absorb(part));
            sums
        };
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for parts in [[&[nan, 1.0][..], &[2.0]], [&[2.0], &[1.0, nan]]] {
            let sums = of(&parts);
            assert!(sums.peak.is_nan() && sums.total.is_nan(), "{sums:?}");
        }
        assert_eq!(of(&[&[-inf, -inf], &[-inf]]), OnlineSums::NONE);
        let sums = of(&[&[-inf], &[-inf, 3.0]]);
        assert_eq!((sums.peak, sums.total, sums.weighted), (3.0, 1.0, 0.0));
        assert_eq!(of(&[&[1.0, inf]]).total, inf);
    }

    #[test]
    fn slopes_follow_their_formula() {
        let z = row(45);
        let slope = LogitSlope {
            shift: 6.0,
            logprob: 0.7,
            share: 0.02,
            entropy: Some([-3.0, 0.3]),
            scale: 1.25,
        };
        let formula = |j: usize, entropy: bool| {
            let shifted = f64::from(z[j]) - 6.0;
            let hit = if j == 33 { 0.7 } else { 0.0 };
            let by = if entropy { 0.3 * (shifted + 3.0) } else { 0.0 };
            1.25 * (hit - shifted.exp() * (0.02 + by))
        };
        let close = |found: &[f32], entropy: bool| {
            let near =
                |(j, found): (usize, &f32)| (f64::from(*found) - formula(j, entropy)).abs() < 2e-6;
            assert!(found.iter().enumerate().all(near), "{found:?}");
        };
        let mut to = vec![0.0_f32; 45];
        slope.by_logits(&z, Some(33), &mut to);
        close(&to, true);
        let alone = LogitSlope {
            entropy: None,
            ..slope
        };
        alone.by_logits(&z, Some(33), &mut to);
        close(&to, false);
    }
}
