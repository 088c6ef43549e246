//! Rotary position embedding.

use ferrotune_graph::{DType, Tensor};

/// Cosines and sines of the rotation angles, f32 `[B,T,1,N/2]`, for the first `N` dimensions of each head.
#[derive(Clone, Debug)]
pub struct Rotation {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

impl Rotation {
    /// Angles `position · frequency`; cosines and sines are multiplied by `amplitude`.
    ///
    /// # Shapes
    /// `positions` s32 `[B,T]`; `frequencies`, in radians per position, one for each pair of dimensions.
    /// # Source
    /// Su et al., "RoFormer" (2021), eq. 15, where frequency `i` is `theta^(−2i/N)`; the amplitude is that of Peng et al.,
    /// "YaRN" (2023), §3.4.
    #[track_caller]
    pub fn new(positions: &Tensor, frequencies: &[f32], amplitude: f64) -> Self {
        let g = positions.graph();
        let pairs = ferrotune_graph::HostArray::from_slice(&[frequencies.len()], frequencies)
            .expect("one frequency per pair of dimensions");
        let dims = positions.dims();
        let at = positions
            .convert(DType::F32)
            .reshape(&[dims[0], dims[1], 1, 1]);
        let angles = at * g.constant(pairs);
        // Without the barrier, layers that stand one after the other each compute all angles again.
        let [cos, sin] = [angles.cos(), angles.sin()];
        let [cos, sin] = <[Tensor; 2]>::try_from(g.barrier(&[&cos, &sin])).expect("two of two");
        if amplitude == 1.0 {
            return Self { cos, sin };
        }
        Self {
            cos: cos * amplitude,
            sin: sin * amplitude,
        }
    }

    /// The same angles, as a region is given them.
    pub(crate) fn of(cos: &Tensor, sin: &Tensor) -> Self {
        Self {
            cos: cos.clone(),
            sin: sin.clone(),
        }
    }
}

/// Rotates the front of each head: the first half of its turning dimensions pairs with the second half; the others stay.
///
/// # Shapes
/// `x [B,T,H,E]` → the same, in the element type of `x`; computed in f32.
#[track_caller]
pub fn rotate(x_bthe: &Tensor, by: &Rotation) -> Tensor {
    let (half, size) = (by.cos.dim(3), x_bthe.dim(3));
    let x = x_bthe.convert(DType::F32);
    let (a, b) = (x.slice(3, 0, half), x.slice(3, half, 2 * half));
    let first = &a * &by.cos - &b * &by.sin;
    let second = &b * &by.cos + &a * &by.sin;
    let mut parts = vec![first, second];
    if 2 * half < size {
        parts.push(x.slice(3, 2 * half, size));
    }
    let parts: Vec<&Tensor> = parts.iter().collect();
    Tensor::concatenate(&parts, 3).convert(x_bthe.dtype())
}
