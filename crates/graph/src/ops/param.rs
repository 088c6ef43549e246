//! Parameters: arguments of the program and of loop bodies.

use crate::emit::Emitter;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor_type::TensorType;

/// The `index`-th parameter of its region.
#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) index: usize,
    pub(crate) types: Vec<TensorType>,
}

impl Op for Param {
    fn name(&self) -> &str {
        "param"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(self.types.clone())
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        Gradient::Zero("a parameter has no operands")
    }

    fn emit(&self, _: &mut Emitter<'_>, _: &Site) -> Vec<String> {
        unreachable!(
            "parameter {} is bound by its region, never written out",
            self.index
        )
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }
}
