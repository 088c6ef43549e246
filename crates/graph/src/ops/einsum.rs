//! Contractions of two tensors, written as Einstein sums: `btd,df->btf`.
//!
//! A letter that both operands have and the result has not is summed over. Because the rule for the derivative is again
//! an Einstein sum, this one operation covers every matrix product of the models and of their gradients.

use ferrotune_pjrt::DType;

use crate::arena::{Arena, Graph};
use crate::emit::Emitter;
use crate::op::{Cost, Gradient, Op, Site, VjpContext};
use crate::ops::{list, same_dtype};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

#[derive(Debug, Clone)]
struct Einsum {
    lhs: Vec<char>,
    rhs: Vec<char>,
    out: Vec<char>,
    /// Element type of the result. Products are summed in f32 or wider whatever it is.
    dtype: DType,
}

impl Einsum {
    fn parse(spec: &str, dtype: DType) -> Option<Self> {
        let (operands, out) = spec.split_once("->")?;
        let (lhs, rhs) = operands.split_once(',')?;
        let letters = |s: &str| s.trim().chars().collect::<Vec<char>>();
        Some(Self {
            lhs: letters(lhs),
            rhs: letters(rhs),
            out: letters(out),
            dtype,
        })
    }

    fn size(&self, letter: char, inputs: &[TensorType]) -> Option<usize> {
        let find = |letters: &[char], ty: &TensorType| {
            letters
                .iter()
                .position(|c| *c == letter)
                .map(|i| ty.dims[i])
        };
        find(&self.lhs, &inputs[0]).or_else(|| find(&self.rhs, &inputs[1]))
    }

    fn batch(&self) -> Vec<char> {
        self.lhs
            .iter()
            .copied()
            .filter(|c| self.rhs.contains(c) && self.out.contains(c))
            .collect()
    }

    fn contracted(&self) -> Vec<char> {
        self.lhs
            .iter()
            .copied()
            .filter(|c| self.rhs.contains(c) && !self.out.contains(c))
            .collect()
    }

    fn free<'a>(&'a self, side: &'a [char], other: &'a [char]) -> impl Iterator<Item = char> + 'a {
        side.iter().copied().filter(move |c| !other.contains(c))
    }

    /// Letters of what `dot_general` returns: batch, free of the left, free of the right.
    fn natural(&self) -> Vec<char> {
        self.batch()
            .into_iter()
            .chain(self.free(&self.lhs, &self.rhs))
            .chain(self.free(&self.rhs, &self.lhs))
            .collect()
    }
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
        let (batch, contracted, natural) = (self.batch(), self.contracted(), self.natural());
        let swapped = Self {
            lhs: self.rhs.clone(),
            rhs: self.lhs.clone(),
            ..self.clone()
        };
        if natural != self.out && swapped.natural() == self.out {
            let [a, b] = [&site.input_types[0], &site.input_types[1]].map(Clone::clone);
            let inputs = vec![site.inputs[1].clone(), site.inputs[0].clone()];
            let (output_types, live_outputs) =
                (site.output_types.clone(), site.live_outputs.clone());
            return swapped.emit(
                out,
                &Site {
                    inputs,
                    input_types: vec![b, a],
                    output_types,
                    live_outputs,
                },
            );
        }
        let (lhs, rhs) = (&site.input_types[0], &site.input_types[1]);
        let dims: Vec<usize> = natural
            .iter()
            .map(|c| self.size(*c, &site.input_types).expect("checked by infer"))
            .collect();
        // A narrow result is asked for in f32 and rounded once: on the CPU plugin this runs at twice the speed of a bf16
        // result, and elsewhere the rounding is fused.
        let wide = if self.dtype.bytes() < 4 {
            DType::F32
        } else {
            self.dtype
        };
        let mut ty = TensorType::new(wide, &dims);
        let batching = if batch.is_empty() {
            String::new()
        } else {
            format!(
                "batching_dims = {} x {}, ",
                list(&positions(&batch, &self.lhs)),
                list(&positions(&batch, &self.rhs))
            )
        };
        let mut name = out.assign(format!(
            "stablehlo.dot_general {}, {}, {batching}contracting_dims = {} x {}, precision = [DEFAULT, DEFAULT] : ({lhs}, {rhs}) -> {ty}",
            site.inputs[0],
            site.inputs[1],
            list(&positions(&contracted, &self.lhs)),
            list(&positions(&contracted, &self.rhs)),
        ));
        if wide != self.dtype {
            let narrow = ty.with_dtype(self.dtype);
            name = out.assign(format!("stablehlo.convert {name} : ({ty}) -> {narrow}"));
            ty = narrow;
        }
        if natural != self.out {
            name = out.assign(format!(
                "stablehlo.transpose {name}, dims = {} : ({ty}) -> {}",
                list(&positions(&self.out, &natural)),
                site.output_types[0]
            ));
        }
        vec![name]
    }

    fn cost(&self, _: &Arena, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
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
    /// Sums are formed in f32 or wider.
    ///
    /// # Panics
    /// When the text is not of that form or does not fit the operands.
    #[track_caller]
    pub fn einsum(&self, spec: &str, lhs: &Tensor, rhs: &Tensor, dtype: DType) -> Tensor {
        let op = Einsum::parse(spec, dtype)
            .unwrap_or_else(|| panic!("`{spec}` is not of the form `ab,bc->ac`"));
        self.add_one(op, &[lhs, rhs])
    }
}
