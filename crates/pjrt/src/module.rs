//! A program as it is handed to the compiler, with what its arguments and results must be.

use std::{fmt, sync::Arc};

use crate::{DType, Kernel, Mesh, Sharding};

/// What an array is: its name for messages, element type, global dimensions and sharding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArraySpec {
    /// A path such as `layers/attn/q_proj`, used in messages only.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Global dimensions, major first.
    pub dims: Vec<usize>,
    /// How the mesh splits the dimensions.
    pub sharding: Sharding,
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.dtype, self.dims, self.sharding)
    }
}

/// One argument of a [`Module`].
#[derive(Debug, Clone)]
pub struct ArgSpec {
    /// What is expected.
    pub spec: Arc<ArraySpec>,
    /// Whether the program may overwrite the argument (`jax.buffer_donor` or `tf.aliasing_output` in the text).
    pub donated: bool,
}

/// StableHLO text together with the arguments and results of its `main`.
#[derive(Debug, Clone)]
pub struct Module {
    /// A name for messages.
    pub name: String,
    /// The module text.
    pub text: String,
    /// The mesh that the text's shardings refer to.
    pub mesh: Mesh,
    /// Arguments of `main`, in order.
    pub args: Vec<ArgSpec>,
    /// Results of `main`, in order.
    pub results: Vec<Arc<ArraySpec>>,
    /// Functions of this process that the text calls.
    pub kernels: Vec<&'static Kernel>,
}
