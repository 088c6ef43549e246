//! The text of a contraction: `dot_general`, the element type that it sums in, and the order of its operands.
//!
//! On the CPU plugin a bf16 product is fast only when the left operand ends with what is summed over. A transpose before
//! the product does not help: XLA folds it into the product, even behind a barrier. What it does not fold is a transpose
//! between two reshapes that split a dimension in halves and join it again, and that is what is written here. Measured on
//! two cores with AMX, bf16 → f32, `td,tf->df` with 2048 × 576 × 1536: 16 ms without, 3.9 ms with the copy (older plugin
//! 30 and 4.7); batched `btd,btf->bdf` with 8 × 512 × 576 × 512: 14 ms and 2.3 ms.

use ferrotune_pjrt::{DType, Platform};

use crate::emit::Emitter;
use crate::ops::einsum::{Einsum, Precision};
use crate::ops::list;
use crate::tensor_type::TensorType;

/// An operand as it is written.
pub(crate) struct Operand {
    pub(crate) name: String,
    pub(crate) letters: Vec<char>,
    pub(crate) ty: TensorType,
}

fn positions(letters: &[char], of: &[char]) -> Vec<usize> {
    letters
        .iter()
        .map(|c| {
            of.iter()
                .position(|o| o == c)
                .expect("the letters were checked by infer")
        })
        .collect()
}

/// The element type that products are summed in.
pub(crate) fn summed_in(operand: DType, result: DType) -> DType {
    match result {
        _ if operand == DType::F64 || result == DType::F64 => DType::F64,
        _ if result.bytes() >= 4 => result,
        _ if result.is_float() => DType::F32,
        DType::U8 | DType::U16 => DType::U32,
        _ => DType::S32,
    }
}

impl Einsum {
    /// Writes the product of two operands and returns its name; `result` is the type it is to have.
    pub(crate) fn write(
        &self,
        out: &mut Emitter<'_>,
        lhs: Operand,
        rhs: Operand,
        result: &TensorType,
    ) -> String {
        let natural = self.natural();
        let dims: Vec<usize> = positions(&natural, &self.out)
            .iter()
            .map(|d| result.dims[*d])
            .collect();
        let ty = TensorType::new(self.dtype, &dims);
        let name = match self.write_call(out, &lhs, &rhs, &ty) {
            Some(name) => name,
            None => self.write_dot(out, lhs, rhs, &ty),
        };
        if natural == self.out {
            return name;
        }
        let order = list(&positions(&self.out, &natural));
        out.assign(format!(
            "stablehlo.transpose {name}, dims = {order} : ({ty}) -> {result}"
        ))
    }

    /// The product as XLA's own operation, with dimensions in the natural order.
    fn write_dot(
        &self,
        out: &mut Emitter<'_>,
        lhs: Operand,
        rhs: Operand,
        result: &TensorType,
    ) -> String {
        let lhs = self.summed_last(out, lhs);
        let (batch, contracted) = (self.batch(), self.contracted());
        // A narrow result is asked for in a wide type and rounded once: on the CPU plugin this runs at twice the speed of
        // a bf16 result, and elsewhere the rounding is fused.
        let wide = summed_in(lhs.ty.dtype, self.dtype);
        let ty = result.with_dtype(wide);
        let pair = |letters: &[char]| {
            let of = |operand: &Operand| list(&positions(letters, &operand.letters));
            format!("{} x {}", of(&lhs), of(&rhs))
        };
        let batching = if batch.is_empty() {
            String::new()
        } else {
            format!("batching_dims = {}, ", pair(&batch))
        };
        let precision = match self.precision {
            Precision::Default => "DEFAULT",
            Precision::High => "HIGH",
            Precision::Highest => "HIGHEST",
        };
        let name = out.assign(format!(
            "stablehlo.dot_general {}, {}, {batching}contracting_dims = {}, precision = [{precision}, {precision}] : ({}, {}) -> {ty}",
            lhs.name,
            rhs.name,
            pair(&contracted),
            lhs.ty,
            rhs.ty
        ));
        if wide == self.dtype {
            return name;
        }
        if out.platform() == Platform::Cpu {
            out.chose("narrow product summed in a wide type and rounded once");
        }
        out.assign(format!("stablehlo.convert {name} : ({ty}) -> {result}"))
    }

    /// On the CPU plugin, a left bf16 operand that does not end with the letters summed over is copied so that it does.
    fn summed_last(&self, out: &mut Emitter<'_>, lhs: Operand) -> Operand {
        if out.platform() != Platform::Cpu || lhs.ty.dtype != DType::BF16 {
            return lhs;
        }
        let (batch, contracted) = (self.batch(), self.contracted());
        let free: Vec<char> = self.free(&self.lhs, &self.rhs).collect();
        let at = |c: &char| positions(&[*c], &lhs.letters)[0];
        let size = |c: &char| lhs.ty.dims[at(c)];
        let last_free = free.iter().filter(|c| size(c) > 1).map(at).max();
        let first_summed = contracted.iter().filter(|c| size(c) > 1).map(at).min();
        if first_summed.is_none() || last_free < first_summed {
            return lhs;
        }
        let Some(halved) = free
            .iter()
            .rev()
            .chain(&contracted)
            .find(|c| size(c) % 2 == 0)
        else {
            return lhs;
        };
        out.chose("transposed copy of a bf16 operand");
        let letters = [batch, free.clone(), contracted.clone()].concat();
        transposed_copy(out, &lhs, letters, *halved)
    }
}

/// A copy with the dimensions in the order of `letters`, written so that XLA does not fold it: `halved`, of even size, is
/// split in two and joined again.
fn transposed_copy(
    out: &mut Emitter<'_>,
    from: &Operand,
    letters: Vec<char>,
    halved: char,
) -> Operand {
    let dtype = from.ty.dtype;
    let split = positions(&[halved], &from.letters)[0];
    let mut dims = from.ty.dims.clone();
    dims[split] /= 2;
    dims.insert(split + 1, 2);
    let apart = TensorType::new(dtype, &dims);
    let order: Vec<usize> = positions(&letters, &from.letters)
        .into_iter()
        .flat_map(|d| match d {
            d if d == split => vec![d, d + 1],
            d if d > split => vec![d + 1],
            d => vec![d],
        })
        .collect();
    let moved = TensorType::new(dtype, &order.iter().map(|d| dims[*d]).collect::<Vec<_>>());
    let joined: Vec<usize> = positions(&letters, &from.letters)
        .iter()
        .map(|d| from.ty.dims[*d])
        .collect();
    let ty = TensorType::new(dtype, &joined);
    let name = out.assign(format!(
        "stablehlo.reshape {} : ({}) -> {apart}",
        from.name, from.ty
    ));
    let name = out.assign(format!(
        "stablehlo.transpose {name}, dims = {} : ({apart}) -> {moved}",
        list(&order)
    ));
    let name = out.assign(format!("stablehlo.reshape {name} : ({moved}) -> {ty}"));
    Operand { name, letters, ty }
}
