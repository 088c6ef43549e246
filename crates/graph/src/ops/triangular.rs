//! Triangular systems: `X` with `A X = B`, `A` lower or upper triangular.
//!
//! Built of matrix products, not of `stablehlo.triangular_solve`: on the CPU plugin that one took 60 ms for 512 systems of
//! 64 × 64 with 128 right-hand sides (4 Gflop/s), and XLA expands it into loops elsewhere too. Here the inverse of a unit
//! lower triangular matrix is put together from halves,
//!
//! ```text
//! ⎡A 0⎤⁻¹   ⎡   A⁻¹       0 ⎤
//! ⎣C D⎦   = ⎣−D⁻¹ C A⁻¹  D⁻¹⎦
//! ```
//!
//! first inside of diagonal blocks of 16 (all at once, with masks), then block by block. Sums of products of inverses stay
//! as small as the inverse itself, unlike the powers of A in (I − L)⁻¹ = Π (I + L^(2^k)), which is shorter to write. The
//! same two-stage inverse is used for the chunks of the gated delta rule in the flash-linear-attention kernels.
//!
//! Letters: `Z` systems, `N` unknowns, `M` right-hand sides.

use ferrotune_pjrt::DType;

use crate::Precision;
use crate::arena::RegionId;
use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::inline::Body;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Size of the diagonal blocks that are inverted at once.
const BLOCK: usize = 16;

/// `A X = B` for `A [Z,N,N]` unit lower triangular and `B [Z,N,M]`; what stands on and above A's diagonal is not read.
/// Results: X, and A⁻¹ for the derivative.
#[derive(Debug)]
struct SolveUnitLower {
    body: Body,
}

impl Op for SolveUnitLower {
    fn name(&self) -> &str {
        "solve_triangular"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![inputs[1].clone(), inputs[0].clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let (x, inverse) = (&cx.outputs[0], &cx.outputs[1]);
        // From dX = A⁻¹ (dB − dA X).
        let to_rhs = product("znm,znk->zmk", inverse, cx.cotangent());
        let to_matrix = cx.needs[0].then(|| strictly_lower(&-product("zik,zjk->zij", &to_rhs, x)));
        Gradient::Of(vec![to_matrix, Some(to_rhs)])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        self.body.emit(out, &site.inputs, &site.live_outputs)
    }

    fn cost(&self, cx: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        self.body.cost(cx.arena)
    }

    fn regions(&self) -> Vec<RegionId> {
        vec![self.body.region()]
    }
}

/// A product as exact as its operands' type: the derivatives of a recurrence cannot do with less.
fn product(spec: &str, a: &Tensor, b: &Tensor) -> Tensor {
    let g = a.graph();
    g.einsum_with(spec, a, b, a.dtype(), Precision::Highest)
}

/// Row and column numbers of the last two dimensions.
fn places(like: &Tensor) -> (Tensor, Tensor) {
    let (dims, rank) = (like.dims(), like.rank());
    let along = |axis| like.graph().iota(DType::S32, &dims[rank - 2..], axis);
    (along(0), along(1))
}

fn strictly_lower(a: &Tensor) -> Tensor {
    let (row, column) = places(a);
    row.gt(&column).select(a, &a.scalar_like(0.0))
}

/// Inverses of unit lower triangular blocks `[…,S,S]`, S a power of two, of which the part below the diagonal is given and
/// the rest is 0.
fn inverse_in_blocks(below: &Tensor) -> Tensor {
    let (row, column) = places(below);
    let identity = row.eq(&column).convert(below.dtype());
    let mut inverse = identity.broadcast_to(&below.dims());
    for level in 0..below.dim(below.rank() - 1).ilog2() {
        // Blocks of 2^level are inverted; C is what stands under the first of two neighbours and left of the second.
        let block = |place: &Tensor| place.shift_right(&place.scalar_like(f64::from(level)));
        let neighbours = block(&row).xor(&block(&column)).eq(&row.scalar_like(1.0));
        let corner = neighbours
            .and(&row.gt(&column))
            .select(below, &below.scalar_like(0.0));
        let term = if level == 0 {
            corner
        } else {
            let right = product("zpij,zpjk->zpik", &corner, &inverse);
            product("zpij,zpjk->zpik", &inverse, &right)
        };
        inverse = inverse - term;
    }
    inverse
}

/// Blocks `[Z,P,S,S]` of `a [Z,N,N]`: block p has its first row at `row(p)` and its first column at `column(p)`.
fn blocks(a: &Tensor, count: usize, size: usize, row: usize, stride: usize) -> Tensor {
    let parts: Vec<Tensor> = (0..count)
        .map(|p| {
            let (i, j) = (p * stride + row, p * stride);
            a.slice(1, i, i + size).slice(2, j, j + size).expand(1)
        })
        .collect();
    Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), 1)
}

