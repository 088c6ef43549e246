//! The bridge: a traced graph compiled for a device, called with named groups of arrays.
//!
//! A step of training is one call of one executable with a fixed argument list. Arguments come in *groups* (the
//! parameters, the moments, a batch), each borrowed or moved as a whole. A moved group is gone: reading it afterwards does
//! not compile, which is how donated memory is kept from being read.
//!
//! ```compile_fail
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
