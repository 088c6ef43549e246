//! Products in 8-bit floats with delayed scaling.
//!
//! What is multiplied is scaled into the range of its format, rounded to it, and scaled back. The scale comes from the largest
//! magnitudes of the calls before, so that it is known before the values are. They are the layer's *history*, which each call
//! moves on by one: that is state, and not a gradient, although it leaves the backward pass in a gradient's place.

use ferrotune_graph::{DType, Tensor};

/// Rows of a history: of the input, of the weight, of the gradient of the output.
pub const FP8_KINDS: usize = 3;

/// A format, and its largest number.
#[derive(Clone, Copy)]
struct Format {
    dtype: DType,
    largest: f64,
}

/// Of what is multiplied forward: more digits.
const FORWARD: Format = Format {
    dtype: DType::F8E4M3FN,
    largest: 448.0,
};

/// Of gradients: more range.
const BACKWARD: Format = Format {
    dtype: DType::F8E5M2,
    largest: 57_344.0,
};

/// `x · w` over the last dimension of `x`, in the element type of `x`, of values that were rounded to 8 bits: `x` and `w` to e4m3,
/// and the gradient of the result, for both products of the backward pass, to e5m2. Rounding itself is differentiated as if it
/// were not there.
///
/// The scale of each is that which takes the largest entry of its row of the history to the largest number of the format; what is
/// larger now is held there. A row of zeros has seen nothing, and the values' own largest magnitude takes its place. The "gradient"
/// of the history is its next value: moved by one, with the magnitudes of this call at the end. One that is not finite is not
/// entered; the newest is repeated.
///
/// # Shapes
/// `x [B,T,D]`, `w [D,F]`, `history [3,n]` f32 of magnitudes, oldest first → `[B,T,F]`.
/// # Source
/// Micikevicius et al., "FP8 formats for deep learning" (2022), section 3; delayed scaling as in NVIDIA's Transformer Engine.
#[track_caller]
pub fn linear_fp8(x_btd: &Tensor, w_df: &Tensor, history: &Tensor) -> Tensor {
    let (g, dtype) = (x_btd.graph().clone(), x_btd.dtype());
    let inputs = [x_btd, &w_df.convert(dtype), history];
    let forward = |args: &[Tensor]| {
        let (x, x_largest) = rounded(&args[0], &row(&args[2], 0), FORWARD);
        let (w, w_largest) = rounded(&args[1], &row(&args[2], 1), FORWARD);
        let y = args[0].graph().einsum("btd,df->btf", &x, &w, dtype);
        (vec![y], vec![x, w, args[2].clone(), x_largest, w_largest])
    };
    let backward = |residuals: &[Tensor], cotangents: &[Tensor]| {
        let [x, w, history, x_largest, w_largest] = residuals else {
            unreachable!("the forward function leaves five")
        };
        let (dy, dy_largest) = rounded(&cotangents[0], &row(history, 2), BACKWARD);
        let g = dy.graph();
        vec![
            Some(g.einsum("btf,df->btd", &dy, w, dtype)),
            Some(g.einsum("btd,btf->df", x, &dy, dtype)),
            Some(moved(history, &[x_largest, w_largest, &dy_largest])),
        ]
    };
    g.custom_vjp(&inputs, forward, backward).remove(0)
}

/// Row `kind` of a history, `[n]`.
fn row(history: &Tensor, kind: usize) -> Tensor {
    history.slice(0, kind, kind + 1).reshape(&[history.dim(1)])
}

/// The values as the format has them, in their own element type, and their largest magnitude, an f32 scalar.
fn rounded(values: &Tensor, history: &Tensor, format: Format) -> (Tensor, Tensor) {
    let axes: Vec<usize> = (0..values.rank()).collect();
    let largest = values.abs().max(&axes).convert(DType::F32);
    let (zero, one) = (largest.scalar_like(0.0), largest.scalar_like(1.0));
    let seen = history.max(&[0]);
    let reference = seen.gt(&zero).select(&seen, &largest);
    let reference = reference.gt(&zero).select(&reference, &one);
    let step = reference / format.largest;
    let scaled = values.convert(DType::F32) / &step;
    let bits = scaled.clamp(-format.largest, format.largest);
    let bits = bits.convert(format.dtype).convert(values.dtype());
    (bits * step.convert(values.dtype()), largest)
}

/// The history with the next entry of each row behind it, and without the oldest.
fn moved(history: &Tensor, largest: &[&Tensor; FP8_KINDS]) -> Tensor {
    let size = history.dim(1);
    let newest = history.slice(1, size - 1, size);
    let entries: Vec<Tensor> = largest.iter().map(|it| it.reshape(&[1, 1])).collect();
    let entries = Tensor::concatenate(&entries.iter().collect::<Vec<_>>(), 0);
    let entries = entries.is_finite().select(&entries, &newest);
    if size == 1 {
        return entries;
    }
    Tensor::concatenate(&[&history.slice(1, 1, size), &entries], 1)
}
