//! One forward pass over tiles of the logits, one backward pass over the same tiles, recomputed.
//!
//! The outer loop runs over tiles of the vocabulary, the inner over chunks of tokens. So each tile of the weights is
//! fetched (and gathered) once in each direction, each tile of their gradient is written (and scattered) once, and what is
//! held is one tile of logits and of weights beside a few numbers for each token.

use ferrotune_graph::{DType, Graph, Tensor};

use super::kernels;
use super::loops::{Chunks, Tiles};
use super::plain::{hits, logits, shift, weigh};
use super::projection::Projection;
use super::region::Region;
use super::slopes::RowSlopes;
use super::{EntropyUse, Head, TokenScores, wide};

/// What is known of each token after some tiles of the vocabulary.
#[derive(Clone)]
pub(super) struct Running {
    /// The largest logit.
    pub(super) peak: Tensor,
    /// `Σ exp(z − m)`, with `m` the peak where it is finite, else 0.
    pub(super) total: Tensor,
    /// `Σ exp(z − m)·(z − m)`.
    pub(super) weighted: Tensor,
    /// The logit of the target, if it was seen.
    pub(super) target: Tensor,
}

impl Running {
    /// Of no tile.
    pub(super) fn nothing(g: &Graph, dtype: DType, dims: &[usize]) -> Self {
        let full = |value| g.full(value, dtype, dims);
        Self {
            peak: full(f64::NEG_INFINITY),
            total: full(0.0),
            weighted: full(0.0),
            target: full(0.0),
        }
    }

    pub(super) fn from(parts: &[Tensor]) -> Self {
        let [peak, total, weighted, target] = parts else {
            unreachable!("four numbers for each token")
        };
        Self {
            peak: peak.clone(),
            total: total.clone(),
            weighted: weighted.clone(),
            target: target.clone(),
        }
    }

    pub(super) fn parts(self) -> Vec<Tensor> {
        vec![self.peak, self.total, self.weighted, self.target]
    }

    /// The same sums over logits less `m` instead of less their own peak.
    ///
    /// Where nothing finite was seen, the sums are 0 (or not finite), and stay so.
    fn shifted_to(&self, m: &Tensor) -> (Tensor, Tensor) {
        let by = &self.peak - m;
        let factor = by.exp();
        let finite = by.is_finite();
        let moved = &self.weighted + &self.total * finite.select(&by, &by.scalar_like(0.0));
        (&self.total * &factor, moved * factor)
    }

    /// After one more tile: logits `z [n,v]`, and where they are the target's. Also what its exponents are shifted by
    /// `[n]`, and `exp(z − m)`.
    ///
    /// # Source
    /// Milakov and Gimelshein (2018), algorithm 3.
    pub(super) fn absorb(&self, z: &Tensor, hit: &Tensor) -> (Self, Tensor, Tensor) {
        let peak = self.peak.maximum(&z.max(&[1]));
        let m = shift(&peak);
        let (total, weighted) = self.shifted_to(&m);
        let shifted = z - m.expand(1);
        let exp = shifted.exp();
        let next = Self {
            peak,
            total: total + exp.sum(&[1]),
            weighted: weighted + weigh(&exp, &shifted).sum(&[1]),
            target: &self.target + hit.select(z, &z.scalar_like(0.0)).sum(&[1]),
        };
        (next, m, exp)
    }

    /// Over the devices along `axes`, each of which saw a part of the vocabulary: a maximum and three sums a token.
    pub(super) fn combined(self, axes: &[&str]) -> Self {
        if axes.is_empty() {
            return self;
        }
        let peak = self.peak.all_reduce_max(axes);
        let (total, weighted) = self.shifted_to(&shift(&peak));
        let own = [total, weighted, self.target].map(|t| t.expand(0));
        let sums = Tensor::concatenate(&[&own[0], &own[1], &own[2]], 0).all_reduce(axes);
        let sum = |k: usize| sums.slice(0, k, k + 1).reshape(&peak.dims());
        Self {
            total: sum(0),
            weighted: sum(1),
            target: sum(2),
            peak,
        }
    }
}

/// The gradients of one backward pass.
struct Gradients {
    /// `[chunks,n,D]`, in the wide type.
    x: Tensor,
    /// As the weights on this device.
    weight: Tensor,
}

