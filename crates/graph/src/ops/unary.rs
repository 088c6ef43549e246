//! Element-wise operations of one operand: a table of one-line rules.
//!
//! In a rule `g` is the cotangent, `x` the operand and `y` the result.

use std::f64::consts::FRAC_2_SQRT_PI;

use ferrotune_pjrt::DType;

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

/// Element types that an operation takes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Takes {
    Floats,
    Numbers,
    SignedNumbers,
    Integers,
    BitsAndBooleans,
}

struct Rule {
    /// Of the StableHLO operation; `chlo.` begins the names of the other dialect.
    name: &'static str,
    takes: Takes,
    transcendental: bool,
    vjp: fn(g: &Tensor, x: &Tensor, y: &Tensor) -> Gradient,
}

struct Unary(&'static Rule);

impl std::fmt::Debug for Unary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name)
    }
}

impl Op for Unary {
    fn name(&self) -> &str {
        self.0.name.trim_start_matches("chlo.")
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let dtype = inputs[0].dtype;
        let fits = match self.0.takes {
            Takes::Floats => dtype.is_float(),
            Takes::Numbers => dtype != DType::Pred,
            Takes::SignedNumbers => dtype.is_float() || dtype.is_signed_integer(),
            Takes::Integers => dtype.is_integer(),
            Takes::BitsAndBooleans => !dtype.is_float(),
        };
        if !fits {
            return Err(format!("takes {:?}, not {dtype}", self.0.takes));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        (self.0.vjp)(cx.cotangent(), &cx.inputs[0], &cx.outputs[0])
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let (name, x, ty) = (self.0.name, &site.inputs[0], &site.output_types[0]);
        vec![out.assign(if name.starts_with("chlo.") {
            format!("{name} {x} : {ty} -> {ty}")
        } else {
            format!("stablehlo.{name} {x} : {ty}")
        })]
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

macro_rules! unary_table {
    ($($(#[$doc:meta])* $method:ident = $name:literal, $takes:ident, $transcendental:literal, |$g:pat_param, $x:pat_param, $y:pat_param| $vjp:expr;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $method(&self) -> Tensor {
                static RULE: Rule = Rule { name: $name, takes: Takes::$takes, transcendental: $transcendental, vjp: |$g, $x, $y| $vjp };
                self.graph.add_one(Unary(&RULE), &[self])
            })*
        }
    };
}

unary_table! {
    /// −x
    negate = "negate", Numbers, false, |g, _, _| Gradient::one(-g);
    /// |x|; the derivative at 0 is taken as 0.
    abs = "abs", SignedNumbers, false, |g, x, _| Gradient::one(g * x.sign());
    /// −1, 0 or 1.
    sign = "sign", SignedNumbers, false, |_, _, _| Gradient::Zero("sign is piecewise constant");
    /// Largest integer not above x.
    floor = "floor", Floats, false, |_, _, _| Gradient::Zero("floor is piecewise constant");
    /// Smallest integer not below x.
    ceil = "ceil", Floats, false, |_, _, _| Gradient::Zero("ceil is piecewise constant");
    /// eˣ
    exp = "exponential", Floats, true, |g, _, y| Gradient::one(g * y);
    /// eˣ − 1, accurate near 0.
    expm1 = "exponential_minus_one", Floats, true, |g, _, y| Gradient::one(g * (y + 1.0));
    /// Natural logarithm.
    ln = "log", Floats, true, |g, x, _| Gradient::one(g / x);
    /// ln(1 + x), accurate near 0.
    ln_1p = "log_plus_one", Floats, true, |g, x, _| Gradient::one(g / (x + 1.0));
    /// Hyperbolic tangent.
    tanh = "tanh", Floats, true, |g, _, y| Gradient::one(g - g * (y * y));
    /// 1 / (1 + e⁻ˣ)
    logistic = "logistic", Floats, true, |g, _, y| Gradient::one(g * (y - y * y));
    /// Square root.
    sqrt = "sqrt", Floats, true, |g, _, y| Gradient::one(g * 0.5 / y);
    /// x^(−1/2)
    rsqrt = "rsqrt", Floats, true, |g, x, y| Gradient::one(g * -0.5 * y / x);
    /// Sine of radians.
    sin = "sine", Floats, true, |g, x, _| Gradient::one(g * x.cos());
    /// Cosine of radians.
    cos = "cosine", Floats, true, |g, x, _| Gradient::one(-(g * x.sin()));
    /// Tangent of radians.
    tan = "tan", Floats, true, |g, _, y| Gradient::one(g + g * (y * y));
    /// The error function, 2/√π · ∫₀ˣ exp(−t²) dt.
    erf = "chlo.erf", Floats, true, |g, x, _| Gradient::one(g * (x * x).negate().exp() * FRAC_2_SQRT_PI);
    /// Cube root, of either sign.
    cbrt = "cbrt", Floats, true, |g, _, y| Gradient::one(g / (y * y * 3.0));
    /// The nearest integer; of two equally near the even one.
    round_nearest_even = "round_nearest_even", Floats, false, |_, _, _| Gradient::Zero("rounding is piecewise constant");
    /// Number of bits that are set.
    popcnt = "popcnt", Integers, false, |_, _, _| Gradient::Zero("bits are discrete");
    /// Number of clear bits above the highest set one; the whole width for 0.
    count_leading_zeros = "count_leading_zeros", Integers, false, |_, _, _| Gradient::Zero("bits are discrete");
    /// Bitwise or logical complement.
    not = "not", BitsAndBooleans, false, |_, _, _| Gradient::Zero("bits are discrete");
}

impl Tensor {
    /// x · logistic(x), the SiLU (swish) activation.
    #[track_caller]
    pub fn silu(&self) -> Tensor {
        self * self.logistic()
    }

    /// x²
    #[track_caller]
    pub fn square(&self) -> Tensor {
        self * self
    }
}
