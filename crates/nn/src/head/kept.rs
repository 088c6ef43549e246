//! What a sampler's filters would leave of each token's distribution.

use ferrotune_graph::{DType, Tensor};

use super::loops::Chunks;
use super::plain::{hits, logits, shift};
use super::region::{Region, Results};
use super::{Head, HeadMode, HeadSettings};
use crate::filter::{Filters, over};

/// What filters leave of each token's distribution, `[B,T]`. It has no derivative.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The probability of all that may be drawn, f32: a log-prob of the whole distribution less `ln mass` is one of the filtered
    /// distribution. 1 where the mask does not hold.
    pub mass: Tensor,
    /// Whether the target may be drawn, boolean: where it may not, its log-prob is −∞. False where the mask does not hold.
    pub target: Tensor,
}

/// Arrays of `[n,V]` that are held at once: logits, their keys, their masses.
const HELD: usize = 3;

impl HeadSettings {
    /// Tokens whose logits over `vocab` entries take about what the mode holds of them.
    fn whole_rows(&self, vocab: usize) -> usize {
        let rows = match self.mode {
            HeadMode::Off | HeadMode::Local | HeadMode::SinglePass => self.token_chunk,
            HeadMode::Fused => {
                let tile = self.vocab_chunk.min(vocab);
                self.token_chunk.saturating_mul(tile) / vocab.max(1)
            }
        };
        (rows / HELD).max(1)
    }
}

impl Head {
    /// What `filters` (f32 `[B,T]` each) leave of the distributions that [`score`](Self::score) looks at, in which the
    /// trainer's numbers decide about what is kept: a sampler with other weights, or other rounding, may keep another entry.
    ///
    /// With `z` the logits after temperature and `least` of [`Filters::least`], `mass = Σ_{z ≥ least} exp(z − m) / Σ exp(z − m)`.
    /// A row with a NaN, with +∞ or without any finite logit has the mass NaN.
    ///
    /// A threshold needs the logits of a token together, so tokens are taken in chunks whose f32 logits over all of a device's
    /// vocabulary take about as much as [`HeadSettings`] allow, whatever the mode, and weights are gathered for each chunk.
    ///
    /// # Panics
    /// When the temperature is not positive and finite, or a chunk is empty.
    #[track_caller]
    pub fn kept(
        &self,
        x: &Tensor,
        targets: &Tensor,
        mask: Option<&Tensor>,
        filters: &Filters,
    ) -> Kept {
        self.check();
        let all = x.graph().full(1.0, DType::Pred, &targets.dims());
        let mask = mask.unwrap_or(&all);
        let head = Self {
            weight: self.weight.stop_gradient(),
            ..self.clone()
        };
        let filters = [&filters.top_k, &filters.top_p, &filters.min_p];
        let mut tokens = vec![targets.clone(), mask.clone()];
        tokens.extend(filters.map(Tensor::stop_gradient));
        let x = x.stop_gradient();
        let found = head.in_region(&x, &tokens, Results::Tokens(2), |it| self.kept_by(it));
        Kept {
            // Without hidden states and without filters everything is kept.
            mass: found[0].clone(),
            target: found[1].and(mask),
        }
    }

    /// Mass and target of one device's tokens, `[N]`.
    fn kept_by(&self, region: &Region) -> Vec<Tensor> {
        let (g, projection) = (region.x.graph().clone(), &region.projection);
        let vocab = projection.whole_entries();
        let chunks = Chunks::of(region.x.dim(0), self.settings.whole_rows(vocab));
        let mut given = vec![&region.x];
        given.extend(&region.tokens);
        let axes = projection.split_axes();
        let (_, found) = chunks.walk(&g, vec![], chunks.cut(&given), |_, _, slice| {
            let [x, targets, mask, top_k, top_p, min_p] = slice else {
                unreachable!("hidden states, targets, mask and three settings")
            };
            let tile = projection.whole();
            let x = mask.expand(1).select(x, &x.scalar_like(0.0));
            let z = logits(&x, &tile.weight, self.tied, self.temperature).convert(DType::F32);
            // Several passes read it.
            let z = g.barrier(&[&z]).remove(0);
            // What does not count, padding included, keeps everything and makes no work.
            let asked = |of: &Tensor, nothing| mask.select(of, &of.scalar_like(nothing));
            let filters = Filters {
                top_k: asked(top_k, f64::INFINITY),
                top_p: asked(top_p, f64::INFINITY),
                min_p: asked(min_p, f64::NEG_INFINITY),
            };
            let least = filters.least_of_parts(&z, &axes);
            let may = z.ge(&least.expand(1));
            let m = shift(&over(&axes, z.max(&[1]), Tensor::all_reduce_max));
            let exp = (&z - m.expand(1)).exp();
            let sum = |t: Tensor| over(&axes, t.sum(&[1]), Tensor::all_reduce);
            let zero = exp.scalar_like(0.0);
            let mass = sum(may.select(&exp, &zero));
            let total = sum(exp);
            // Of +∞ nothing is kept, and everything is infinite.
            let known = total.is_finite();
            let mass = known.select(&(mass / total), &zero.scalar_like(f64::NAN));
            let hit = hits(&tile.columns, targets).and(&may);
            let target = sum(hit.convert(DType::F32)).gt(&zero);
            (vec![], vec![mass, target])
        });
        found.iter().map(|t| chunks.join(t)).collect()
    }
}
