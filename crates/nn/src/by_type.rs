//! Kernels that are written once for f32 and bf16.

use ferrotune_graph::DType;

/// Whether there are such kernels for this element type.
pub(crate) fn has_kernels(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16)
}

/// A kernel's function: `run::<T>` for the element type of the first operand.
macro_rules! by_type {
    ($run:ident) => {
        |call| match call.inputs()[0].dtype() {
            ferrotune_graph::DType::BF16 => $run::<half::bf16>(call),
            _ => $run::<f32>(call),
        }
    };
}

pub(crate) use by_type;
