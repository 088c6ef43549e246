//! Contractions on the host's processor: one call of a product of ours instead of XLA's `dot_general`.

use ferrotune_cpu::{Matrix, Number, Threads, multiply_rounded};
use ferrotune_pjrt::{Attribute, DType, Kernel, KernelCall, KernelInput, Platform};
use half::bf16;

use crate::emit::Emitter;
use crate::ops::einsum::Einsum;
use crate::ops::einsum_text::Operand;
use crate::ops::kernel::{Given, call_text};
use crate::tensor_type::TensorType;

/// A contraction as a batch of products of matrices; sizes and strides in elements.
#[derive(Debug, PartialEq)]
struct Products {
    /// Sizes of the batch dimensions.
    batch: Vec<usize>,
    /// Strides of the left operand along batch, rows and what is summed over.
    left: Vec<usize>,
    /// Strides of the right operand along batch, what is summed over, and columns.
    right: Vec<usize>,
    /// Rows, elements summed over, columns.
    dims: [usize; 3],
}

/// Fewer elements in all are better left to XLA, which may fuse the product with what is around it.
const WORTH_A_CALL: usize = 1 << 16;
/// Narrower matrices too.
const NARROWEST: usize = 8;

impl Einsum {
    /// Writes the product as a call, if it is one that the processor's own products form faster. The result has dimensions
    /// in the natural order.
    pub(crate) fn write_call(
        &self,
        out: &mut Emitter<'_>,
        lhs: &Operand,
        rhs: &Operand,
        result: &TensorType,
    ) -> Option<String> {
        let types = (lhs.ty.dtype, result.dtype);
        let fits = matches!(
            types,
            (DType::F32, DType::F32) | (DType::BF16, DType::F32 | DType::BF16)
        );
        if out.platform() != Platform::Cpu || !out.is_local() || !fits {
            return None;
        }
        let products = self.products(lhs, rhs)?;
        let elements = lhs.ty.elements() + rhs.ty.elements() + result.elements();
        let [_, summed, columns] = products.dims;
        if elements < WORTH_A_CALL || summed < NARROWEST || columns < NARROWEST {
            return None;
        }
        out.chose("product of the host's processor");
        out.needs_kernel(&PRODUCT);
        let integers =
            |values: &[usize]| Attribute::Integers(values.iter().map(|v| *v as i64).collect());
        let attributes = [
            ("batch", integers(&products.batch)),
            ("left", integers(&products.left)),
            ("right", integers(&products.right)),
            ("dims", integers(&products.dims)),
        ];
        let text = call_text(
            &PRODUCT,
            &attributes,
            &[lhs, rhs].map(|it| Given::new(out, &it.name, &it.ty)),
            std::slice::from_ref(result),
        );
        Some(out.assign(text))
    }

    /// `None` when rows, columns or what is summed over do not lie evenly in an operand.
    fn products(&self, lhs: &Operand, rhs: &Operand) -> Option<Products> {
        let (batch, summed) = (self.batch(), self.contracted());
        let rows: Vec<char> = self.free(&self.lhs, &self.rhs).collect();
        let columns: Vec<char> = self.free(&self.rhs, &self.lhs).collect();
        let sizes =
            |letters: &[char], of: &Operand| letters.iter().map(|c| of.place(*c).0).collect();
        let strides = |of: &Operand, first: &[char], second: &[char]| {
            let batch = batch.iter().map(|c| of.place(*c).1);
            let last = [of.together(first)?.1, of.together(second)?.1];
            Some(batch.chain(last).collect())
        };
        Some(Products {
            batch: sizes(&batch, lhs),
            left: strides(lhs, &rows, &summed)?,
            right: strides(rhs, &summed, &columns)?,
            dims: [
                lhs.together(&rows)?.0,
                lhs.together(&summed)?.0,
                rhs.together(&columns)?.0,
            ],
        })
    }
}

impl Operand {
    /// Size and stride of a dimension.
    fn place(&self, letter: char) -> (usize, usize) {
        let at = self.letters.iter().position(|c| *c == letter);
        let at = at.expect("the letters were checked by infer");
        (self.ty.dims[at], self.ty.dims[at + 1..].iter().product())
    }

    /// Size and stride of dimensions as if they were one, the last of them fastest.
    fn together(&self, letters: &[char]) -> Option<(usize, usize)> {
        let mut places = letters
            .iter()
            .rev()
            .map(|c| self.place(*c))
            .filter(|(size, _)| *size != 1);
        let (mut size, stride) = places.next().unwrap_or((1, 1));
        for (more, step) in places {
            if step != stride * size {
                return None;
            }
            size *= more;
        }
        Some((size, stride))
    }
}

static PRODUCT: Kernel = Kernel {
    name: "product",
    run,
};

fn run(call: &mut KernelCall<'_>) -> Result<(), String> {
    let list = |name: &str| -> Result<Vec<usize>, String> {
        let values = call.integers(name)?;
        let size = |v: i64| usize::try_from(v).map_err(|_| format!("`{name}` has a negative size"));
        values.into_iter().map(size).collect()
    };
    let dims = list("dims")?;
    let products = Products {
        batch: list("batch")?,
        left: list("left")?,
        right: list("right")?,
        dims: dims.try_into().map_err(|_| "`dims` are three")?,
    };
    let (inputs, outputs) = call.parts();
    match (inputs[0].dtype(), outputs[0].dtype()) {
        (DType::F32, _) => products.run(inputs, outputs[0].as_mut_slice::<f32>()?, f32::multiply),
        (_, DType::F32) => products.run(inputs, outputs[0].as_mut_slice::<f32>()?, bf16::multiply),
        _ => products.run(inputs, outputs[0].as_mut_slice::<bf16>()?, multiply_rounded),
    }
}

impl Products {
    /// Divides the batch among threads, or each product when there are fewer products than threads.
    fn run<T: ferrotune_pjrt::Element + Number, O: Send>(
        &self,
        inputs: &[KernelInput<'_>],
        out: &mut [O],
        multiply: impl Fn(Matrix<'_, T>, Matrix<'_, T>, &mut [O], Threads) + Sync,
    ) -> Result<(), String> {
        let (left, right) = (inputs[0].as_slice::<T>()?, inputs[1].as_slice::<T>()?);
        let [rows, summed, columns] = self.dims;
        let one = |number: usize, out: &mut [O], threads| {
            let (first, strides) = self.part(&self.left, number);
            let a = Matrix::new(&left[first..], [rows, summed], strides);
            let (first, strides) = self.part(&self.right, number);
            let b = Matrix::new(&right[first..], [summed, columns], strides);
            multiply(a, b, out, threads);
        };
        let count: usize = self.batch.iter().product();
        if rows * columns == 0 || count == 0 {
            return Ok(());
        }
        // Several at once, or one after the other by all threads when there are too few.
        let (outside, inside) = match count >= Threads::All.count() {
            true => (Threads::All, Threads::One),
            false => (Threads::One, Threads::All),
        };
        outside.for_each_chunk(out, rows * columns, |number, out| one(number, out, inside));
        Ok(())
    }

    /// Where the matrix of that number begins, and its two strides.
    fn part(&self, strides: &[usize], number: usize) -> (usize, [usize; 2]) {
        let (along, last) = strides.split_at(self.batch.len());
        let (mut rest, mut first) = (number, 0);
        for (size, stride) in self.batch.iter().zip(along).rev() {
            first += rest % size * stride;
            rest /= size;
        }
        (first, [last[0], last[1]])
    }
}
