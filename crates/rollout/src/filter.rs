//! Which entries of the vocabulary may be drawn: top-k, then top-p of what is left, then min-p.
//!
//! Entries of equal logits are kept or dropped together, so ties may keep more than `k`. A filter that no row uses costs
//! nothing. Nothing is sorted: the threshold of a filter is found bit by bit, exactly.
//!
//! Letters: `B` rows, `V` vocabulary.

use ferrotune_graph::{DType, Tensor};

/// What each row keeps, f32 `[B]` each.
pub(crate) struct Filters {
    /// `k`; infinite for all.
    pub(crate) top_k: Tensor,
    /// The share of the probability to keep; infinite for all.
    pub(crate) top_p: Tensor,
    /// Logarithm of the least share of the largest probability; −∞ for all.
    pub(crate) min_p: Tensor,
}

impl Filters {
    /// Rows that keep everything, boolean `[B]`.
    pub(crate) fn off(&self) -> Tensor {
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
    pub(crate) fn least(&self, logits_bv: &Tensor) -> Tensor {
        let z = logits_bv;
        let all = self.min_p.scalar_like(f64::NEG_INFINITY);
        let all = all.broadcast_to(&self.min_p.dims());
        let few = self.where_used(&[&self.top_k], &all, || {
            let counts = z.ones_like();
            threshold(&ordered(z), &counts, &self.top_k)
        });
        self.where_used(&[&self.top_p, &self.min_p], &few, || {
            let peak = z.max_keep(&[1]);
            let masses = (z - &peak).exp();
            let masses = z.ge(&few.expand(1)).select(&masses, &masses.zeros_like());
            let likely = self.where_used(&[&self.top_p], &all, || {
                let wanted = &self.top_p * masses.sum(&[1]);
                threshold(&ordered(z), &masses, &wanted)
            });
            let near = peak.reshape(&self.min_p.dims()) + &self.min_p;
            few.maximum(&likely).maximum(&near)
        })
    }

    /// `threshold()` if any row has a finite setting, else what there is.
    fn where_used(
        &self,
        settings: &[&Tensor],
        otherwise: &Tensor,
        threshold: impl FnOnce() -> Tensor,
    ) -> Tensor {
        let used = settings.iter().map(|it| it.is_finite().any(&[0]));
        let used = used.reduce(|a, b| a.or(&b)).expect("there is a setting");
        let g = otherwise.graph();
        g.cond(&used, || vec![threshold()], || vec![otherwise.clone()])
            .remove(0)
    }
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
/// `keys` u32 `[B,V]`, `weights` f32 `[B,V]`, not negative, `wanted` f32 `[B]` → f32 `[B]`.
fn threshold(keys: &Tensor, weights: &Tensor, wanted: &Tensor) -> Tensor {
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
            let next = weight.ge(wanted).select(&trial, found);
            vec![bit.shift_right(&bit.scalar_like(1.0)), next]
        },
    );
    number(&results[1])
}
