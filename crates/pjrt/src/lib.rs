//! The device: find and load an XLA plugin, arrays, executables, compile cache.
//!
//! A [`Plugin`] is a shared library that speaks the PJRT C API; [`Plugin::cpu`] finds or fetches an XLA CPU plugin. A [`Client`] is
//! a set of devices. A [`Mesh`] names them as a grid, a [`Sharding`] says which axes of the grid split an array, and an [`Array`]
//! is one buffer per device. [`Client::compile`] turns a [`Module`] (StableHLO text and what its arguments and results are) into an
//! [`Executable`], which takes each argument borrowed or moved ([`Arg`]).
//!
//! A [`Topology`] is a slice of devices that are not here: [`Topology::compile`] says what the same module would need there.
//!
//! What plugins leave unchecked is checked here, before anything runs: element types, dimensions, shardings, the mesh, the client,
//! and that the compiled program is what the module says. This crate knows nothing of graphs or models, prints nothing, and is the
//! only one that talks to a C library.
//!
//! ```no_run
//! # fn main() -> ferrotune_pjrt::Result<()> {
//! use std::sync::Arc;
//!
//! use ferrotune_pjrt::{Arg, ArgSpec, ArraySpec, Client, DType, HostArray, Mesh, Module, Plugin, Sharding};
//!
//! let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))?;
//! let client = Client::cpu(&plugin, 4)?;
//! let mesh = Mesh::new(&[("data", 4)])?;
//! let spec = Arc::new(ArraySpec {
//!     name: "x".into(),
//!     dtype: DType::F32,
//!     dims: vec![8],
//!     sharding: Sharding { dims: vec![vec!["data".into()]] },
//! });
//! let text = r#"
//!     module @twice attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
//!       sdy.mesh @mesh = <["data"=4]>
//!       func.func public @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>, jax.buffer_donor = true})
//!           -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>}) {
//!         %y = stablehlo.add %x, %x : tensor<8xf32>
//!         return %y : tensor<8xf32>
//!       }
//!     }"#;
//! let twice = client.compile(&Module {
//!     name: "twice".into(),
//!     text: text.into(),
//!     mesh: mesh.clone(),
//!     args: vec![ArgSpec { spec: Arc::clone(&spec), donated: true }],
//!     results: vec![Arc::clone(&spec)],
//!     kernels: vec![],
//! })?;
//! let host = HostArray::from_slice(&[8], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
//! let x = client.upload(&host, spec, &mesh)?;
//! let y = twice.run(vec![Arg::Moved(x)])?.remove(0); // in x's memory
//! assert_eq!(y.to_host()?.as_slice::<f32>()[7], 14.0);
//! # Ok(())
//! # }
//! ```

mod abi;
mod api;
mod array;
mod cache;
mod client;
mod compile;
mod compiled;
mod cuda;
mod digest;
mod dtype;
mod environment;
mod error;
mod executable;
mod fetch;
mod host;
mod kernel;
mod mesh;
mod module;
mod operations;
mod options;
mod pinned;
mod placement;
mod platform;
mod plugin;
mod report;
mod sharding;
mod survey;
mod topology;

pub use array::{Array, Memory};
pub use client::Client;
pub use dtype::{DType, Element};
pub use error::{Error, ErrorCode, Result};
pub use executable::{Arg, Executable, MemoryStats};
pub use host::HostArray;
pub use kernel::{Attribute, Kernel, KernelCall, KernelInput, KernelOutput};
pub use mesh::Mesh;
pub use module::{ArgSpec, ArraySpec, Module};
pub use operations::{Collective, Operations};
pub use options::Effort;
pub use pinned::PinnedPlugin;
pub use platform::Platform;
pub use plugin::Plugin;
pub use sharding::Sharding;
pub use survey::{CacheSurvey, PluginSource, Survey, survey};
pub use topology::{Compilation, CostAnalysis, Topology};
