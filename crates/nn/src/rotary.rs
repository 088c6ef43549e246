//! Rotary position embedding.

use ferrotune_graph::{DType, Tensor};

/// Cosines and sines of the rotation angles, f32 `[B,T,1,E/2]`.
#[derive(Clone, Debug)]
pub struct Rotation {
    cos: Tensor,
    sin: Tensor,
}

impl Rotation {
    /// Angles `position · theta^(−2i/E)` for `i` in `0..E/2`.
    ///
    /// # Shapes
    /// `positions` s32 `[B,T]`; `head_dim` is `E`.
    /// # Source
    /// Su et al., "RoFormer" (2021), eq. 15; the default rotary kind of transformers.
    #[track_caller]
    pub fn new(positions: &Tensor, head_dim: usize, theta: f64) -> Self {
        let g = positions.graph();
        let frequencies: Vec<f32> = (0..head_dim / 2)
            .map(|i| theta.powf(-2.0 * i as f64 / head_dim as f64) as f32)
            .collect();
        let frequencies = ferrotune_graph::HostArray::from_slice(&[head_dim / 2], &frequencies)
            .expect("one frequency per pair of dimensions");
        let dims = positions.dims();
        let at = positions
            .convert(DType::F32)
            .reshape(&[dims[0], dims[1], 1, 1]);
        let angles = at * g.constant(frequencies);
        Self {
            cos: angles.cos(),
            sin: angles.sin(),
        }
    }
}

/// Rotates each head: the first half of its dimensions pairs with the second half.
///
/// # Shapes
/// `x [B,T,H,E]` → the same, in the element type of `x`; computed in f32.
#[track_caller]
pub fn rotate(x_bthe: &Tensor, by: &Rotation) -> Tensor {
    let half = x_bthe.dim(3) / 2;
    let x = x_bthe.convert(DType::F32);
    let (a, b) = (x.slice(3, 0, half), x.slice(3, half, 2 * half));
    let first = &a * &by.cos - &b * &by.sin;
    let second = &b * &by.cos + &a * &by.sin;
    Tensor::concatenate(&[&first, &second], 3).convert(x_bthe.dtype())
}
