//! Reductions over dimensions: sum, largest, smallest, all, any, and the place of the largest.

use ferrotune_pjrt::DType;

use crate::arena::Arena;
use crate::emit::Emitter;
use crate::literal;
use crate::op::{Cost, Gradient, Op, Site, VjpContext};
use crate::ops::list;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Sum,
    Max,
    Min,
    All,
    Any,
}

impl Kind {
    fn stablehlo(self) -> &'static str {
        match self {
            Self::Sum => "add",
            Self::Max => "maximum",
            Self::Min => "minimum",
            Self::All => "and",
            Self::Any => "or",
        }
    }

    /// The value that changes nothing.
    fn neutral(self, dtype: DType) -> String {
        let integer = |max: bool| match dtype {
            DType::S8 => (if max { i8::MIN } else { i8::MAX }).to_string(),
            DType::S16 => (if max { i16::MIN } else { i16::MAX }).to_string(),
            DType::S32 => (if max { i32::MIN } else { i32::MAX }).to_string(),
            DType::S64 => (if max { i64::MIN } else { i64::MAX }).to_string(),
            DType::U8 => (if max { u8::MIN } else { u8::MAX }).to_string(),
            DType::U16 => (if max { u16::MIN } else { u16::MAX }).to_string(),
            DType::U32 => (if max { u32::MIN } else { u32::MAX }).to_string(),
            _ => (if max { u64::MIN } else { u64::MAX }).to_string(),
        };
        match self {
            Self::Sum => literal::splat(0.0, dtype),
            Self::All => "true".to_owned(),
            Self::Any => "false".to_owned(),
            Self::Max if dtype.is_float() => literal::splat(f64::NEG_INFINITY, dtype),
            Self::Min if dtype.is_float() => literal::splat(f64::INFINITY, dtype),
            Self::Max => integer(true),
            Self::Min => integer(false),
        }
    }
}

#[derive(Debug)]
struct Reduce {
    kind: Kind,
    axes: Vec<usize>,
}

fn without(dims: &[usize], axes: &[usize]) -> Vec<usize> {
    (0..dims.len())
        .filter(|d| !axes.contains(d))
        .map(|d| dims[d])
        .collect()
}

impl Reduce {
    /// A result of the reduction, repeated to the operand's dimensions.
    fn spread(&self, reduced: &Tensor, dims: &[usize]) -> Tensor {
        let map: Vec<usize> = (0..dims.len()).filter(|d| !self.axes.contains(d)).collect();
        reduced.broadcast_in_dim(dims, &map)
    }
}

impl Op for Reduce {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Sum => "sum",
            Kind::Max => "max",
            Kind::Min => "min",
            Kind::All => "all",
            Kind::Any => "any",
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let x = &inputs[0];
        if self.axes.iter().any(|a| *a >= x.rank()) || self.axes.windows(2).any(|w| w[0] >= w[1]) {
            return Err(format!(
                "axes {:?} must be ascending and below {}",
                self.axes,
                x.rank()
            ));
        }
        if (x.dtype == DType::Pred) != matches!(self.kind, Kind::All | Kind::Any) {
            return Err(format!("{} of {}", self.name(), x.dtype));
        }
        Ok(vec![TensorType::new(
            x.dtype,
            &without(&x.dims, &self.axes),
        )])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let (g, x) = (cx.cotangent(), &cx.inputs[0]);
        let dims = x.dims();
        match self.kind {
            Kind::Sum => Gradient::one(self.spread(g, &dims)),
            Kind::Max | Kind::Min => {
                // Elements that share the extreme value share its cotangent.
                let hit = x.eq(&self.spread(&cx.outputs[0], &dims)).convert(x.dtype());
                let share = g / hit.sum(&self.axes);
                Gradient::one(hit * self.spread(&share, &dims))
            }
            Kind::All | Kind::Any => Gradient::Zero("booleans are discrete"),
        }
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (from, to) = (&site.input_types[0], &site.output_types[0]);
        let scalar = TensorType::new(from.dtype, &[]);
        let start = out.assign(format!(
            "stablehlo.constant dense<{}> : {scalar}",
            self.kind.neutral(from.dtype)
        ));
        vec![out.assign(format!(
            "stablehlo.reduce({} init: {start}) applies stablehlo.{} across dimensions = {} : ({from}, {scalar}) -> {to}",
            site.inputs[0],
            self.kind.stablehlo(),
            list(&self.axes)
        ))]
    }

    fn cost(&self, _: &Arena, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            flops: inputs[0].elements() as f64,
            ..Cost::movement(inputs, outputs)
        }
    }
}

