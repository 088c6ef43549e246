//! Muon: momentum made orthogonal, for matrices.

use ferrotune_graph::{DType, Tensor};

use super::{AdamW, Moment, Sgd, is_matrix};

/// Settings of Muon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// What is left of the momentum after a step. The step looks ahead, as Nesterov's.
    pub momentum: f64,
    /// The rule of everything but matrices of layers: embeddings, head, router, convolutions, norms and biases.
    pub others: AdamW,
}

/// Coefficients of the iteration x ← ax + (b(xxᵀ) + c(xxᵀ)²)x, which brings singular values from (0, 1] close to 1.
const ITERATION: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// Iterations of a step.
const ITERATIONS: usize = 5;

/// A direction of AdamW has entries of about this root mean square, and a learning rate means the same for both.
const RMS: f64 = 0.2;

impl Muon {
    /// Matrices of layers that a hidden state is multiplied by.
    fn fits(name: &str, rank: usize) -> bool {
        let special = ["/router", "/taps"].iter().any(|it| name.ends_with(it));
        name.contains('/') && is_matrix(name, rank) && !special
    }

    fn momentum(&self) -> Sgd {
        Sgd {
            momentum: self.momentum,
            nesterov: true,
        }
    }

    pub(super) fn kept(&self, name: &str, rank: usize) -> Vec<(&'static str, DType)> {
        if Self::fits(name, rank) {
            vec![("momentum", DType::F32)]
        } else {
            self.others.kept()
        }
    }

    pub(super) fn advance(
        &self,
        name: &str,
        kept: &[Tensor],
        gradient: &Tensor,
        at: &Moment,
    ) -> Vec<Tensor> {
        if Self::fits(name, gradient.rank()) {
            self.momentum().advance(kept, gradient)
        } else {
            self.others.advance(kept, gradient, at)
        }
    }

    /// 0.2 · √max(in, out) · orthogonal(g + μm): its entries have the root mean square of a direction of AdamW.
    ///
    /// # Source
    /// Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); the scale of Liu et al., "Muon is
    /// scalable for LLM training" (2025), section 2.2.
    pub(super) fn direction(
        &self,
        name: &str,
        kept: &[Tensor],
        gradient: &Tensor,
        at: &Moment,
    ) -> Tensor {
        if !Self::fits(name, gradient.rank()) {
            return self.others.direction(kept, at);
        }
        let ahead = self.momentum().direction(kept, gradient);
        let rank = ahead.rank();
        let longer = ahead.dim(rank - 2).max(ahead.dim(rank - 1)) as f64;
        orthogonal(&ahead) * (RMS * longer.sqrt())
    }
}

/// About UVᵀ of each matrix USVᵀ in `[.., r, c]`.
fn orthogonal(matrices: &Tensor) -> Tensor {
    let g = matrices.graph().clone();
    let dims = matrices.dims();
    let (leading, sides) = dims.split_at(dims.len() - 2);
    let stacked = matrices.reshape(&[leading.iter().product(), sides[0], sides[1]]);
    let turned = sides[0] > sides[1];
    let turn = |t: &Tensor| {
        if turned {
            t.transpose(&[0, 2, 1])
        } else {
            t.clone()
        }
    };
    let x = turn(&stacked);
    // Singular values are at most the norm. One that is 0 everywhere stays so.
    let norm = x.square().sum_keep(&[1, 2]).sqrt() + 1e-7;
    let mut x = &x / norm.broadcast_to(&x.dims());
    let [a, b, c] = ITERATION;
    for _ in 0..ITERATIONS {
        let square = g.einsum("bij,bkj->bik", &x, &x, DType::F32);
        let fourth = g.einsum("bij,bjk->bik", &square, &square, DType::F32);
        let factor = square * b + fourth * c;
        x = &x * a + g.einsum("bij,bjk->bik", &factor, &x, DType::F32);
    }
    turn(&x).reshape(&dims)
}
