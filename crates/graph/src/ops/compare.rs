//! Comparison, choice between two values, clamping and finiteness.

use ferrotune_pjrt::DType;

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::same_dtype;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// The order in which values of an element type are compared, as StableHLO names it.
pub(crate) fn order_of(dtype: DType) -> &'static str {
    match dtype {
        d if d.is_float() => "FLOAT",
        DType::Pred | DType::U8 | DType::U16 | DType::U32 | DType::U64 => "UNSIGNED",
        _ => "SIGNED",
    }
}

#[derive(Debug)]
struct Compare {
    direction: &'static str,
}

impl Op for Compare {
    fn name(&self) -> &str {
        "compare"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        same_dtype(inputs)?;
        if inputs[0].dims != inputs[1].dims {
            return Err("the operands differ in dimensions".to_owned());
        }
        Ok(vec![inputs[0].with_dtype(DType::Pred)])
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Zero("a comparison is piecewise constant")
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let ty = &site.input_types[0];
        let kind = order_of(ty.dtype);
        let (a, b) = (&site.inputs[0], &site.inputs[1]);
        vec![out.assign(format!(
            "stablehlo.compare {}, {a}, {b}, {kind} : ({ty}, {ty}) -> {}",
            self.direction, site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::elementwise(1.0, inputs, outputs)
    }
}

#[derive(Debug)]
struct Select;

impl Op for Select {
    fn name(&self) -> &str {
        "select"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if inputs[0].dtype != DType::Pred {
            return Err(format!(
                "the condition must be boolean, not {}",
                inputs[0].dtype
            ));
        }
        same_dtype(&inputs[1..])?;
        if inputs.iter().any(|t| t.dims != inputs[0].dims) {
            return Err("the operands differ in dimensions".to_owned());
        }
        Ok(vec![inputs[1].clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        let (g, condition) = (cx.cotangent(), &cx.inputs[0]);
        let zeros = g.zeros_like();
        Gradient::Of(vec![
            None,
            Some(condition.select(g, &zeros)),
            Some(condition.select(&zeros, g)),
        ])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let [p, a, b] = &site.inputs[..] else {
            unreachable!("select has three operands")
        };
        vec![out.assign(format!(
            "stablehlo.select {p}, {a}, {b} : {}, {}",
            site.input_types[0], site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::elementwise(1.0, inputs, outputs)
    }
}

#[derive(Debug)]
struct IsFinite;

impl Op for IsFinite {
    fn name(&self) -> &str {
        "is_finite"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if !inputs[0].dtype.is_float() {
            return Err(format!("takes floats, not {}", inputs[0].dtype));
        }
        Ok(vec![inputs[0].with_dtype(DType::Pred)])
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Zero("finiteness is piecewise constant")
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        vec![out.assign(format!(
            "stablehlo.is_finite {} : ({}) -> {}",
            site.inputs[0], site.input_types[0], site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::elementwise(1.0, inputs, outputs)
    }
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $method:ident = $direction:literal;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(&self, other: &Tensor) -> Tensor {
                let (a, b) = Tensor::broadcast_together(self, other);
                self.graph.add_one(Compare { direction: $direction }, &[&a, &b])
            })*
        }
    };
}

comparisons! {
    /// a = b, element by element (broadcast).
    eq = "EQ";
    /// a ≠ b
    ne = "NE";
    /// a < b
    lt = "LT";
    /// a ≤ b
    le = "LE";
    /// a > b
    gt = "GT";
    /// a ≥ b
    ge = "GE";
}

impl Tensor {
    /// `on_true` where this boolean tensor holds, else `on_false`; all three are broadcast together.
    #[track_caller]
    pub fn select(&self, on_true: &Tensor, on_false: &Tensor) -> Tensor {
        let (a, b) = Tensor::broadcast_together(on_true, on_false);
        let (condition, a) = Tensor::broadcast_together(self, &a);
        let b = b.broadcast_to(&condition.dims());
        self.graph.add_one(Select, &[&condition, &a, &b])
    }

    /// Limits values to `[low, high]`; the cotangent passes only where the value lies strictly inside.
    #[track_caller]
    pub fn clamp(&self, low: f64, high: f64) -> Tensor {
        self.maximum(&self.scalar_like(low))
            .minimum(&self.scalar_like(high))
    }

    /// True where the value is neither infinite nor NaN.
    #[track_caller]
    pub fn is_finite(&self) -> Tensor {
        self.graph.add_one(IsFinite, &[self])
    }
}
