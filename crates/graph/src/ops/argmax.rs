//! The place of the largest or smallest element along an axis.

use ferrotune_pjrt::DType;

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::compare::order_of;
use crate::ops::reduce::{Kind, without};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Comparisons, logical operations and choices of the reducer below.
const REDUCER_FLOPS: f64 = 12.0;

#[derive(Debug)]
struct ArgExtreme {
    axis: usize,
    largest: bool,
}

impl Op for ArgExtreme {
    fn name(&self) -> &str {
        if self.largest { "argmax" } else { "argmin" }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let x = &inputs[0];
        if self.axis >= x.rank() || x.dims[self.axis] == 0 {
            return Err(format!("axis {} of {x}", self.axis));
        }
        if x.dtype == DType::Pred {
            return Err("takes numbers, not truth values".to_owned());
        }
        Ok(vec![TensorType::new(
            DType::S32,
            &without(&x.dims, &[self.axis]),
        )])
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Zero("an index is discrete")
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (from, to) = (&site.input_types[0], &site.output_types[0]);
        let (v, i) = (
            TensorType::new(from.dtype, &[]),
            TensorType::new(DType::S32, &[]),
        );
        let indices = from.with_dtype(DType::S32);
        let values_out = to.with_dtype(from.dtype);
        let (kind, beats) = if self.largest {
            (Kind::Max, "GT")
        } else {
            (Kind::Min, "LT")
        };
        let iota = out.assign(format!("stablehlo.iota dim = {} : {indices}", self.axis));
        let start = out.assign(format!(
            "stablehlo.constant dense<{}> : {v}",
            kind.neutral(from.dtype)
        ));
        let last = out.assign(format!("stablehlo.constant dense<{}> : {i}", i32::MAX));
        let order = order_of(from.dtype);
        // The first operand is chosen when it beats the second, when it alone is NaN, and when the two are equal (or both
        // NaN) and it comes earlier. The start has the largest index, so that any element beats it.
        let body = format!(
            " reducer(%va: {v}, %vb: {v}) (%ia: {i}, %ib: {i}) {{ \
             %beats = stablehlo.compare {beats}, %va, %vb, {order} : ({v}, {v}) -> tensor<i1> \
             %equal = stablehlo.compare EQ, %va, %vb, {order} : ({v}, {v}) -> tensor<i1> \
             %nan = stablehlo.compare NE, %va, %va, {order} : ({v}, {v}) -> tensor<i1> \
             %number = stablehlo.compare EQ, %vb, %vb, {order} : ({v}, {v}) -> tensor<i1> \
             %earlier = stablehlo.compare LT, %ia, %ib, SIGNED : ({i}, {i}) -> tensor<i1> \
             %tie = stablehlo.and %equal, %earlier : tensor<i1> \
             %weaker = stablehlo.or %number, %earlier : tensor<i1> \
             %wins = stablehlo.and %nan, %weaker : tensor<i1> \
             %either = stablehlo.or %beats, %tie : tensor<i1> \
             %first = stablehlo.or %either, %wins : tensor<i1> \
             %v = stablehlo.select %first, %va, %vb : tensor<i1>, {v} \
             %i = stablehlo.select %first, %ia, %ib : tensor<i1>, {i} \
             stablehlo.return %v, %i : {v}, {i} }}"
        );
        let results = out.assign_many_with(
            2,
            format!(
                "stablehlo.reduce({} init: {start}), ({iota} init: {last}) across dimensions = [{}] : ({from}, {indices}, {v}, {i}) -> ({values_out}, {to})",
                site.inputs[0], self.axis
            ),
            &body,
        );
        vec![results[1].clone()]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let reductions = inputs[0].elements() - outputs[0].elements();
        Cost {
            flops: REDUCER_FLOPS * reductions as f64,
            ..Cost::movement(inputs, outputs)
        }
    }
}

impl Tensor {
    /// Index (s32) of the largest element along `axis`; the first of equals. A NaN counts as larger than any number.
    ///
    /// # Panics
    /// When the axis is not there or has no elements, or the elements are truth values.
    #[track_caller]
    pub fn argmax(&self, axis: usize) -> Tensor {
        let largest = true;
        self.graph.add_one(ArgExtreme { axis, largest }, &[self])
    }

    /// Index (s32) of the smallest element along `axis`; the first of equals. A NaN counts as smaller than any number.
    ///
    /// # Panics
    /// As [`Self::argmax`] does.
    #[track_caller]
    pub fn argmin(&self, axis: usize) -> Tensor {
        let largest = false;
        self.graph.add_one(ArgExtreme { axis, largest }, &[self])
    }
}
