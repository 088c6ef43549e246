//! Reductions over dimensions: sum, largest, smallest, all, any.

use ferrotune_pjrt::DType;

use crate::emit::Emitter;
use crate::literal;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::list;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// How two values become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Sum,
    Max,
    Min,
    All,
    Any,
}

impl Kind {
    pub(crate) fn stablehlo(self) -> &'static str {
        match self {
            Self::Sum => "add",
            Self::Max => "maximum",
            Self::Min => "minimum",
            Self::All => "and",
            Self::Any => "or",
        }
    }

    /// The value that changes nothing.
    pub(crate) fn neutral(self, dtype: DType) -> String {
        match self {
            Self::Sum => literal::splat(0.0, dtype),
            Self::All => "true".to_owned(),
            Self::Any => "false".to_owned(),
            // It has no infinities; these are its ends.
            Self::Max if dtype == DType::F8E4M3FN => literal::splat(-448.0, dtype),
            Self::Min if dtype == DType::F8E4M3FN => literal::splat(448.0, dtype),
            // For integers the infinities become the ends of the type.
            Self::Max => literal::splat(f64::NEG_INFINITY, dtype),
            Self::Min => literal::splat(f64::INFINITY, dtype),
        }
    }
}

#[derive(Debug)]
struct Reduce {
    kind: Kind,
    axes: Vec<usize>,
}

pub(crate) fn without(dims: &[usize], axes: &[usize]) -> Vec<usize> {
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

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            flops: inputs[0].elements().saturating_sub(outputs[0].elements()) as f64,
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
                    // The reduction refuses an axis that is not there.
                    if let Some(size) = dims.get_mut(*axis) {
                        *size = 1;
                    }
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
        let sum = self.sum_keep(axes);
        let count: usize = axes.iter().map(|a| self.dim(*a)).product();
        sum * (1.0 / count as f64)
    }
}
