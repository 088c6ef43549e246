//! The language on a device: values, derivatives, loops, sharding, donation. Needs the CPU plugin.

mod branches;
mod check;
mod control;
mod derivatives;
mod golden;
mod kernels;
mod manual;
mod mesh;
mod random_graphs;
mod remat;
mod structure;
mod values;
