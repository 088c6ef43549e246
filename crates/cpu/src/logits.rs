//! Rows of logits: what log-probs need to know of them, and gradients by them.

use pulp::{Arch, Simd, WithSimd};

use crate::element::Number;
use crate::softmax::{LANES, exp};

/// The place of the first entry that equals `sought`.
#[must_use]
pub fn find(entries: &[i32], sought: i32) -> Option<usize> {
    struct Find<'a>(&'a [i32], i32);
    impl WithSimd for Find<'_> {
        type Output = Option<usize>;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> Option<usize> {
            let within = |entries: &[i32]| entries.iter().position(|it| *it == self.1);
            let (whole, rest) = self.0.as_chunks::<LANES>();
            // A whole block is compared at once, without looking for the first.
            let holds =
                |block: &[i32; LANES]| block.iter().fold(false, |any, it| any | (*it == self.1));
            match whole.iter().position(holds) {
                Some(block) => within(&whole[block]).map(|at| block * LANES + at),
                None => within(rest).map(|at| whole.len() * LANES + at),
            }
        }
    }
    Arch::new().dispatch(Find(entries, sought))
}

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

impl OnlineSums {
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
        let shift = self.move_to(logits);
        self.add(Arch::new().dispatch(Sums(logits, shift)));
    }

    /// Takes more logits in, and writes `e^{z − m}` of each over it, with `m` as [`Self::shift`] says afterwards.
    pub fn absorb_and_exponentiate(&mut self, logits: &mut [f32]) {
        let shift = self.move_to(logits);
        self.add(Arch::new().dispatch(SumsInPlace(logits, shift)));
    }

    /// The same sums with the shift that is right once these logits are in.
    fn move_to(&mut self, logits: &[f32]) -> f32 {
        let peak = Arch::new().dispatch(Peak(logits));
        let before = self.peak;
        // Of two numbers one of which is none, `max` returns the other.
        let none = before.is_nan() || peak.is_nan();
        self.peak = if none { f32::NAN } else { before.max(peak) };
        let by = before - self.shift();
        let moved = self.weighted + self.total * if by.is_finite() { by } else { 0.0 };
        self.total *= exp(by);
        self.weighted = moved * exp(by);
        self.shift()
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

struct SumsInPlace<'a>(&'a mut [f32], f32);

impl WithSimd for SumsInPlace<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [f32; 2] {
        let (mut total, mut weighted) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        let mut take = |block: &mut [f32]| {
            for ((total, weighted), z) in total.iter_mut().zip(&mut weighted).zip(block) {
                let (term, moment) = terms(*z, self.1);
                *total += term;
                *weighted += moment;
                *z = term;
            }
        };
        let (whole, rest) = self.0.as_chunks_mut::<LANES>();
        whole.iter_mut().for_each(|block| take(block));
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
        let (m, share) = (self.shift, self.share);
        match self.entropy {
            None => self.each(logits, target, to, |z| exp(z - m) * share),
            Some([mean, by]) => self.each(logits, target, to, |z| {
                let shifted = z - m;
                let term = exp(shifted);
                let spread = if term == 0.0 {
                    0.0
                } else {
                    term * (shifted - mean)
                };
                term * share + spread * by
            }),
        }
    }

    /// The same from `e^{z − m}` instead of `z`, without a cotangent of the entropy. `m` and so the share may differ from one
    /// part of a row to another.
    ///
    /// # Panics
    /// As [`Self::by_logits`].
    pub fn by_exponentials<T: Number>(&self, terms: &[f32], target: Option<usize>, to: &mut [T]) {
        self.each(terms, target, to, |term| term * self.share);
    }

    #[inline(always)]
    fn each<T: Number>(
        &self,
        values: &[f32],
        target: Option<usize>,
        to: &mut [T],
        expected: impl Fn(f32) -> f32,
    ) {
        let scale = self.scale;
        let to = &mut to[..values.len()];
        Arch::new().dispatch(Each {
            values,
            to: &mut *to,
            of: |value| -expected(value) * scale,
        });
        if let Some(at) = target {
            to[at] = T::nearest((self.logprob - expected(values[at])) * scale);
        }
    }
}

struct Each<'a, T, F> {
    values: &'a [f32],
    to: &'a mut [T],
    of: F,
}

impl<T: Number, F: Fn(f32) -> f32> WithSimd for Each<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (to, value) in self.to.iter_mut().zip(self.values) {
            *to = T::nearest((self.of)(*value));
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
            let mut sums = OnlineSums {
                peak: f32::NEG_INFINITY,
                total: 0.0,
                weighted: 0.0,
            };
            z.chunks(part).for_each(|part| sums.absorb(part));
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
    fn what_is_written_over_logits_are_their_terms() {
        let (mut terms, z) = (row(77), row(77));
        let start = OnlineSums {
            peak: 9.0,
            total: 2.0,
            weighted: -1.0,
        };
        let (mut one, mut other) = (start, start);
        one.absorb(&z);
        other.absorb_and_exponentiate(&mut terms);
        assert_eq!(one, other);
        assert!(
            z.iter()
                .zip(terms)
                .all(|(z, term)| term == exp(z - one.shift()))
        );
    }

    #[test]
    fn numbers_that_are_none_and_infinities_are_kept_in_mind() {
        let none = OnlineSums {
            peak: f32::NEG_INFINITY,
            total: 0.0,
            weighted: 0.0,
        };
        let of = |parts: &[&[f32]]| {
            let mut sums = none;
            parts.iter().for_each(|part| sums.absorb(part));
            sums
        };
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for parts in [[&[nan, 1.0][..], &[2.0]], [&[2.0], &[1.0, nan]]] {
            let sums = of(&parts);
            assert!(sums.peak.is_nan() && sums.total.is_nan(), "{sums:?}");
        }
        assert_eq!(of(&[&[-inf, -inf], &[-inf]]), none);
        let sums = of(&[&[-inf], &[-inf, 3.0]]);
        assert_eq!((sums.peak, sums.total, sums.weighted), (3.0, 1.0, 0.0));
        assert_eq!(of(&[&[1.0, inf]]).total, inf);
    }

    #[test]
    fn the_first_place_is_found_in_blocks_and_in_the_rest() {
        let entries: Vec<i32> = (0..70).map(|i| i % 40).collect();
        for sought in 0..40 {
            assert_eq!(find(&entries, sought), Some(sought as usize));
        }
        assert_eq!(find(&entries[..69], 40), None);
        assert_eq!(find(&[], 0), None);
        assert_eq!(find(&entries[35..70], 29), Some(34));
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
        let terms: Vec<f32> = z.iter().map(|z| exp(z - 6.0)).collect();
        alone.by_exponentials(&terms, Some(33), &mut to);
        close(&to, false);
    }
}
