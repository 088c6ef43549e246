//! The sampler on a device, over the committed fixture models. Needs the CPU plugin.

mod agreement;
mod continuous;
mod endings;
mod filters;
mod independence;
mod memory;
mod refusals;
mod setup;
mod statistics;
mod stops;
