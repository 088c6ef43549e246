//! The formulas as they are written, differentiated automatically.

use ferrotune_graph::Tensor;

use super::loops::Chunks;
use super::projection::Tile;
use super::region::Region;
use super::{Head, TokenScores, wide};

/// Logits in the wide type: `x […,D]` times a weight of the same element type.
#[track_caller]
pub(super) fn logits(x: &Tensor, weight: &Tensor, tied: bool, temperature: f64) -> Tensor {
    // Any number of leading dimensions, which the partitioner splits better apart than merged.
    let letters = &"abcefghi"[..x.rank() - 1];
    let spec = format!("{letters}d,{}->{letters}v", if tied { "vd" } else { "dv" });
    let z = x.graph().einsum(&spec, x, weight, wide(x.dtype()));
    if temperature == 1.0 {
        z
    } else {
        z * (1.0 / temperature)
    }
}

/// The largest of each row where it is finite, else 0: what logits are shifted by.
pub(super) fn shift(peak: &Tensor) -> Tensor {
    peak.is_finite().select(peak, &peak.scalar_like(0.0))
}

/// Each term of `Σ exp(z − m)·(z − m)`; one that cannot be drawn adds nothing, though its `z` be −∞.
pub(super) fn weigh(exp: &Tensor, shifted: &Tensor) -> Tensor {
    let zero = exp.scalar_like(0.0);
    exp.eq(&zero).select(&zero, &(exp * shifted))
}

/// Where the entry of the vocabulary is the target: columns `[v]`, targets `[…]` → `[…,v]`.
pub(super) fn hits(columns: &Tensor, targets: &Tensor) -> Tensor {
    columns.eq(&targets.expand(targets.rank()))
}

impl Head {
    /// All tokens given, at once: `x […,D]`, the weight in the same element type, targets and mask `[…]`. The devices along
    /// `axes` hold one part of the vocabulary each.
    pub(super) fn plain(
        &self,
        x: &Tensor,
        tile: &Tile,
        axes: &[&str],
        targets: &Tensor,
        mask: &Tensor,
    ) -> TokenScores {
        let last = targets.rank();
        let over_devices = |t: Tensor| {
            if axes.is_empty() {
                t
            } else {
                t.all_reduce(axes)
            }
        };
        let x = mask.expand(last).select(x, &x.scalar_like(0.0));
        let z = logits(&x, &tile.weight, self.tied, self.temperature);
        let mut peak = z.max(&[last]).stop_gradient();
        if !axes.is_empty() {
            peak = peak.all_reduce_max(axes);
        }
        let m = shift(&peak).stop_gradient();
        let shifted = &z - m.expand(last);
        let exp = shifted.exp();
        let total = over_devices(exp.sum(&[last]));
        let log_total = total.ln();
        let hit = hits(&tile.columns, targets);
        let target = over_devices(hit.select(&z, &z.scalar_like(0.0)).sum(&[last])) - m;
        let weighted = over_devices(weigh(&exp, &shifted).sum(&[last]));
        TokenScores {
            hit: target.ge(&target.scalar_like(0.0)),
            logprob: target - &log_total,
            entropy: log_total - weighted / total,
        }
    }

    /// One chunk of tokens after the other. The weights are gathered for each, and gathered again for its derivative.
    pub(super) fn local(&self, region: &Region) -> TokenScores {
        let (g, projection) = (region.x.graph().clone(), &region.projection);
        let chunks = Chunks::of(region.tokens[0].dim(0), self.settings.token_chunk);
        let slices = chunks.cut(&[&region.x, &region.tokens[0], &region.tokens[1]]);
        let axes = projection.split_axes();
        let (_, found) = chunks.walk(&g, vec![], slices, |_, _, slice| {
            let tile = projection.whole();
            let scores = self.plain(&slice[0], &tile, &axes, &slice[1], &slice[2]);
            (vec![], vec![scores.logprob, scores.entropy, scores.hit])
        });
        chunks.scores(&found)
    }
}
