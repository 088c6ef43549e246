//! The language on a device: values, derivatives, loops, sharding, donation. Needs the CPU plugin.

mod check;
mod control;
mod conversions;
mod derivatives;
mod golden;
mod groups;
mod indexing;
mod jax;
mod linear_algebra;
mod mesh;
mod ordering;
mod randomness;
mod structure;
mod values;
