//! Root-mean-square normalisation.

use ferrotune_cpu::{Number, Threads, normalize};
use ferrotune_graph::{
    Attributes, Cost, DType, Kernel, KernelCall, KernelRule, Tensor, TensorType,
};
use ferrotune_pjrt::{Attribute, Element};

use crate::by_type::{by_type, has_kernels};

/// w · x / √(mean(x²) + eps) over the last dimension, computed in f32 and returned in the element type of `x`.
///
/// # Shapes
/// `x [.., N]`, `weight [N]` → `[.., N]`.
/// # Source
/// Zhang and Sennrich, "Root mean square layer normalization" (2019), eq. 4; `LlamaRMSNorm` in transformers.
#[track_caller]
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let (g, weight) = (x.graph().clone(), weight.convert(DType::F32));
    if !has_kernels(x.dtype()) {
        return normed(x, &weight, eps);
    }
    let attributes = [("eps", Attribute::Number(eps))];
    let found = g.custom_vjp(
        &[x, &weight],
        |given| {
            let operands = [&given[0], &given[1]];
            let out = g.kernel(&RMS_NORM, &operands, &attributes, |it| {
                vec![normed(&it[0], &it[1], eps)]
            });
            (out, given.to_vec())
        },
        |kept, d| {
            let (x, weight, d) = (&kept[0], &kept[1], d[0].convert(DType::F32));
            let (wide, last) = (x.convert(DType::F32), x.rank() - 1);
            let scale = scale_of(&wide, eps);
            let (unit, slope) = (&wide * &scale, &d * weight);
            let along = (&slope * &unit).mean_keep(&[last]);
            let dx = (slope - &unit * along) * scale;
            let rows: Vec<usize> = (0..last).collect();
            let dw = (d * unit).sum(&rows);
            vec![Some(dx.convert(x.dtype())), Some(dw)]
        },
    );
    found[0].clone()
}

fn scale_of(wide: &Tensor, eps: f64) -> Tensor {
    (wide.square().mean_keep(&[wide.rank() - 1]) + eps).rsqrt()
}

fn normed(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let wide = x.convert(DType::F32);
    let scale = scale_of(&wide, eps);
    (wide * scale * weight).convert(x.dtype())
}

static RMS_NORM: KernelRule = KernelRule {
    kernel: Kernel {
        name: "rms_norm",
        run: by_type!(run),
    },
    infer: |inputs: &[TensorType], _: &Attributes| match inputs {
        [x, weight] if x.dims.last() == weight.dims.last() && weight.rank() == 1 => {
            Ok(vec![x.clone()])
        }
        _ => Err("takes [..,N] and a weight [N]".to_owned()),
    },
    cost: |inputs, outputs| Cost {
        flops: 4.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

fn run<T: Number + Element>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let eps = call.number("eps")? as f32;
    let (inputs, outputs) = call.parts();
    let (x, weight) = (inputs[0].as_slice::<T>()?, inputs[1].as_slice::<f32>()?);
    normalize_rows(x, weight, eps, outputs[0].as_mut_slice::<T>()?);
    Ok(())
}

/// All rows, divided among threads.
pub(crate) fn normalize_rows<T: Number>(x: &[T], weight: &[f32], eps: f32, to: &mut [T]) {
    let width = weight.len().max(1);
    Threads::All.for_each_share(to, width, |first, to| {
        let from = x[first * width..].chunks(width);
        for (from, to) in from.zip(to.chunks_mut(width)) {
            normalize(from, weight, eps, to);
        }
    });
}
