//! Parts and joins at static places: slice, pad, concatenate, reverse.

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::{list, same_dtype};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Elements `low..high` along one axis.
#[derive(Debug)]
struct Slice {
    axis: usize,
    low: usize,
    high: usize,
}

impl Op for Slice {
    fn name(&self) -> &str {
        "slice"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let mut ty = inputs[0].clone();
        if self.axis >= ty.rank() || self.low > self.high || self.high > ty.dims[self.axis] {
            return Err(format!(
                "elements {}..{} of axis {} are not there",
                self.low, self.high, self.axis
            ));
        }
        ty.dims[self.axis] = self.high - self.low;
        Ok(vec![ty])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let size = cx.inputs[0].dim(self.axis);
        Gradient::one(
            cx.cotangent()
                .pad(self.axis, self.low, size - self.high, 0.0),
        )
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (from, to) = (&site.input_types[0], &site.output_types[0]);
        let ranges: Vec<String> = (0..from.rank())
            .map(|d| {
                if d == self.axis {
                    format!("{}:{}", self.low, self.high)
                } else {
                    format!("0:{}", from.dims[d])
                }
            })
            .collect();
        let name = out.assign(format!(
            "stablehlo.slice {} [{}] : ({from}) -> {to}",
            site.inputs[0],
            ranges.join(", ")
        ));
        if from.dims[..self.axis].iter().all(|size| *size == 1) {
            let stride: usize = from.dims[self.axis + 1..].iter().product();
            out.is_view(&name, &site.inputs[0], from, self.low * stride);
        }
        vec![name]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

/// A value before and after the elements of one axis.
#[derive(Debug)]
struct Pad {
    axis: usize,
    low: usize,
    high: usize,
    value: f64,
}

impl Op for Pad {
    fn name(&self) -> &str {
        "pad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let mut ty = inputs[0].clone();
        if self.axis >= ty.rank() {
            return Err(format!("axis {} of {ty}", self.axis));
        }
        crate::literal::check(self.value, ty.dtype)?;
        // Sizes that cannot be counted are refused when the node is added.
        let added = self.low.saturating_add(self.high);
        ty.dims[self.axis] = ty.dims[self.axis].saturating_add(added);
        Ok(vec![ty])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let size = cx.inputs[0].dim(self.axis);
        Gradient::one(cx.cotangent().slice(self.axis, self.low, self.low + size))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (from, to) = (&site.input_types[0], &site.output_types[0]);
        let at = |amount: usize| {
            list(
                &(0..from.rank())
                    .map(|d| if d == self.axis { amount } else { 0 })
                    .collect::<Vec<_>>(),
            )
        };
        let scalar = TensorType::new(from.dtype, &[]);
        let literal = crate::literal::splat(self.value, from.dtype);
        let value = out.assign(format!("stablehlo.constant dense<{literal}> : {scalar}"));
        let (low, high, interior) = (at(self.low), at(self.high), at(0));
        vec![out.assign(format!(
            "stablehlo.pad {}, {value}, low = {low}, high = {high}, interior = {interior} : ({from}, {scalar}) -> {to}",
            site.inputs[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

#[derive(Debug)]
struct Concatenate {
    axis: usize,
}

impl Op for Concatenate {
    fn name(&self) -> &str {
        "concatenate"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        same_dtype(inputs)?;
        let mut ty = inputs[0].clone();
        if self.axis >= ty.rank() {
            return Err(format!("axis {} of {ty}", self.axis));
        }
        ty.dims[self.axis] = 0;
        // Sizes that cannot be counted are refused when the node is added.
        let mut joined: usize = 0;
        for x in inputs {
            let mut rest = x.dims.clone();
            if rest.len() != ty.rank() {
                return Err("the operands differ in rank".to_owned());
            }
            joined = joined.saturating_add(std::mem::take(&mut rest[self.axis]));
            if rest != ty.dims {
                return Err(format!("the operands differ outside of axis {}", self.axis));
            }
        }
        ty.dims[self.axis] = joined;
        Ok(vec![ty])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let mut low = 0;
        let mut parts = Vec::with_capacity(cx.inputs.len());
        for (x, needed) in cx.inputs.iter().zip(&cx.needs) {
            let high = low + x.dim(self.axis);
            parts.push(needed.then(|| cx.cotangent().slice(self.axis, low, high)));
            low = high;
        }
        Gradient::Of(parts)
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let types: Vec<String> = site.input_types.iter().map(TensorType::to_string).collect();
        vec![out.assign(format!(
            "stablehlo.concatenate {}, dim = {} : ({}) -> {}",
            site.inputs.join(", "),
            self.axis,
            types.join(", "),
            site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

#[derive(Debug)]
struct Reverse {
    axis: usize,
}

impl Op for Reverse {
    fn name(&self) -> &str {
        "reverse"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if self.axis >= inputs[0].rank() {
            return Err(format!("axis {} of {}", self.axis, inputs[0]));
        }
        Ok(inputs.to_vec())
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        Gradient::one(cx.cotangent().reverse(self.axis))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        vec![out.assign(format!(
            "stablehlo.reverse {}, dims = [{}] : {}",
            site.inputs[0], self.axis, site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

impl Tensor {
    /// Elements `low..high` along `axis`.
    #[track_caller]
    pub fn slice(&self, axis: usize, low: usize, high: usize) -> Tensor {
        if axis < self.rank() && low == 0 && high == self.dim(axis) {
            return self.clone();
        }
        self.graph.add_one(Slice { axis, low, high }, &[self])
    }

    /// `low` and `high` copies of `value` before and after the elements of `axis`.
    ///
    /// # Panics
    /// When the axis is not there, or the element type does not have the value, as [`Graph::full`](crate::Graph::full).
    #[track_caller]
    pub fn pad(&self, axis: usize, low: usize, high: usize, value: f64) -> Tensor {
        if low == 0 && high == 0 {
            return self.clone();
        }
        self.graph.add_one(
            Pad {
                axis,
                low,
                high,
                value,
            },
            &[self],
        )
    }

    /// The tensors one after the other along `axis`.
    ///
    /// # Panics
    /// When there is no tensor, or they differ in element type or in another dimension.
    #[track_caller]
    pub fn concatenate(tensors: &[&Tensor], axis: usize) -> Tensor {
        let first = tensors
            .first()
            .expect("concatenate takes at least one tensor");
        first.graph.add_one(Concatenate { axis }, tensors)
    }

    /// The elements of `axis` in the opposite order.
    #[track_caller]
    pub fn reverse(&self, axis: usize) -> Tensor {
        self.graph.add_one(Reverse { axis }, &[self])
    }
}
