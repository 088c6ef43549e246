//! The engine on virtual CPU devices. Needs the CPU plugin.

mod accumulation;
mod checkpoints;
mod data_shards;
mod evaluation;
mod head;
mod optimizer;
mod oracle;
mod parity;
mod router;
mod setup;
mod structure;
mod trains;
mod whole_step;
