//! Loss and gradients in one pass over the logits, for losses that are sums over tokens.
//!
//! A chunk of tokens sees the vocabulary twice, but computes its logits once: first the tiles of `exp(z − m)`, which are
//! kept, with the running maximum and sum; then, when the loss has said what a log-prob is worth, the tiles of `dz`, each
//! used for both gradients. Three products in all, and one exponential for each logit; kernels form it twice.

use ferrotune_graph::{DType, Graph, Tensor};

use super::fused::Running;
use super::kernels;
use super::loops::{Chunks, Place, Tiles};
use super::plain::{hits, logits, shift};
use super::projection::Projection;
use super::region::{Region, Results};
use super::slopes::RowSlopes;
use super::{EntropyUse, Head, TokenScores, wide};

/// How numbers of several parts of a batch become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Added up.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Combine {
    /// Of two parts.
    #[track_caller]
    pub fn apply(self, a: &Tensor, b: &Tensor) -> Tensor {
        match self {
            Self::Sum => a + b,
            Self::Max => a.maximum(b),
            Self::Min => a.minimum(b),
        }
    }

    /// Of no part.
    fn neutral(self) -> f64 {
        match self {
            Self::Sum => 0.0,
            Self::Max => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        }
    }

    /// Of the parts on all devices along `axes`.
    fn over(self, axes: &[&str], part: &Tensor) -> Tensor {
        match self {
            _ if axes.is_empty() => part.clone(),
            Self::Sum => part.all_reduce(axes),
            Self::Max => part.all_reduce_max(axes),
            Self::Min => -(-part).all_reduce_max(axes),
        }
    }
}

/// What a loss says of some tokens.
#[derive(Clone, Debug)]
pub struct PartialLoss {
    /// The loss of these tokens, a scalar: a sum.
    pub loss: Tensor,
    /// Other scalars of these tokens in the same type, never differentiated.
    pub others: Vec<(Tensor, Combine)>,
}

/// The logits of one chunk of tokens as they are kept between the two walks over the vocabulary.
struct Kept {
    /// `exp(z − m_tile) [n,V]`; `z` itself where the entropy is differentiated, which needs it.
    tiles: Tensor,
    /// `m_tile`, what the exponents of each tile are shifted by, `[tiles,n]`.
    shifts: Tensor,
}

/// One device's pass.
struct Pass<'a> {
    head: &'a Head,
    /// All entries that this device looks at, s32 `[v]`.
    columns: Tensor,
    /// Their weights, gathered.
    local: Projection,
    split_axes: Vec<&'a str>,
    tiles: Tiles,
    dtype: DType,
    compute: DType,
}

impl Pass<'_> {
    fn graph(&self) -> Graph {
        self.columns.graph().clone()
    }

    fn entries(&self) -> usize {
        self.columns.dim(0)
    }

    fn keeps_logits(&self) -> bool {
        self.head.entropy == EntropyUse::Differentiated
    }

    /// The same with other weights of the same type: those that a kernel's operations are given.
    fn with(&self, weight: &Tensor) -> Self {
        Pass {
            head: self.head,
            columns: self.columns.clone(),
            local: self.local.with(weight),
            split_axes: self.split_axes.clone(),
            tiles: self.tiles,
            dtype: self.dtype,
            compute: self.compute,
        }
    }

    /// The kernels for some tokens, where there are any.
    fn kernels<'t>(
        &'t self,
        x: &'t Tensor,
        targets: &'t Tensor,
        mask: &'t Tensor,
    ) -> Option<kernels::Pass<'t>> {
        let pass = kernels::Pass {
            x,
            targets,
            mask,
            projection: &self.local,
            temperature: self.head.temperature,
            vocab_chunk: self.head.settings.vocab_chunk,
        };
        (self.split_axes.is_empty() && pass.has_kernels()).then_some(pass)
    }

    fn columns(&self, place: &Place) -> Tensor {
        self.columns.dynamic_slice(&[&place.start], &[place.width])
    }

    /// The first walk: what is known of each token in the end, and the logits as they are kept.
    fn forward(&self, x: &Tensor, targets: &Tensor) -> (Running, Kept) {
        let g = self.graph();
        let n = targets.dim(0);
        let zero = g.scalar(0.0, DType::S32);
        let mut carry = Running::nothing(&g, self.dtype, &[n]).parts();
        carry.push(g.full(0.0, self.dtype, &[n, self.entries()]));
        carry.push(g.full(0.0, self.dtype, &[self.tiles.count(), n]));
        let mut found = self.tiles.walk(&g, carry, |place, carry| {
            let weight = self.local.tile(&place.start, place.width).weight;
            let z = logits(x, &weight, self.local.tied, self.head.temperature);
            let hit = hits(&self.columns(place), targets);
            let (running, m, exp) = Running::from(&carry[..4]).absorb(&z, &hit);
            let kept = if self.keeps_logits() { &z } else { &exp };
            let mut next = running.parts();
            next.push(carry[4].dynamic_update_slice(kept, &[&zero, &place.start]));
            next.push(carry[5].dynamic_update_slice(&m.expand(0), &[&place.index, &zero]));
            next
        });
        let kept = Kept {
            shifts: found.pop().expect("the shifts are carried"),
            tiles: found.pop().expect("the tiles are carried"),
        };
        (Running::from(&found), kept)
    }

    /// The second walk: gradients by hidden states `[n,D]`, and by the weights, added to `dw` in place.
    fn backward(
        &self,
        [x_dn, targets]: [&Tensor; 2],
        kept: &Kept,
        rows: &RowSlopes,
        dw: &Tensor,
    ) -> (Tensor, Tensor) {
        let (g, n, d) = (self.graph(), targets.dim(0), x_dn.dim(0));
        let zero = g.scalar(0.0, DType::S32);
        let carry = vec![g.full(0.0, self.dtype, &[n, d]), dw.clone()];
        let found = self.tiles.walk(&g, carry, |place, carry| {
            let tile = kept
                .tiles
                .dynamic_slice(&[&zero, &place.start], &[n, place.width]);
            let hit = hits(&self.columns(place), targets);
            let dz = if self.keeps_logits() {
                rows.by_logits(&tile, &hit)
            } else {
                let shifts = kept.shifts.dynamic_slice(&[&place.index, &zero], &[1, n]);
                rows.by_terms(&tile, &shifts.reshape(&[n]), &hit)
            };
            let dz = if self.head.temperature == 1.0 {
                dz
            } else {
                dz * (1.0 / self.head.temperature)
            };
            // Both products read this one tensor; without the barrier each would compute it for itself.
            let dz = g.barrier(&[&dz.convert(self.compute)]).remove(0);
            let weights = self.local.tile(&place.start, place.width);
            let dx = &carry[0] + self.local.back(&dz, &weights);
            let part = self.local.outer(x_dn, &dz);
            vec![dx, self.local.add(&carry[1], &part, &place.start)]
        });
        (found[0].clone(), found[1].clone())
    }
}

