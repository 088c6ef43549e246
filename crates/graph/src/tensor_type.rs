//! The type of a value: element type and static dimensions.

use std::fmt;

use ferrotune_pjrt::DType;

/// Element type and dimensions of a tensor; dimensions are static and row-major.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first; empty for a scalar.
    pub dims: Vec<usize>,
}

impl TensorType {
    /// A type of the given element type and dimensions.
    pub fn new(dtype: DType, dims: &[usize]) -> Self {
        Self {
            dtype,
            dims: dims.to_vec(),
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Checks that dimensions and size in bytes are below 2⁶³, which is as far as StableHLO counts. Empty dimensions are
    /// left aside. Tensors of a program are of no other types.
    ///
    /// # Errors
    /// A sentence with the dimensions.
    pub fn check_size(&self) -> Result<(), String> {
        let counted = self
            .dims
            .iter()
            .try_fold(self.dtype.bytes(), |n, d| n.checked_mul((*d).max(1)));
        match counted {
            Some(bytes) if i64::try_from(bytes).is_ok() => Ok(()),
            _ => Err(format!(
                "a tensor of dimensions {:?} has more bytes than can be counted",
                self.dims
            )),
        }
    }

    /// Number of elements; 1 for a scalar.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Size in bytes of a dense array of this type.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// The same dimensions with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self {
            dtype,
            dims: self.dims.clone(),
        }
    }
}

/// MLIR spelling: `tensor<4x8xf32>`, `tensor<f32>`.
impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for d in &self.dims {
            write!(f, "{d}x")?;
        }
        write!(f, "{}>", self.dtype.mlir())
    }
}
