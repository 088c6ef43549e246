//! Change of element type: by value, or by bits.

use ferrotune_pjrt::DType;

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

#[derive(Debug)]
struct Convert {
    to: DType,
}

impl Op for Convert {
    fn name(&self) -> &str {
        "convert"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![inputs[0].with_dtype(self.to)])
    }

    fn vjp(&self, cx: &VjpContext) -> Gradient {
        if !self.to.is_float() {
            return Gradient::Zero("integers and booleans are discrete");
        }
        Gradient::one(cx.cotangent().convert(cx.inputs[0].dtype()))
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        vec![out.assign(format!(
            "stablehlo.convert {} : ({}) -> {}",
            site.inputs[0], site.input_types[0], site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::elementwise(1.0, inputs, outputs)
    }
}

#[derive(Debug)]
struct Bitcast {
    to: DType,
}

impl Op for Bitcast {
    fn name(&self) -> &str {
        "bitcast"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if inputs[0].dtype.bytes() != self.to.bytes() {
            return Err(format!(
                "{} and {} differ in width",
                inputs[0].dtype, self.to
            ));
        }
        Ok(vec![inputs[0].with_dtype(self.to)])
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Zero("bits are discrete")
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        vec![out.assign(format!(
            "stablehlo.bitcast_convert {} : ({}) -> {}",
            site.inputs[0], site.input_types[0], site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::movement(inputs, outputs)
    }
}

impl Tensor {
    /// The same values in another element type; the same tensor when the type is equal already.
    ///
    /// Floats become integers by dropping the fraction, and truth values by comparing with 0; wider floats are rounded to
    /// the nearest, to even on a tie. What a value outside of the integer's range becomes is left to the plugin.
    #[track_caller]
    pub fn convert(&self, to: DType) -> Tensor {
        if self.dtype() == to {
            return self.clone();
        }
        self.graph.add_one(Convert { to }, &[self])
    }

    /// The same bits as another element type of equal width.
    #[track_caller]
    pub fn bitcast(&self, to: DType) -> Tensor {
        self.graph.add_one(Bitcast { to }, &[self])
    }
}
