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

    /// Logits f32 `[B,V]`, with −∞ for the entries that may not be drawn.
    ///
    /// # Source
    /// Fan, Lewis and Dauphin, "Hierarchical neural story generation" (2018), §5.4; Holtzman et al., "The curious case of
    /// neural text degeneration" (2019), §3.1; Nguyen et al., "Turning up the heat: min-p sampling" (2024), §3.
    pub(crate) fn apply(&self, logits_bv: &Tensor) -> Tensor {
        let few = self.where_used(&self.top_k, logits_bv, |z| {
            let keys = ordered(z);
            let counts = z.ones_like();
            let least = threshold(&keys, &counts, &self.top_k);
            drop_unless(z, &keys.ge(&least.expand(1)))
        });
        let likely = self.where_used(&self.top_p, &few, |z| {
            let keys = ordered(z);
            let masses = (z - z.max_keep(&[1])).exp();
            let wanted = &self.top_p * masses.sum(&[1]);
            let least = threshold(&keys, &masses, &wanted);
            drop_unless(z, &keys.ge(&least.expand(1)))
        });
        self.where_used(&self.min_p, &likely, |z| {
            drop_unless(z, &(z - z.max_keep(&[1])).ge(&self.min_p.expand(1)))
        })
    }

    /// `filter(z)` if any row has a finite `setting`.
    fn where_used(
        &self,
        setting: &Tensor,
        z: &Tensor,
        filter: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let used = setting.is_finite().any(&[0]);
        let g = z.graph();
        g.cond(&used, || vec![filter(z)], || vec![z.clone()])
            .remove(0)
    }
}

fn drop_unless(z: &Tensor, keep: &Tensor) -> Tensor {
    keep.select(z, &z.scalar_like(f64::NEG_INFINITY))
}

/// Keys u32 in the order of the numbers f32: all bits of negative numbers are turned, of others the sign.
fn ordered(z: &Tensor) -> Tensor {
    let bits = z.bitcast(DType::U32);
    let sign = bits.scalar_like(f64::from(1_u32 << 31));
    let negative = bits.ge(&sign);
    negative.select(&bits.not(), &bits.or(&sign))
}

/// For each row the greatest key at or above which at least `wanted` of the weights lie; 0 if there is none.
///
/// # Shapes
/// `keys` u32 `[B,V]`, `weights` f32 `[B,V]`, not negative, `wanted` f32 `[B]` → u32 `[B]`.
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
    results[1].clone()
}
