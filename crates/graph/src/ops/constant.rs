//! Constants: one repeated value, an index along an axis, an array. They have no operands and are never captured.

use ferrotune_pjrt::{DType, HostArray};

use crate::arena::Graph;
use crate::emit::Emitter;
use crate::literal;
use crate::op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
use crate::tensor::Tensor;
use crate::tensor_type::TensorType;

const CONSTANT: Gradient = Gradient::Zero("a constant has no operands");

/// The same value everywhere.
#[derive(Debug)]
struct Full {
    value: f64,
    ty: TensorType,
}

impl Op for Full {
    fn name(&self) -> &str {
        "full"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        literal::check(self.value, self.ty.dtype)?;
        Ok(vec![self.ty.clone()])
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        CONSTANT
    }

    fn emit(&self, out: &mut Emitter<'_>, _: &Site) -> Vec<String> {
        let literal = literal::splat(self.value, self.ty.dtype);
        vec![out.assign(format!("stablehlo.constant dense<{literal}> : {}", self.ty))]
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn is_leaf(&self) -> bool {
        true
    }
}

/// 0, 1, 2, … along one axis.
#[derive(Debug)]
struct Iota {
    axis: usize,
    ty: TensorType,
}

impl Op for Iota {
    fn name(&self) -> &str {
        "iota"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        if self.axis >= self.ty.rank() {
            return Err(format!("axis {} of {}", self.axis, self.ty));
        }
        if self.ty.dtype == DType::Pred {
            return Err("counts in numbers, not booleans".to_owned());
        }
        Ok(vec![self.ty.clone()])
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        CONSTANT
    }

    fn emit(&self, out: &mut Emitter<'_>, _: &Site) -> Vec<String> {
        vec![out.assign(format!("stablehlo.iota dim = {} : {}", self.axis, self.ty))]
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn is_leaf(&self) -> bool {
        true
    }
}

/// A given array, written into the program.
#[derive(Debug)]
struct Array {
    array: HostArray,
}

impl Op for Array {
    fn name(&self) -> &str {
        "constant"
    }

    fn infer(&self, _: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(vec![TensorType::new(self.array.dtype(), self.array.dims())])
    }

    fn vjp(&self, _: &VjpContext) -> Gradient {
        CONSTANT
    }

    fn emit(&self, out: &mut Emitter<'_>, site: &Site) -> Vec<String> {
        let literal = literal::blob(&self.array);
        vec![out.assign(format!(
            "stablehlo.constant dense<{literal}> : {}",
            site.output_types[0]
        ))]
    }

    fn cost(&self, _: &CostContext<'_>, _: &[TensorType], _: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn is_leaf(&self) -> bool {
        true
    }
}

impl Graph {
    /// A tensor that holds `value` everywhere, rounded to the element type where that is a float.
    ///
    /// # Panics
    /// When the element type is no float and does not have the value: an integer type has the whole numbers in its range,
    /// the boolean type 0 and 1.
    #[track_caller]
    pub fn full(&self, value: f64, dtype: DType, dims: &[usize]) -> Tensor {
        self.add_one(
            Full {
                value,
                ty: TensorType::new(dtype, dims),
            },
            &[],
        )
    }

    /// A scalar constant.
    ///
    /// # Panics
    /// As [`Self::full`].
    #[track_caller]
    pub fn scalar(&self, value: f64, dtype: DType) -> Tensor {
        self.full(value, dtype, &[])
    }

    /// Indices 0, 1, 2, … along `axis`.
    ///
    /// # Panics
    /// When the axis is not there, or the element type is boolean.
    #[track_caller]
    pub fn iota(&self, dtype: DType, dims: &[usize], axis: usize) -> Tensor {
        self.add_one(
            Iota {
                axis,
                ty: TensorType::new(dtype, dims),
            },
            &[],
        )
    }

    /// An array known while tracing. Large arrays belong into arguments: they would swell the program text.
    #[track_caller]
    pub fn constant(&self, array: HostArray) -> Tensor {
        self.add_one(Array { array }, &[])
    }
}
