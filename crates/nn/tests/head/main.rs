//! The log-prob head on a device: values, derivatives, structure, meshes. Needs the CPU plugin.

mod case;
mod differences;
mod kept;
mod meshes;
mod modes;
mod oracle;
mod rows;
mod single_pass;
mod structure;
mod worked;
