//! The handle that model code holds: a value of a program under construction.
//!
//! The methods that add operations live beside the operations, in `ops/`. Binary operations broadcast as numpy does and
//! never convert element types: mixing them is an error that names both.

use std::ops::{Add, Div, Mul, Neg, Sub};

use ferrotune_pjrt::DType;

use crate::arena::{Graph, Value};
use crate::tensor_type::TensorType;

/// A value of a program. Cloning copies the handle, not the value.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) graph: Graph,
    pub(crate) value: Value,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "%{}.{} : {}",
            self.value.node,
            self.value.output,
            self.ty()
        )
    }
}

impl Tensor {
    /// The program that the tensor belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Element type and dimensions.
    pub fn ty(&self) -> TensorType {
        self.graph.0.borrow().value_type(self.value).clone()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.graph.0.borrow().value_type(self.value).dtype
    }

    /// Dimensions, outermost first.
    pub fn dims(&self) -> Vec<usize> {
        self.graph.0.borrow().value_type(self.value).dims.clone()
    }

    /// Size of one dimension.
    #[track_caller]
    pub fn dim(&self, axis: usize) -> usize {
        let dims = self.dims();
        assert!(
            axis < dims.len(),
            "axis {axis} of a tensor with dimensions {dims:?}"
        );
        dims[axis]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.graph.0.borrow().value_type(self.value).rank()
    }

    /// A scalar constant of this tensor's element type.
    ///
    /// # Panics
    /// When the element type does not have the value, as [`Graph::full`].
    #[track_caller]
    pub fn scalar_like(&self, value: f64) -> Tensor {
        self.graph.scalar(value, self.dtype())
    }

    /// Zeros of this tensor's type.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        let ty = self.ty();
        self.graph.full(0.0, ty.dtype, &ty.dims)
    }

    /// Ones of this tensor's type.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        let ty = self.ty();
        self.graph.full(1.0, ty.dtype, &ty.dims)
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $named:ident) => {
        impl $trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                Tensor::$named(self, other)
            }
        }
        impl $trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                Tensor::$named(self, &other)
            }
        }
        impl $trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                Tensor::$named(&self, other)
            }
        }
        impl $trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                Tensor::$named(&self, &other)
            }
        }
        impl $trait<f64> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor {
                Tensor::$named(self, &self.scalar_like(other))
            }
        }
        impl $trait<f64> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor {
                Tensor::$named(&self, &self.scalar_like(other))
            }
        }
    };
}

operator!(Add, add, plus);
operator!(Sub, sub, minus);
operator!(Mul, mul, times);
operator!(Div, div, over);

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.negate()
    }
}

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        self.negate()
    }
}
