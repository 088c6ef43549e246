//! The operations, one idea a file: each gives `infer`, `vjp`, `emit` and `cost` for its operations, and the
//! [`Tensor`](crate::Tensor) or [`Graph`](crate::Graph) methods that add them.

pub(crate) mod argmax;
pub(crate) mod binary;
pub(crate) mod collective;
pub(crate) mod compare;
pub(crate) mod constant;
pub(crate) mod convert;
pub(crate) mod cumulative;
pub(crate) mod dynamic;
pub(crate) mod einsum;
mod einsum_cpu;
pub(crate) mod einsum_text;
pub(crate) mod identity;
pub(crate) mod index;
pub(crate) mod inline;
pub(crate) mod kernel;
pub(crate) mod param;
pub(crate) mod ragged;
pub(crate) mod ragged_tiles;
pub(crate) mod reduce;
pub(crate) mod shape;
pub(crate) mod slice;
pub(crate) mod sort;
pub(crate) mod top_k;
pub(crate) mod transfer;
pub(crate) mod triangular;
pub(crate) mod unary;

use ferrotune_pjrt::DType;

use crate::tensor_type::TensorType;

/// Refuses operands of more than one element type.
pub(crate) fn same_dtype(inputs: &[TensorType]) -> Result<DType, String> {
    let first = inputs[0].dtype;
    match inputs.iter().find(|t| t.dtype != first) {
        Some(other) => Err(format!(
            "element types {first} and {} are mixed; convert one of them",
            other.dtype
        )),
        None => Ok(first),
    }
}

/// `[1, 0, 2]`
pub(crate) fn list(items: &[usize]) -> String {
    let items: Vec<String> = items.iter().map(usize::to_string).collect();
    format!("[{}]", items.join(", "))
}
