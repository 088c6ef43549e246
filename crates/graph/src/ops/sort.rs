//! Sorting along an axis, with other tensors carried along.

use ferrotune_pjrt::DType;

use crate::arena::Arena;
use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::compare::order_of;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Operands: the keys, what is carried, the places along the axis. Results: the same in the order of the keys; the places
/// have become the permutation, for the derivative.
#[derive(Debug)]
struct Sort {
    axis: usize,
    descending: bool,
}

impl Op for Sort {
    fn name(&self) -> &str {
        "sort"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let keys = &inputs[0];
        if self.axis >= keys.rank() {
            return Err(format!("axis {} of {keys}", self.axis));
        }
        if let Some(other) = inputs.iter().find(|t| t.dims != keys.dims) {
            return Err(format!("{other} has other dimensions than the keys"));
        }
        Ok(inputs.to_vec())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        // Sorting by the permutation undoes it. A second sort does that for any axis and without the index arithmetic, and
        // on a TPU the time, of a scatter.
        let permutation = &cx.outputs[cx.outputs.len() - 1];
        let moved: Vec<&Tensor> = cx.cotangents.iter().flatten().collect();
        let (_, mut back) = permutation.sort_by_key(&moved, self.axis, false);
        back.reverse();
        let answer = cx
            .cotangents
            .iter()
            .map(|g| g.as_ref().and_then(|_| back.pop()));
        Gradient::Of(answer.collect())
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        // The keys are always sorted; the rest only if somebody reads it.
        let kept: Vec<usize> = (0..site.inputs.len())
            .filter(|i| *i == 0 || site.live_outputs[*i])
            .collect();
        let types: Vec<String> = kept
            .iter()
            .map(|i| site.input_types[*i].to_string())
            .collect();
        let types = types.join(", ");
        let names: Vec<&str> = kept.iter().map(|i| site.inputs[*i].as_str()).collect();
        let params: Vec<String> = kept
            .iter()
            .map(|i| {
                let scalar = TensorType::new(site.input_types[*i].dtype, &[]);
                format!("%a{i}: {scalar}, %b{i}: {scalar}")
            })
            .collect();
        let text = format!(
            "\"stablehlo.sort\"({}) <{{dimension = {} : i64, is_stable = true}}> ({{ ^bb0({}): {} }}) : ({types}) -> ({types})",
            names.join(", "),
            self.axis,
            params.join(", "),
            self.comparator(site.input_types[0].dtype)
        );
        let results = out.assign_many(kept.len(), text);
        let mut answer = vec![String::new(); site.inputs.len()];
        for (i, name) in kept.into_iter().zip(results) {
            answer[i] = name;
        }
        answer
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let depth = inputs[0].dims[self.axis].max(2) as f64;
        Cost::elementwise(depth.log2().ceil(), inputs, outputs)
    }

    fn live_inputs(&self, _: &Arena, live_outputs: &[bool], _: usize) -> Vec<bool> {
        let mut live = live_outputs.to_vec();
        live[0] = true;
        live
    }
}

impl Sort {
    /// Whether `%a0` comes before `%b0`. A NaN counts as larger than any number, and −0 as equal to 0.
    fn comparator(&self, dtype: DType) -> String {
        let (scalar, order) = (TensorType::new(dtype, &[]), order_of(dtype));
        let (direction, nan, number) = if self.descending {
            ("GT", "%a0", "%b0")
        } else {
            ("LT", "%b0", "%a0")
        };
        let compare = |name: &str, how: &str, a: &str, b: &str| {
            format!(
                "%{name} = stablehlo.compare {how}, {a}, {b}, {order} : ({scalar}, {scalar}) -> tensor<i1> "
            )
        };
        let before = compare("before", direction, "%a0", "%b0");
        if !dtype.is_float() {
            return format!("{before}stablehlo.return %before : tensor<i1>");
        }
        let nan = compare("nan", "NE", nan, nan);
        let number = compare("number", "EQ", number, number);
        format!(
            "{before}{nan}{number}%alone = stablehlo.and %nan, %number : tensor<i1> \
             %first = stablehlo.or %before, %alone : tensor<i1> stablehlo.return %first : tensor<i1>"
        )
    }
}

impl Tensor {
    /// These keys sorted along `axis`, and `values` (of the same dimensions, any types) carried with them.
    ///
    /// Equal keys keep their order, descending too. A NaN counts as larger than any number; −0 and 0 are equal. To get the
    /// permutation itself, carry an iota. Keys and values are differentiable: cotangents go back to where each element
    /// came from.
    ///
    /// # Panics
    /// When the axis is not there or a value has other dimensions than the keys.
    #[track_caller]
    pub fn sort_by_key(
        &self,
        values: &[&Tensor],
        axis: usize,
        descending: bool,
    ) -> (Tensor, Vec<Tensor>) {
        assert!(axis < self.rank(), "`sort`: axis {axis} of {}", self.ty());
        let places = self.graph.iota(DType::S32, &self.dims(), axis);
        let operands = [&[self], values, &[&places]].concat();
        let mut sorted = self.graph.add(Sort { axis, descending }, &operands);
        sorted.pop();
        let keys = sorted.remove(0);
        (keys, sorted)
    }
}