/// Inverse of unit lower triangular matrices `[Z,N,N]`, of which only what stands below the diagonal is read.
fn inverse_of_unit_lower(a: &Tensor) -> Tensor {
    let (z, n) = (a.dim(0), a.dim(1));
    let mut size = n.next_power_of_two().min(BLOCK);
    let padded = n.div_ceil(size).next_power_of_two() * size;
    let below = strictly_lower(a)
        .pad(1, 0, padded - n, 0.0)
        .pad(2, 0, padded - n, 0.0);
    let mut inverse = inverse_in_blocks(&blocks(&below, padded / size, size, 0, size));
    while size < padded {
        let pairs = padded / (2 * size);
        let corner = blocks(&below, pairs, size, size, 2 * size);
        let halves = inverse.reshape(&[z, pairs, 2, size, size]);
        let half = |i| halves.slice(2, i, i + 1).reshape(&[z, pairs, size, size]);
        let (first, second) = (half(0), half(1));
        let right = product("zpij,zpjk->zpik", &corner, &first);
        let left = -product("zpij,zpjk->zpik", &second, &right);
        let upper = first.pad(3, 0, size, 0.0);
        let lower = Tensor::concatenate(&[&left, &second], 3);
        inverse = Tensor::concatenate(&[&upper, &lower], 2);
        size *= 2;
    }
    inverse
        .reshape(&[z, padded, padded])
        .slice(1, 0, n)
        .slice(2, 0, n)
}

fn solve_unit_lower(a: &Tensor, b: &Tensor) -> Tensor {
    let body = Body::trace(a.graph(), &[a.ty(), b.ty()], |args| {
        let inverse = inverse_of_unit_lower(&args[0]);
        let x = product("zij,zjk->zik", &inverse, &args[1]);
        vec![x, inverse]
    });
    a.graph.add(SolveUnitLower { body }, &[a, b]).remove(0)
}

impl Tensor {
    /// `X` with `A X = B` for this tensor A `[…,N,N]`, triangular, and B `[…,N,M]`, both f32 or both f64.
    ///
    /// Only A's lower (or upper) triangle is read, and without its diagonal when that is taken to be 1. The derivative is
    /// that of the solution, dB = A⁻ᵀ dX and dA = −dB Xᵀ inside of the triangle.
    ///
    /// # Panics
    /// When the shapes do not fit or the element types differ or are narrow.
    #[track_caller]
    pub fn solve_triangular(&self, rhs: &Tensor, lower: bool, unit_diagonal: bool) -> Tensor {
        let (a, b) = (self.dims(), rhs.dims());
        let rank = a.len();
        let fits = rank >= 2
            && b.len() == rank
            && a[rank - 1] == a[rank - 2]
            && a[..rank - 1] == b[..rank - 1]
            && self.dtype() == rhs.dtype()
            && matches!(self.dtype(), DType::F32 | DType::F64);
        assert!(
            fits,
            "a triangular system has A […,N,N] and B […,N,M], f32 or f64, not {} and {}",
            self.ty(),
            rhs.ty()
        );
        let (n, m) = (a[rank - 1], b[rank - 1]);
        let systems: usize = a[..rank - 2].iter().product();
        if systems * n * m == 0 {
            return rhs.clone();
        }
        let mut matrix = self.reshape(&[systems, n, n]);
        let mut right = rhs.reshape(&[systems, n, m]);
        if !unit_diagonal {
            // Each equation divided by its diagonal element.
            let (row, column) = places(&matrix);
            let zero = matrix.scalar_like(0.0);
            let diagonal = row.eq(&column).select(&matrix, &zero).sum_keep(&[2]);
            matrix = matrix / &diagonal;
            right = right / diagonal;
        }
        // Upside down an upper triangle is a lower one.
        let solution = if lower {
            solve_unit_lower(&matrix, &right)
        } else {
            let flipped = matrix.reverse(1).reverse(2);
            solve_unit_lower(&flipped, &right.reverse(1)).reverse(1)
        };
        solution.reshape(&b)
    }
}
