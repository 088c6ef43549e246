//! The engine on virtual CPU devices. Needs the CPU plugin.

mod accumulation;
mod checkpoints;
mod head;
mod optimizer;
mod parity;
mod router;
mod setup;
mod structure;
mod trains;
