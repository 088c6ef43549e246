//! The language on a device: values, derivatives, loops, sharding, donation. Needs the CPU plugin.

mod check;
mod control;
mod derivatives;
mod golden;
mod manual;
mod mesh;
mod structure;
mod values;
