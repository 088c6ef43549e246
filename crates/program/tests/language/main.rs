//! The language on a device: values, derivatives, loops, sharding, donation. Needs the CPU plugin.

mod branches;
mod check;
mod control;
mod conversions;
mod derivatives;
mod golden;
mod groups;
mod indexing;
mod jax;
mod kernels;
mod linear_algebra;
mod manual;
mod mesh;
mod ordering;
mod products;
mod random_graphs;
mod randomness;
mod refusals;
mod remat;
mod structure;
mod values;
