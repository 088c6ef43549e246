//! Rotary position embedding.

use ferrotune_cpu::{Number, Threads, rotate as turn_head};
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType,
};
use ferrotune_pjrt::Element;

use crate::by_type::{by_type, has_kernels};

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
    if !has_kernels(x_bthe.dtype()) {
        return turned(x_bthe, &by.cos, &by.sin);
    }
    let g = x_bthe.graph().clone();
    let found = g.custom_vjp(
        &[x_bthe],
        |x| {
            let operands = [&x[0], &by.cos, &by.sin];
            let portable = |it: &[Tensor]| vec![turned(&it[0], &it[1], &it[2])];
            (g.kernel(&ROTATE, &operands, &[], portable), vec![])
        },
        // Back by the same angles.
        |_, d| vec![Some(turned(&d[0], &by.cos, &-&by.sin))],
    );
    found[0].clone()
}

fn turned(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let (half, size, dtype) = (cos.dim(3), x.dim(3), x.dtype());
    let x = x.convert(DType::F32);
    let (a, b) = (x.slice(3, 0, half), x.slice(3, half, 2 * half));
    let mut parts = vec![&a * cos - &b * sin, &b * cos + &a * sin];
    if 2 * half < size {
        parts.push(x.slice(3, 2 * half, size));
    }
    let parts: Vec<&Tensor> = parts.iter().collect();
    Tensor::concatenate(&parts, 3).convert(dtype)
}

static ROTATE: KernelRule = KernelRule {
    kernel: Kernel {
        name: "rotate",
        run: by_type!(run),
    },
    infer: |inputs: &[TensorType], _: &Attributes| match inputs {
        [x, cos, sin] if x.rank() == 4 && cos.rank() == 4 && cos == sin => {
            let fits = cos.dims[..2] == x.dims[..2] && 2 * cos.dims[3] <= x.dims[3];
            let each = "angles are [B,T,1,≤E/2] for heads [B,T,H,E]";
            if fits {
                Ok(vec![x.clone()])
            } else {
                Err(each.to_owned())
            }
        }
        _ => Err("takes heads [B,T,H,E], cosines and sines".to_owned()),
    },
    cost: |inputs, outputs| Cost {
        flops: 3.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

fn run<T: Number + Element>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let (inputs, outputs) = call.parts();
    let &[_, _, heads, size] = inputs[0].dims() else {
        return Err("heads have four dimensions".to_owned());
    };
    let (half, width) = (inputs[1].dims()[3], heads * size);
    let [cos, sin] = [inputs[1].as_slice::<f32>()?, inputs[2].as_slice::<f32>()?];
    let out = outputs[0].as_mut_slice::<T>()?;
    out.copy_from_slice(inputs[0].as_slice::<T>()?);
    Threads::All.for_each_share(out, width, |first, tokens| {
        for (i, token) in tokens.chunks_mut(width).enumerate() {
            let [cos, sin] = [cos, sin].map(|all| &all[(first + i) * half..][..half]);
            token
                .chunks_mut(size)
                .for_each(|head| turn_head(head, cos, sin));
        }
    });
    Ok(())
}
