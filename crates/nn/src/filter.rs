//! Which entries of the vocabulary may be drawn: top-k, then top-p of what is left, then min-p. The sampler and the trainer's
//! head read it here.
//!
//! Entries of equal logits are kept or dropped together, so ties may keep more than `k`. A filter that no row uses costs
//! nothing. Nothing is sorted: the threshold of a filter is found bit by bit, exactly.
//!
//! Letters: `B` rows, of a sampler or tokens of the head, `V` vocabulary.

use ferrotune_graph::{DType, Tensor};

/// What is kept of a vocabulary, as a user says it. The default keeps everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilterSettings {
    /// Only the so many most likely tokens are kept; 0 for all.
    pub top_k: usize,
    /// Only the fewest tokens are kept that together have at least this share of the probability; 1 for all.
    pub top_p: f64,
    /// Only tokens are kept that are at least this share as likely as the most likely one; 0 for all.
    pub min_p: f64,
}

impl Default for FilterSettings {
    fn default() -> Self {
        Self {
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

impl FilterSettings {
    /// Whether everything is kept.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// The numbers of [`Filters`], in the order of its fields.
    ///
    /// # Panics
    /// When `top_p` is no share above 0, or `min_p` no share.
    #[track_caller]
    pub fn numbers(&self) -> [f32; 3] {
        let Self {
            top_k,
            top_p,
            min_p,
        } = *self;
        assert!(
            top_p > 0.0 && top_p <= 1.0 && (0.0..=1.0).contains(&min_p),
            "top_p = {top_p} and min_p = {min_p} are not shares of a probability"
        );
        let unless = |all: bool, number: f32| if all { f32::INFINITY } else { number };
        [
            unless(top_k == 0, top_k as f32),
            // The most likely token has a mass of 1 on the device: a share this small keeps only it.
            unless(top_p == 1.0, top_p.max(1e-9) as f32),
            min_p.ln() as f32,
        ]
    }
}

/// What each row keeps of its vocabulary, f32, one number a row.
#[derive(Clone, Debug)]
pub struct Filters {
    /// `k`; infinite for all.
    pub top_k: Tensor,
    /// The share of the probability to keep; infinite for all.
    pub top_p: Tensor,
    /// Logarithm of the least share of the largest probability; −∞ for all.
    pub min_p: Tensor,
}

impl Filters {
    /// Rows that keep everything, boolean, of the shape of the settings.
    pub fn off(&self) -> Tensor {
        let all = |it: &Tensor| it.is_finite().not();
        all(&self.top_k)
            .and(&all(&self.top_p))
            .and(&all(&self.min_p))
    }

    /// The least logit that each row keeps, f32 `[B]`, from logits f32 `[B,V]`; −∞ for all.
    ///
    /// # Source
    /// Fan, Lewis and Dauphin, "Hierarchical neural story generation" (2018), §5.4; Holtzman et al., "The curious case of
    /// neural text degeneration" (2019), §3.1; Nguyen et al., "Turning up the heat: min-p sampling" (2024), §3.
    #[track_caller]
    pub fn least(&self, logits_bv: &Tensor) -> Tensor {
        self.least_of_parts(logits_bv, &[])
    }

    /// The same where the devices along `axes` have one part `[B,V]` of the vocabulary each.
    #[track_caller]
    pub(crate) fn least_of_parts(&self, logits_bv: &Tensor, axes: &[&str]) -> Tensor {
        let z = logits_bv;
        let all = self.min_p.scalar_like(f64::NEG_INFINITY);
        let all = all.broadcast_to(&self.min_p.dims());
        let few = self.where_used(&[&self.top_k], axes, &all, || {
            threshold(&ordered(z), &z.ones_like(), &self.top_k, axes)
        });
        self.where_used(&[&self.top_p, &self.min_p], axes, &few, || {
            let peak = over(axes, z.max(&[1]), Tensor::all_reduce_max);
            let masses = (z - peak.expand(1)).exp();
            let masses = z.ge(&few.expand(1)).select(&masses, &masses.zeros_like());
            let likely = self.where_used(&[&self.top_p], axes, &all, || {
                let wanted = &self.top_p * over(axes, masses.sum(&[1]), Tensor::all_reduce);
                threshold(&ordered(z), &masses, &wanted, axes)
            });
            few.maximum(&likely).maximum(&(peak + &self.min_p))
        })
    }

    /// `threshold()` if any row has a finite setting, else what there is. Devices that have to exchange something in
    /// `threshold` do it always, since another may have to.
    fn where_used(
        &self,
        settings: &[&Tensor],
        axes: &[&str],
        otherwise: &Tensor,
        threshold: impl FnOnce() -> Tensor,
    ) -> Tensor {
        if !axes.is_empty() {
            return threshold();
        }
        let used = settings.iter().map(|it| it.is_finite().any(&[0]));
        let used = used.reduce(|a, b| a.or(&b)).expect("there is a setting");
        let g = otherwise.graph();
        g.cond(&used, || vec![threshold()], || vec![otherwise.clone()])
            .remove(0)
    }
}

/// `reduce` over the devices along `axes`, if there are any.
pub(crate) fn over(axes: &[&str], t: Tensor, reduce: fn(&Tensor, &[&str]) -> Tensor) -> Tensor {
    if axes.is_empty() { t } else { reduce(&t, axes) }
}

/// Keys u32 in the order of the numbers f32: all bits of negative numbers are turned, of others the sign.
fn ordered(z: &Tensor) -> Tensor {
    let bits = z.bitcast(DType::U32);
    let sign = bits.scalar_like(f64::from(1_u32 << 31));
    let negative = bits.ge(&sign);
    negative.select(&bits.not(), &bits.or(&sign))
}

/// The numbers behind keys; −∞ for the key 0, which no number has.
fn number(key: &Tensor) -> Tensor {
    let sign = key.scalar_like(f64::from(1_u32 << 31));
    let negative = key.lt(&sign);
    let number = negative
        .select(&key.not(), &key.xor(&sign))
        .bitcast(DType::F32);
    let none = number.scalar_like(f64::NEG_INFINITY);
    key.eq(&key.scalar_like(0.0)).select(&none, &number)
}

/// For each row the greatest number at or above which at least `wanted` of the weights lie; −∞ if there is none.
///
/// # Shapes
/// `keys` u32 `[B,V]`, `weights` f32 `[B,V]`, not negative, `wanted` f32 `[B]` → f32 `[B]`. The devices along `axes` have
/// one part of the vocabulary each.
fn threshold(keys: &Tensor, weights: &Tensor, wanted: &Tensor, axes: &[&str]) -> Tensor {
    let g = keys.graph();
    let none = g.full(0.0, DType::U32, &wanted.dims());
    let highest = g.scalar(f64::from(1_u32 << 31), DType::U32);
    let zero = g.scalar(0.0, DType::U32);
    let results = g.while_loop(
        vec![highest, none],
        |carried| carried[0].ne(&zero),
        |carried| {
            let [bit, found] = carried else {
                unreachable!("a bit and the threshold so far are carried")
            };
            let trial = found.or(bit);
            let above = keys.ge(&trial.expand(1));
            let weight = above.select(weights, &weights.scalar_like(0.0)).sum(&[1]);
            let weight = over(axes, weight, Tensor::all_reduce);
            let next = weight.ge(wanted).select(&trial, found);
            vec![bit.shift_right(&bit.scalar_like(1.0)), next]
        },
    );
    number(&results[1])
}
