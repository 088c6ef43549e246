//! One new token of each row, for decoding.
//!
//! A layer of a few rows is a hundred microseconds of reading weights; written as operations it is twenty small loops, between
//! which threads sleep and wake. On the CPU what stands before attention and what stands after it are one kernel each. Their
//! portable form is the layer code of training, whose numbers they have to the last bit.

mod attention;
mod feed;
mod heads;
mod logits;

use ferrotune_cpu::{Lent, Matrix, Number, Threads, multiply_each_rounded};
use ferrotune_graph::{Cost, DType, KernelCall, KernelInput, Tensor, TensorType};
use ferrotune_pjrt::Element;
use half::bf16;

pub use attention::{CacheView, attend_cache};
pub use feed::FeedStep;
pub use heads::HeadsStep;
pub use logits::LogitSummary;

/// An element of activations and weights.
trait Operand: Number + Element + Lent {
    /// `out = a · b` for each `b` and `out`, summed in f32 and rounded once, by all threads.
    fn products(a: Matrix<'_, Self>, products: &mut [(Matrix<'_, Self>, &mut [Self])]);
}

impl Operand for f32 {
    fn products(a: Matrix<'_, f32>, products: &mut [(Matrix<'_, f32>, &mut [f32])]) {
        for (b, out) in products {
            f32::multiply(a, *b, out, Threads::All);
        }
    }
}

impl Operand for bf16 {
    fn products(a: Matrix<'_, bf16>, products: &mut [(Matrix<'_, bf16>, &mut [bf16])]) {
        multiply_each_rounded(a, products, Threads::All);
    }
}

/// Rows side by side.
fn rows<T>(data: &[T], width: usize) -> Matrix<'_, T> {
    Matrix::new(data, [data.len() / width.max(1), width], [width, 1])
}

/// A weight that maps rows to rows: `[in, out]`, or `[out, in]` if it is `turned`.
fn weight<'a, T: Element>(
    input: &'a KernelInput<'_>,
    turned: bool,
) -> Result<Matrix<'a, T>, String> {
    let &[first, second] = input.dims() else {
        return Err("a weight is a matrix".to_owned());
    };
    let matrix = Matrix::new(input.as_slice::<T>()?, [first, second], [second, 1]);
    Ok(if turned { matrix.transposed() } else { matrix })
}

/// The weight's sizes: what rows are wide before and after it.
fn widths(weight: &TensorType, turned: bool) -> Result<[usize; 2], String> {
    match (&weight.dims[..], turned) {
        (&[from, to], false) | (&[to, from], true) => Ok([from, to]),
        _ => Err("a weight is a matrix".to_owned()),
    }
}

/// Products of all rows with all weights.
fn cost(inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
    let matrices = inputs.iter().filter(|it| it.rank() == 2);
    let elements: usize = matrices.map(TensorType::elements).sum();
    Cost {
        flops: 2.0 * inputs[0].dims[0] as f64 * elements as f64,
        ..Cost::movement(inputs, outputs)
    }
}

fn eps(call: &KernelCall<'_>) -> Result<f32, String> {
    Ok(call.number("eps")? as f32)
}

/// A parameter as norms read it.
fn wide(tensor: &Tensor) -> Tensor {
    tensor.convert(DType::F32)
}
