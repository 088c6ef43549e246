//! The engine on virtual CPU devices. Needs the CPU plugin.

mod accumulation;
mod capacity;
mod checkpoints;
mod context;
mod data_shards;
mod denominators;
mod evaluation;
mod export;
mod filters;
mod fp8;
mod head;
mod longrope;
mod norms;
mod offload;
mod optimizer;
mod oracle;
mod parity;
mod resuming;
mod router;
mod setup;
mod shapes;
mod structure;
mod trains;
mod waiting;
mod whole_step;
