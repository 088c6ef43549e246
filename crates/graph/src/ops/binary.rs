//! Element-wise operations of two operands: a table of one-line rules.
//!
//! In a rule `g` is the cotangent, `a` and `b` the operands and `y` the result. Operands are broadcast before they reach
//! the operation, so that the rules never see unequal dimensions.

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::ops::same_dtype;
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Takes {
    Floats,
    Numbers,
    Integers,
    BitsAndBooleans,
}

struct Rule {
    name: &'static str,
    takes: Takes,
    transcendental: bool,
    vjp: fn(g: &Tensor, a: &Tensor, b: &Tensor, y: &Tensor) -> Gradient,
}

struct Binary(&'static Rule);

impl std::fmt::Debug for Binary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

impl Op for Binary {
    fn name(&self) -> &str {
        self.0.name
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let dtype = same_dtype(inputs)?;
        let fits = match self.0.takes {
            Takes::Floats => dtype.is_float(),
            Takes::Numbers => dtype != ferrotune_pjrt::DType::Pred,
            Takes::Integers => dtype.is_integer(),
            Takes::BitsAndBooleans => !dtype.is_float(),
        };
        if !fits {
            return Err(format!("takes {:?}, not {dtype}", self.0.takes));
        }
        if inputs[0].dims != inputs[1].dims {
            return Err("the operands differ in dimensions".to_owned());
        }
        Ok(vec![inputs[0].clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        (self.0.vjp)(cx.cotangent(), &cx.inputs[0], &cx.inputs[1], &cx.outputs[0])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (a, b) = (&site.inputs[0], &site.inputs[1]);
        vec![out.assign(format!(
            "stablehlo.{} {a}, {b} : {}",
            self.0.name, site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let n = outputs[0].elements() as f64;
        let work = Cost::movement(inputs, outputs);
        if self.0.transcendental {
            Cost {
                transcendentals: n,
                ..work
            }
        } else {
            Cost { flops: n, ..work }
        }
    }
}

/// Both cotangents of a two-operand rule.
fn two(a: Tensor, b: Tensor) -> Gradient {
    Gradient::Of(vec![Some(a), Some(b)])
}

/// 1 where `a` is chosen over `b`, one half where they are equal.
fn share(chosen: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    let dtype = a.dtype();
    chosen.convert(dtype) + a.eq(b).convert(dtype) * 0.5
}

macro_rules! binary_table {
    ($($(#[$doc:meta])* $method:ident = $name:literal, $takes:ident, $transcendental:literal, |$g:pat_param, $a:pat_param, $b:pat_param, $y:pat_param| $vjp:expr;)*) => {
        impl Tensor {
            $($(#[$doc])*
            ///
            /// Operands are broadcast as numpy does; their element types must be equal.
            #[track_caller]
            pub fn $method(&self, other: &Tensor) -> Tensor {
                static RULE: Rule = Rule { name: $name, takes: Takes::$takes, transcendental: $transcendental, vjp: |$g, $a, $b, $y| $vjp };
                let (a, b) = Tensor::broadcast_together(self, other);
                self.graph.add_one(Binary(&RULE), &[&a, &b])
            })*
        }
    };
}

binary_table! {
    /// a + b
    plus = "add", Numbers, false, |g, _, _, _| two(g.clone(), g.clone());
    /// a − b
    minus = "subtract", Numbers, false, |g, _, _, _| two(g.clone(), -g);
    /// a · b
    times = "multiply", Numbers, false, |g, a, b, _| two(g * b, g * a);
    /// a / b
    over = "divide", Numbers, false, |g, _, b, y| { let q = g / b; let d = -(&q * y); two(q, d) };
    /// The larger of a and b; where they are equal each gets half of the cotangent.
    maximum = "maximum", Numbers, false, |g, a, b, _| two(g * share(&a.gt(b), a, b), g * share(&b.gt(a), a, b));
    /// The smaller of a and b; where they are equal each gets half of the cotangent.
    minimum = "minimum", Numbers, false, |g, a, b, _| two(g * share(&a.lt(b), a, b), g * share(&b.lt(a), a, b));
    /// aᵇ for a > 0.
    pow = "power", Numbers, true, |g, a, b, y| two(g * b * a.pow(&(b - 1.0)), g * y * a.ln());
    /// a − b · n with the sign of a, n being a / b without its fraction.
    remainder = "remainder", Numbers, false, |g, a, b, y| {
        if !a.dtype().is_float() { return Gradient::Zero("integers are discrete"); }
        // n is a whole number, so rounding takes away what the division lost.
        two(g.clone(), -(g * ((a - y) / b).round_nearest_even()))
    };
    /// The angle from the positive first axis to the point (b, a), in −π..π.
    atan2 = "atan2", Floats, true, |g, a, b, _| { let d = g / (a * a + b * b); two(&d * b, -(&d * a)) };
    /// Bitwise or logical and.
    and = "and", BitsAndBooleans, false, |_, _, _, _| Gradient::Zero("bits are discrete");
    /// Bitwise or logical or.
    or = "or", BitsAndBooleans, false, |_, _, _, _| Gradient::Zero("bits are discrete");
    /// Bitwise or logical exclusive or.
    xor = "xor", BitsAndBooleans, false, |_, _, _, _| Gradient::Zero("bits are discrete");
    /// a shifted left by b bits.
    shift_left = "shift_left", Integers, false, |_, _, _, _| Gradient::Zero("bits are discrete");
    /// a shifted right by b bits, zeros shifted in.
    shift_right = "shift_right_logical", Integers, false, |_, _, _, _| Gradient::Zero("bits are discrete");
    /// a shifted right by b bits, copies of the sign bit shifted in.
    shift_right_arithmetic = "shift_right_arithmetic", Integers, false, |_, _, _, _| Gradient::Zero("bits are discrete");
}
