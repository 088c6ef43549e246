//! The bridge: a traced graph compiled for a device, called with named groups of arrays.
//!
//! A step of training is one call of one executable with a fixed argument list. Arguments come in *groups* (the
//! parameters, the moments, a batch), each borrowed or moved as a whole. A moved group is gone: reading it afterwards does
//! not compile, which is how donated memory is kept from being read.
//!
//! A whole program, from nothing to numbers. Plugins, clients and topologies come from `ferrotune_pjrt`.
//!
//! ```no_run
//! use ferrotune_graph::{DType, HostArray, Mesh, Rules};
//! use ferrotune_pjrt::{Client, Plugin, Topology};
//! use ferrotune_program::{Argument, Builder, Group, Layout, Leaf};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mesh = Mesh::new(&[("data", 4)])?;
//! let rules = Rules::new([("rows", vec!["data".to_owned()])]);
//! let layout = Layout::new(&mesh, &rules, &[Leaf::new("x", DType::F32, &[8, 2], &["rows", "_"])])?;
//! let build = || {
//!     let mut builder = Builder::new("double", &mesh, &rules);
//!     let x = builder.input("x", &layout);
//!     let doubled = [&x[0] * 2.0];
//!     builder.output_replacing(&layout, &doubled, &x); // in the memory of x
//!     builder
//! };
//!
//! let plugin = Plugin::cpu(&mut |line| eprintln!("{line}"))?;
//! let client = Client::cpu(&plugin, 4)?; // four virtual devices
//! let program = build().compile(&client)?;
//! let x = HostArray::from_slice(&[8, 2], &[1.0_f32; 16])?;
//! let group = Group::upload(&client, &layout, &[x])?;
//! let results = program.call(vec![Argument::Moved(group)])?;
//! assert_eq!(results[0].to_host()?[0].as_slice::<f32>(), [2.0; 16]);
//!
//! // The same for TPUs that are not here.
//! let tpu = Topology::named(&Plugin::tpu(&mut |line| eprintln!("{line}"))?, "tpu7x:2x2x1")?;
//! let needs = build().compile_for(&tpu)?;
//! println!("{} bytes on each device, {:?}", needs.memory().total(), needs.cost());
//! # Ok(())
//! # }
//! ```
//!
//! A group that is lent can be read afterwards, one that is moved cannot:
//!
//! ```
//! # use ferrotune_program::{Argument, Group, Program};
//! fn read(program: &Program, state: Group) {
//!     let _ = program.call(vec![Argument::Borrowed(&state)]);
//!     println!("{}", state.len());
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use ferrotune_program::{Argument, Group, Program};
//! fn overwrite(program: &Program, state: Group) {
//!     let _ = program.call(vec![Argument::Moved(state)]);
//!     println!("{}", state.len()); // the group was given away
//! }
//! ```
#![forbid(unsafe_code)]

mod dump;
mod group;
mod layout;
mod program;

pub use dump::dump_to;
pub use group::Group;
pub use layout::{Layout, Leaf};
pub use program::{Argument, Builder, Error, Program};

/// The chapter in `docs`, so that its programs are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-scratch.md")]
struct FromScratch;