impl Head {
    /// The loss of all tokens, with its gradient formed in the same pass.
    ///
    /// `loss` is traced for a chunk of tokens at a time: it gets their scores and their elements of `extra` (each
    /// `[B,T]`), all `[n]`, and answers with sums over them. **Its value must be a sum over tokens** of a function of that
    /// token's scores and extras alone. Chunks are padded with tokens that are masked and whose extras are 0: these, and
    /// masked tokens, must add nothing. Differentiable by `x`, the weight, and nothing else.
    ///
    /// Costs three products and one exponential for each logit (two where the entropy is differentiated, and in kernels); a device holds
    /// the logits of one chunk, all the weights it needs, gathered, and their gradient, which is reduced once.
    ///
    /// # Panics
    /// As [`Self::score`].
    #[track_caller]
    pub fn single_pass(
        &self,
        x: &Tensor,
        targets: &Tensor,
        mask: Option<&Tensor>,
        extra: &[Tensor],
        loss: impl Fn(&TokenScores, &[Tensor]) -> PartialLoss,
    ) -> PartialLoss {
        self.check();
        let all = x.graph().full(1.0, DType::Pred, &targets.dims());
        let given = [targets, mask.unwrap_or(&all)].map(Clone::clone);
        let tokens = [&given[..], extra].concat();
        let how = self.combines(x.graph(), &loss, extra);
        let found = self.in_region(x, &tokens, Results::Scalars(how.len()), |region| {
            let sums = self.one_pass(region, &how, &loss);
            let axes: Vec<&str> = region.token_axes.iter().map(String::as_str).collect();
            let sums = sums.iter().zip(&how);
            sums.map(|(sum, how)| how.over(&axes, sum)).collect()
        });
        let others = found.iter().zip(how).skip(1);
        PartialLoss {
            others: others.map(|(t, how)| (t.stop_gradient(), how)).collect(),
            loss: found[0].clone(),
        }
    }

    /// The sums over this device's tokens, the loss first.
    fn one_pass(
        &self,
        region: &Region,
        how: &[Combine],
        loss: &impl Fn(&TokenScores, &[Tensor]) -> PartialLoss,
    ) -> Vec<Tensor> {
        let g = region.x.graph().clone();
        let chunks = Chunks::of(region.tokens[0].dim(0), self.settings.token_chunk);
        let per_token: Vec<&Tensor> = std::iter::once(&region.x).chain(&region.tokens).collect();
        let cut = chunks.cut(&per_token);
        let dtype = wide(region.x.dtype());
        let forward = |inputs: &[Tensor]| {
            let (x, projection) = (&inputs[0], region.projection.with(&inputs[1]));
            let tile = projection.whole();
            let pass = Pass {
                local: projection.gathered_whole(&tile),
                split_axes: projection.split_axes(),
                tiles: Tiles::of(tile.columns.dim(0), self.settings.vocab_chunk),
                head: self,
                dtype,
                compute: projection.compute,
                columns: tile.columns.clone(),
            };
            let mut carry: Vec<Tensor> = how.iter().map(|c| g.scalar(c.neutral(), dtype)).collect();
            carry.push(g.full(0.0, dtype, &tile.weight.dims()));
            let stacked = [&[x.clone(), x.transpose(&[0, 2, 1])], &cut[1..]].concat();
            let (mut sums, dx) = chunks.walk(&g, carry, stacked, |_, carry, slice| {
                let (before, dw) = carry.split_at(how.len());
                let (found, dx, dw) = pass.chunk(slice, &dw[0], loss);
                let sums = found.iter().zip(before).zip(how);
                let sums = sums.map(|((new, old), how)| how.apply(old, new));
                (sums.chain([dw]).collect(), vec![dx])
            });
            let dw = sums.pop().expect("the weights' gradient is carried");
            (sums, vec![dx[0].clone(), projection.scatter(&dw)])
        };
        let backward = |gradients: &[Tensor], cotangents: &[Tensor]| {
            let mut by = cotangents[0].clone();
            let axes = region.projection.split_axes();
            if !axes.is_empty() {
                by = by.all_reduce(&axes);
            }
            let scaled = |d: &Tensor| Some(d * by.convert(d.dtype()));
            gradients.iter().map(scaled).collect()
        };
        g.custom_vjp(&[&cut[0], &region.projection.weight], forward, backward)
    }

