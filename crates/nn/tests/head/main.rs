//! The log-prob head on a device: values, derivatives, structure, meshes. Needs the CPU plugin.

mod case;
mod differences;
mod meshes;
mod modes;
mod oracle;
mod rows;
mod structure;
mod worked;