/// One pass over tiles and chunks.
struct Pass<'a> {
    head: &'a Head,
    projection: Projection,
    chunks: Chunks,
    tiles: Tiles,
    /// Targets, mask: `[chunks,n]`.
    targets: Tensor,
    mask: Tensor,
}

impl Pass<'_> {
    fn graph(&self) -> Graph {
        self.targets.graph().clone()
    }

    fn dtype(&self) -> DType {
        wide(self.projection.compute)
    }

    /// Hidden states `[n,D]` without those that are masked.
    fn unmasked(x: &Tensor, mask: &Tensor) -> Tensor {
        mask.expand(1).select(x, &x.scalar_like(0.0))
    }

    fn logits(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        logits(x, weight, self.projection.tied, self.head.temperature)
    }

    fn kernels<'a>(&'a self, x: &'a Tensor) -> kernels::Pass<'a> {
        kernels::Pass {
            x,
            targets: &self.targets,
            mask: &self.mask,
            projection: &self.projection,
            temperature: self.head.temperature,
            vocab_chunk: self.head.settings.vocab_chunk,
        }
    }

    /// The same with other tensors: hidden states (which are not its own), weights, targets, mask.
    fn with(&self, given: &[Tensor]) -> Self {
        Self {
            head: self.head,
            projection: self.projection.with(&given[1]),
            chunks: self.chunks,
            tiles: self.tiles,
            targets: given[2].clone(),
            mask: given[3].clone(),
        }
    }

    /// Hidden states `[chunks,n,D]` → what is known of each token in the end, `[chunks,n]`.
    fn forward(&self, x: &Tensor) -> Running {
        let kernels = self.kernels(x);
        if !kernels.has_kernels() {
            return self.forward_by_tiles(x);
        }
        let found = kernels.score(|it| self.with(it).forward_by_tiles(&it[0]).parts());
        Running::from(&found)
    }

    fn forward_by_tiles(&self, x: &Tensor) -> Running {
        let g = self.graph();
        let nothing = Running::nothing(&g, self.dtype(), &self.targets.dims());
        let found = self.tiles.walk(&g, nothing.parts(), |place, carry| {
            let tile = self.projection.tile(&place.start, place.width);
            let given = [x, &self.targets, &self.mask].map(Clone::clone);
            let stacked = given.into_iter().chain(carry.iter().cloned()).collect();
            let (_, next) = self.chunks.walk(&g, vec![], stacked, |_, _, slice| {
                let z = self.logits(&Self::unmasked(&slice[0], &slice[2]), &tile.weight);
                let hit = hits(&tile.columns, &slice[1]);
                (
                    vec![],
                    Running::from(&slice[3..]).absorb(&z, &hit).0.parts(),
                )
            });
            next
        });
        Running::from(&found).combined(&self.projection.split_axes())
    }

    /// The gradient by the logits `z [n,v]` of one tile and chunk.
    fn by_logits(&self, z: &Tensor, hit: &Tensor, rows: &RowSlopes) -> Tensor {
        let dz = rows.by_logits(z, hit);
        if self.head.temperature == 1.0 {
            dz
        } else {
            dz * (1.0 / self.head.temperature)
        }
    }

    /// Gradients by hidden states and weights.
    fn backward(&self, x: &Tensor, rows: &RowSlopes) -> Gradients {
        let kernels = self.kernels(x);
        if !kernels.has_kernels() {
            return self.backward_by_tiles(x, rows);
        }
        let found = kernels.gradients(rows, |it| {
            let rows = RowSlopes::from(&it[4..]);
            let found = self.with(it).backward_by_tiles(&it[0], &rows);
            vec![found.x, found.weight.convert(DType::F32)]
        });
        Gradients {
            x: found[0].clone(),
            weight: found[1].convert(self.projection.weight.dtype()),
        }
    }

    fn backward_by_tiles(&self, x: &Tensor, rows: &RowSlopes) -> Gradients {
        let (g, dtype) = (self.graph(), self.dtype());
        let alone = self.tiles.count() == 1;
        let x_dn = x.transpose(&[0, 2, 1]);
        let mut given = vec![x, &x_dn, &self.targets, &self.mask];
        given.extend(rows.parts());
        let dx = g.full(0.0, dtype, &x.dims());
        let dw = self.projection.weight.zeros_like();
        let found = self.tiles.walk(&g, vec![dx, dw], |place, carry| {
            let tile = self.projection.tile(&place.start, place.width);
            let dw_tile = g.full(0.0, dtype, &tile.weight.dims());
            let mut sums = vec![dw_tile];
            // One tile writes each chunk of dx once; several add to it, in place.
            sums.extend((!alone).then(|| carry[0].clone()));
            let stacked = given.iter().map(|t| (*t).clone()).collect();
            let (sums, written) = self
                .chunks
                .walk_back(&g, sums, stacked, |chunk, sums, slice| {
                    let rows = RowSlopes::from(&slice[4..]);
                    let z = self.logits(&Self::unmasked(&slice[0], &slice[3]), &tile.weight);
                    let hit = hits(&tile.columns, &slice[2]);
                    let dz = self.by_logits(&z, &hit, &rows);
                    // Both products read this one tensor; without the barrier each would compute it for itself.
                    let dz = g.barrier(&[&dz.convert(self.projection.compute)]).remove(0);
                    let x_dn = slice[3].expand(0).select(&slice[1], &x.scalar_like(0.0));
                    let dw = &sums[0] + self.projection.outer(&x_dn, &dz);
                    let dx = self.projection.back(&dz, &tile);
                    match sums.get(1) {
                        Some(whole) => (vec![dw, add_at(whole, &dx, chunk)], vec![]),
                        None => (vec![dw], vec![dx]),
                    }
                });
            let dx = written
                .first()
                .or(sums.get(1))
                .expect("it is in one")
                .clone();
            let part = self.projection.scatter(&sums[0]);
            vec![dx, self.projection.write(&carry[1], &part, &place.start)]
        });
        Gradients {
            x: found[0].clone(),
            weight: found[1].clone(),
        }
    }
}