/// Index of the largest element along an axis; the first of equals.
#[derive(Debug)]
struct ArgMax {
    axis: usize,
}

impl Op for ArgMax {
    fn name(&self) -> &str {
        "argmax"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let x = &inputs[0];
        if self.axis >= x.rank() || x.dims[self.axis] == 0 {
            return Err(format!("axis {} of {x}", self.axis));
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
        let iota = out.assign(format!("stablehlo.iota dim = {} : {indices}", self.axis));
        let least = out.assign(format!(
            "stablehlo.constant dense<{}> : {v}",
            Kind::Max.neutral(from.dtype)
        ));
        let zero = out.assign(format!("stablehlo.constant dense<{}> : {i}", i32::MAX));
        let kind = if from.dtype.is_float() {
            "FLOAT"
        } else {
            "SIGNED"
        };
        // A larger value wins; among equal ones the smaller index. The start has the largest index, so any element beats it.
        let body = format!(
            " reducer(%va: {v}, %vb: {v}) (%ia: {i}, %ib: {i}) {{ \
             %gt = stablehlo.compare GT, %va, %vb, {kind} : ({v}, {v}) -> tensor<i1> \
             %eq = stablehlo.compare EQ, %va, %vb, {kind} : ({v}, {v}) -> tensor<i1> \
             %lt = stablehlo.compare LT, %ia, %ib, SIGNED : ({i}, {i}) -> tensor<i1> \
             %tie = stablehlo.and %eq, %lt : tensor<i1> \
             %first = stablehlo.or %gt, %tie : tensor<i1> \
             %v = stablehlo.select %first, %va, %vb : tensor<i1>, {v} \
             %i = stablehlo.select %first, %ia, %ib : tensor<i1>, {i} \
             stablehlo.return %v, %i : {v}, {i} }}"
        );
        let results = out.assign_many_with(
            2,
            format!(
                "stablehlo.reduce({} init: {least}), ({iota} init: {zero}) across dimensions = [{}] : ({from}, {indices}, {v}, {i}) -> ({values_out}, {to})",
                site.inputs[0], self.axis
            ),
            &body,
        );
        vec![results[1].clone()]
    }

    fn cost(&self, _: &Arena, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            flops: inputs[0].elements() as f64,
            ..Cost::movement(inputs, outputs)
        }
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $method:ident, $keep:ident = $kind:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(&self, axes: &[usize]) -> Tensor {
                let mut axes = axes.to_vec();
                axes.sort_unstable();
                if axes.is_empty() {
                    return self.clone();
                }
                self.graph.add_one(Reduce { kind: Kind::$kind, axes }, &[self])
            }

            /// The same reduction, with the reduced dimensions kept at size 1.
            #[track_caller]
            pub fn $keep(&self, axes: &[usize]) -> Tensor {
                let mut dims = self.dims();
                for axis in axes {
                    dims[*axis] = 1;
                }
                self.$method(axes).reshape(&dims)
            })*
        }
    };
}

reductions! {
    /// Sum over `axes`.
    sum, sum_keep = Sum;
    /// Largest value over `axes`; equal ones share the cotangent.
    max, max_keep = Max;
    /// Smallest value over `axes`; equal ones share the cotangent.
    min, min_keep = Min;
    /// Whether a boolean tensor holds everywhere over `axes`.
    all, all_keep = All;
    /// Whether a boolean tensor holds somewhere over `axes`.
    any, any_keep = Any;
}

impl Tensor {
    /// Sum of all elements, a scalar.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        self.sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// Mean over `axes`, with these dimensions kept at size 1.
    #[track_caller]
    pub fn mean_keep(&self, axes: &[usize]) -> Tensor {
        let count: usize = axes.iter().map(|a| self.dim(*a)).product();
        self.sum_keep(axes) * (1.0 / count as f64)
    }

    /// Index (s32) of the largest element along `axis`; the first of equals.
    #[track_caller]
    pub fn argmax(&self, axis: usize) -> Tensor {
        self.graph.add_one(ArgMax { axis }, &[self])
    }
}