    /// How the loss combines what it returns: traced once for nothing.
    fn combines(
        &self,
        g: &Graph,
        loss: &impl Fn(&TokenScores, &[Tensor]) -> PartialLoss,
        extra: &[Tensor],
    ) -> Vec<Combine> {
        let one = |dtype| g.full(0.0, dtype, &[1]);
        let extra: Vec<Tensor> = extra.iter().map(|t| one(t.dtype())).collect();
        let dtype = wide(self.weight.dtype());
        let scores = TokenScores {
            logprob: one(dtype),
            entropy: one(dtype),
            hit: one(DType::Pred),
        };
        let others = loss(&scores, &extra).others;
        std::iter::once(Combine::Sum)
            .chain(others.iter().map(|(_, how)| *how))
            .collect()
    }
}

impl Pass<'_> {
    /// One chunk: hidden states `[n,D]`, the same with the width first, targets, mask, extras. Answers with the loss and
    /// the other sums, the gradient by hidden states, and `dw` with the gradient by weights added.
    fn chunk(
        &self,
        slice: &[Tensor],
        dw: &Tensor,
        loss: &impl Fn(&TokenScores, &[Tensor]) -> PartialLoss,
    ) -> (Vec<Tensor>, Tensor, Tensor) {
        let [x, x_dn, targets, mask, extra @ ..] = slice else {
            unreachable!("hidden states, targets and mask of each token")
        };
        let zero = |t: &Tensor| t.scalar_like(0.0);
        let kernels = self.kernels(x, targets, mask);
        let forward = |it: &[Tensor]| {
            let x_nd = it[3].expand(1).select(&it[0], &zero(x));
            let (found, kept) = self.with(&it[1]).forward(&x_nd, &it[2]);
            let kept = [kept.tiles, kept.shifts];
            found.parts().into_iter().chain(kept).collect()
        };
        let found = match &kernels {
            Some(kernels) => kernels.score_and_keep(self.tiles.count(), forward),
            None => forward(&[x, &self.local.weight, targets, mask].map(Clone::clone)),
        };
        let kept = [&found[4], &found[5]];
        let found = Running::from(&found[..4]).combined(&self.split_axes);
        let m = shift(&found.peak);
        let (target, log_total) = (&found.target - &m, found.total.ln());
        let mean = &found.weighted / &found.total;
        let masked = |t: &Tensor| mask.select(t, &zero(t));
        let scores = TokenScores {
            logprob: masked(&(&target - &log_total)),
            entropy: masked(&(log_total - &mean)),
            hit: target.ge(&zero(&target)).and(mask),
        };
        let told = loss(&scores, extra);
        let slopes = self
            .graph()
            .grad(&told.loss, &[&scores.logprob, &scores.entropy]);
        let rows = RowSlopes {
            m,
            total: found.total,
            logprob: masked(&slopes[0]),
            entropy: self.keeps_logits().then(|| [masked(&slopes[1]), mean]),
        };
        let backward = |it: &[Tensor]| {
            let x_dn = it[3].expand(0).select(x_dn, &zero(x));
            let kept = Kept {
                tiles: it[5].clone(),
                shifts: it[6].clone(),
            };
            let rows = RowSlopes::from(&it[7..]);
            let pass = self.with(&it[1]);
            let (dx, dw) = pass.backward([&x_dn, &it[2]], &kept, &rows, &it[4]);
            vec![dx, dw]
        };
        let gradients = match &kernels {
            Some(kernels) => kernels.gradients_of_kept(&rows, kept, dw, backward),
            None => {
                let given = [x, &self.local.weight, targets, mask, dw, kept[0], kept[1]];
                let given = given.into_iter().chain(rows.parts());
                backward(&given.cloned().collect::<Vec<_>>())
            }
        };
        let (dx, dw) = (&gradients[0], gradients[1].clone());
        let others = told.others.into_iter().map(|(t, _)| t);
        let sums = std::iter::once(told.loss).chain(others).collect();
        (sums, dx.convert(self.compute), dw)
    }
}