/// `whole [chunks,n,D]` with `part [n,D]` added to one chunk.
fn add_at(whole: &Tensor, part: &Tensor, chunk: &Tensor) -> Tensor {
    let zero = chunk.zeros_like();
    let at = [chunk, &zero, &zero];
    let before = whole.dynamic_slice(&at, &part.expand(0).dims());
    whole.dynamic_update_slice(&(before + part.expand(0)), &at)
}

impl Head {
    /// Scores with a derivative of their own.
    pub(super) fn fused(&self, region: &Region) -> TokenScores {
        let (g, projection) = (region.x.graph().clone(), &region.projection);
        let chunks = Chunks::of(region.tokens[0].dim(0), self.settings.token_chunk);
        let tiles = projection.tiles(self.settings.vocab_chunk);
        let cut = chunks.cut(&[&region.x, &region.tokens[0], &region.tokens[1]]);
        let pass = |weight: &Tensor| Pass {
            head: self,
            projection: projection.with(weight),
            chunks,
            tiles,
            targets: cut[1].clone(),
            mask: cut[2].clone(),
        };
        let forward = |inputs: &[Tensor]| {
            let found = pass(&inputs[1]).forward(&inputs[0]);
            let m = shift(&found.peak);
            let target = &found.target - &m;
            let log_total = found.total.ln();
            let mean = &found.weighted / &found.total;
            let scores = vec![
                &target - &log_total,
                log_total - &mean,
                target.ge(&target.scalar_like(0.0)),
            ];
            (scores, vec![m, found.total, mean])
        };
        let backward = |residuals: &[Tensor], cotangents: &[Tensor]| {
            let pass = pass(&projection.weight);
            let masked = |t: &Tensor| pass.mask.select(t, &t.scalar_like(0.0));
            let axes = projection.split_axes();
            let over_devices = |t: &Tensor| {
                let t = masked(t);
                if axes.is_empty() {
                    t
                } else {
                    t.all_reduce(&axes)
                }
            };
            let differentiated = self.entropy == EntropyUse::Differentiated;
            let rows = RowSlopes {
                m: residuals[0].clone(),
                total: residuals[1].clone(),
                logprob: over_devices(&cotangents[0]),
                entropy: differentiated
                    .then(|| [over_devices(&cotangents[1]), residuals[2].clone()]),
            };
            let found = pass.backward(&cut[0], &rows);
            let dx = found.x.convert(cut[0].dtype());
            vec![Some(dx), Some(found.weight)]
        };
        let found = g.custom_vjp(&[&cut[0], &projection.weight], forward, backward);
        chunks.scores(&found)
    }
}
