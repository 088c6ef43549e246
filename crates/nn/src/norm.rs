//! Root-mean-square normalisation.

use ferrotune_cpu::{Number, Threads, normalize, normalize_back};
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
            let operands = [&kept[0], &kept[1], &d[0]];
            let found = g.kernel(&RMS_NORM_BACK, &operands, &attributes, |it| {
                slopes(&it[0], &it[1], &it[2], eps)
            });
            found.into_iter().map(Some).collect()
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

/// Of `x` and of the weight.
fn slopes(x: &Tensor, weight: &Tensor, d: &Tensor, eps: f64) -> Vec<Tensor> {
    let (wide, d, last) = (x.convert(DType::F32), d.convert(DType::F32), x.rank() - 1);
    let scale = scale_of(&wide, eps);
    let (unit, slope) = (&wide * &scale, &d * weight);
    let along = (&slope * &unit).mean_keep(&[last]);
    let dx = (slope - &unit * along) * scale;
    let rows: Vec<usize> = (0..last).collect();
    vec![dx.convert(x.dtype()), (d * unit).sum(&rows)]
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

static RMS_NORM_BACK: KernelRule = KernelRule {
    kernel: Kernel {
        name: "rms_norm_back",
        run: by_type!(run_back),
    },
    infer: |inputs: &[TensorType], _: &Attributes| match inputs {
        [x, weight, d] if x == d && x.dims.last() == weight.dims.last() && weight.rank() == 1 => {
            Ok(vec![x.clone(), weight.clone()])
        }
        _ => Err("takes [..,N], a weight [N] and slopes as the first".to_owned()),
    },
    cost: |inputs, outputs| Cost {
        flops: 12.0 * inputs[0].elements() as f64,
        ..Cost::movement(inputs, outputs)
    },
};

/// Rows whose slopes of the weight are summed together: so many, whatever the number of threads.
const ROWS: usize = 64;

fn run_back<T: Number + Element>(call: &mut KernelCall<'_>) -> Result<(), String> {
    let eps = call.number("eps")? as f32;
    let (inputs, outputs) = call.parts();
    let (x, d) = (inputs[0].as_slice::<T>()?, inputs[2].as_slice::<T>()?);
    let weight = inputs[1].as_slice::<f32>()?;
    let width = weight.len().max(1);
    let [dx, d_weight] = outputs else {
        return Err("has two results".to_owned());
    };
    let (dx, d_weight) = (dx.as_mut_slice::<T>()?, d_weight.as_mut_slice::<f32>()?);
    let mut sums = vec![0.0; x.len().div_ceil(ROWS * width) * width];
    let parts = dx.chunks_mut(ROWS * width).zip(sums.chunks_mut(width));
    Threads::All.for_each_chunk(&mut parts.collect::<Vec<_>>(), 1, |part, slopes| {
        let (dx, sums) = &mut slopes[0];
        for (row, dx) in dx.chunks_mut(width).enumerate() {
            let at = (part * ROWS + row) * width;
            let [x, d] = [x, d].map(|all| &all[at..][..width]);
            normalize_back(x, weight, d, eps, dx, sums);
        }
    });
    d_weight.fill(0.0);
    for sums in sums.chunks(width) {
        let pairs = d_weight.iter_mut().zip(sums);
        pairs.for_each(|(total, sum)| *total += sum);
    }
    Ok(())
}
