//! Contractions of two tensors, written as Einstein sums: `btd,df->btf`.
//!
//! A letter that both operands have and the result has not is summed over. Because the rule for the derivative is again
//! an Einstein sum, this one operation covers every matrix product of the models and of their gradients.

use ferrotune_pjrt::DType;

use crate::arena::Graph;
use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::einsum_text::Operand;
use crate::ops::same_dtype;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// How exactly products of f32 operands are formed where the hardware multiplies narrower numbers. Where it does not (the
/// CPU plugin), and for narrower operands, all three are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// As fast as the device can: on a TPU f32 operands are rounded to bf16, on a GPU perhaps to tf32.
    #[default]
    Default,
    /// Between the two: three bf16 products on a TPU.
    High,
    /// As exact as f32: six bf16 products on a TPU.
    Highest,
}

#[derive(Debug, Clone)]
pub(crate) struct Einsum {
    pub(crate) lhs: Vec<char>,
    pub(crate) rhs: Vec<char>,
    pub(crate) out: Vec<char>,
    /// Element type of the result. Products are summed in f32 or wider whatever it is.
    pub(crate) dtype: DType,
    pub(crate) precision: Precision,
}

impl Einsum {
    fn parse(spec: &str, dtype: DType, precision: Precision) -> Option<Self> {
        let (operands, out) = spec.split_once("->")?;
        let (lhs, rhs) = operands.split_once(',')?;
        let letters = |s: &str| s.trim().chars().collect::<Vec<char>>();
        Some(Self {
            lhs: letters(lhs),
            rhs: letters(rhs),
            out: letters(out),
            dtype,
            precision,
        })
    }

    pub(crate) fn size(&self, letter: char, inputs: &[TensorType]) -> Option<usize> {
        let find = |letters: &[char], ty: &TensorType| {
            letters
                .iter()
                .position(|c| *c == letter)
                .map(|i| ty.dims[i])
        };
        find(&self.lhs, &inputs[0]).or_else(|| find(&self.rhs, &inputs[1]))
    }

    pub(crate) fn batch(&self) -> Vec<char> {
        self.lhs
            .iter()
            .copied()
            .filter(|c| self.rhs.contains(c) && self.out.contains(c))
            .collect()
    }

    pub(crate) fn contracted(&self) -> Vec<char> {
        self.lhs
            .iter()
            .copied()
            .filter(|c| self.rhs.contains(c) && !self.out.contains(c))
            .collect()
    }

    pub(crate) fn free<'a>(
        &'a self,
        side: &'a [char],
        other: &'a [char],
    ) -> impl Iterator<Item = char> + 'a {
        side.iter().copied().filter(move |c| !other.contains(c))
    }

    /// Letters of what `dot_general` returns: batch, free of the left, free of the right.
    pub(crate) fn natural(&self) -> Vec<char> {
        self.batch()
            .into_iter()
            .chain(self.free(&self.lhs, &self.rhs))
            .chain(self.free(&self.rhs, &self.lhs))
            .collect()
    }
}

impl Op for Einsum {
    fn name(&self) -> &str {
        "einsum"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        same_dtype(inputs)?;
        for (letters, ty) in [(&self.lhs, &inputs[0]), (&self.rhs, &inputs[1])] {
            if letters.len() != ty.rank() {
                return Err(format!(
                    "`{}` names {} dimensions of {ty}",
                    letters.iter().collect::<String>(),
                    letters.len()
                ));
            }
        }
        for letters in [&self.lhs, &self.rhs, &self.out] {
            if (0..letters.len()).any(|i| letters[..i].contains(&letters[i])) {
                return Err("a letter appears twice in one tensor".to_owned());
            }
        }
        for (side, other) in [(&self.lhs, &self.rhs), (&self.rhs, &self.lhs)] {
            for (i, c) in side.iter().enumerate() {
                if !other.contains(c) && !self.out.contains(c) {
                    return Err(format!(
                        "`{c}` is in one operand only and not in the result; sum over it first"
                    ));
                }
                let ty = if std::ptr::eq(side, &self.lhs) {
                    &inputs[0]
                } else {
                    &inputs[1]
                };
                if self.size(*c, inputs) != Some(ty.dims[i]) {
                    return Err(format!("`{c}` has two sizes"));
                }
            }
        }
        let dims: Option<Vec<usize>> = self.out.iter().map(|c| self.size(*c, inputs)).collect();
        let dims = dims.ok_or("a letter of the result is in no operand")?;
        Ok(vec![TensorType::new(self.dtype, &dims)])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let operand = cx.inputs[0].dtype();
        let g = cx.cotangent().convert(operand);
        let other = |lhs: &[char], out: &[char]| Self {
            lhs: self.out.clone(),
            rhs: lhs.to_vec(),
            out: out.to_vec(),
            dtype: operand,
            precision: self.precision,
        };
        let a = cx.needs[0].then(|| {
            cx.graph
                .add_one(other(&self.rhs, &self.lhs), &[&g, &cx.inputs[1]])
        });
        let b = cx.needs[1].then(|| {
            cx.graph
                .add_one(other(&self.lhs, &self.rhs), &[&g, &cx.inputs[0]])
        });
        Gradient::Of(vec![a, b])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let swapped = Self {
            lhs: self.rhs.clone(),
            rhs: self.lhs.clone(),
            ..self.clone()
        };
        let operand = |i: usize, letters: &[char]| Operand {
            name: site.inputs[i].clone(),
            letters: letters.to_vec(),
            ty: site.input_types[i].clone(),
        };
        let (lhs, rhs) = (operand(0, &self.lhs), operand(1, &self.rhs));
        let result = &site.output_types[0];
        vec![
            if self.natural() != self.out && swapped.natural() == self.out {
                swapped.write(out, rhs, lhs, result)
            } else {
                self.write(out, lhs, rhs, result)
            },
        ]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let summed: usize = self
            .contracted()
            .iter()
            .filter_map(|c| self.size(*c, inputs))
            .product();
        Cost {
            flops: 2.0 * summed as f64 * outputs[0].elements() as f64,
            ..Cost::movement(inputs, outputs)
        }
    }

    fn is_dot(&self) -> bool {
        true
    }
}

impl Graph {
    /// Contracts two tensors as `spec` says, such as `btd,df->btf`, into element type `dtype`.
    ///
    /// Letters in both operands and in the result are batch dimensions; letters in both operands only are summed over.
    /// Sums are formed in f32, or in f64 when an operand or the result is f64, and rounded once; integers in 32 bits or
    /// the wider result.
    ///
    /// # Panics
    /// When the text is not of that form or does not fit the operands.
    #[track_caller]
    pub fn einsum(&self, spec: &str, lhs: &Tensor, rhs: &Tensor, dtype: DType) -> Tensor {
        self.einsum_with(spec, lhs, rhs, dtype, Precision::Default)
    }

    /// The same with a given precision, which the derivatives keep.
    ///
    /// # Panics
    /// As [`Self::einsum`] does.
    #[track_caller]
    pub fn einsum_with(
        &self,
        spec: &str,
        lhs: &Tensor,
        rhs: &Tensor,
        dtype: DType,
        precision: Precision,
    ) -> Tensor {
        let Some(op) = Einsum::parse(spec, dtype, precision) else {
            panic!("`{spec}` is not of the form `ab,bc->ac`");
        };
        self.add_one(op, &[lhs, rhs])
    }
}
