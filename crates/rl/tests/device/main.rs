//! The traced loss on a device against the one on the host. Needs the CPU plugin.

mod loss;
mod replay;
mod traced;
