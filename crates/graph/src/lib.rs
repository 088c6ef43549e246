//! The language: typed tensors, operations, control flow, derivatives, sharding, StableHLO text.
//!
//! A program is *traced*: model code calls methods on [`Tensor`] handles, and every call adds a node to the [`Graph`].
//! Nothing is computed. [`Graph::grad`] adds the nodes of the derivative; [`Graph::lower`] writes StableHLO for what the
//! outputs need, with a sharding on every argument and result.
//!
//! ```
//! use ferrotune_graph::{DType, Graph, Mesh, Output, Platform, Rules, Sharding};
//!
//! let g = Graph::new("square", Mesh::single(), Rules::unsharded(&["rows"]));
//! let x = g.input("x", DType::F32, &[4], &["rows"]);
//! let loss = x.square().sum_all();
//! let dx = g.grad(&loss, &[&x]).remove(0);
//! let output = Output { name: "dx".into(), tensor: dx, sharding: Sharding::replicated(1), replaces: None };
//! let lowered = g.lower(Platform::Cpu, &[output], &[]);
//! assert!(lowered.module.text.contains("stablehlo.multiply"));
//! ```
//!
//! Misuse by tracing code (mixed element types, shapes that do not fit) panics with the place of the call. Nothing that a
//! user's file can cause should reach such a panic: check shapes first, for instance with [`Rules::place`].
#![forbid(unsafe_code)]

mod arena;
mod autodiff;
mod control;
mod cost;
mod emit;
mod literal;
mod liveness;
mod op;
mod ops;
pub mod random;
mod remat;
mod sharding;
mod show;
mod tensor;
mod tensor_type;
mod verify;

pub use arena::{Arena, Graph, RegionId};
pub use emit::{Emitter, Lowered, Output};
pub use ferrotune_pjrt::{
    Attribute, DType, HostArray, Kernel, KernelCall, KernelInput, KernelOutput, Mesh, Module,
    Platform, Sharding,
};
pub use op::{Cost, CostContext, Gradient, Op, Site, VjpContext};
pub use ops::einsum::Precision;
pub use ops::kernel::{Attributes, KernelRule};
pub use remat::{Policy, Residual, Saved};
pub use sharding::{PlacementError, Rules};
pub use tensor::Tensor;
pub use tensor_type::TensorType;
