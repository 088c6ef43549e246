//! The traced loss on a device against the one on the host, and the trainer against the sampler. Needs the CPU plugin.

mod filters;
mod loss;
mod replay;
mod setup;
mod traced;
