//! The binary, driven as a user drives it: a tiny model, a tiny task, whole runs of a few seconds. Needs the CPU plugin.

mod adapters;
mod bad_input;
mod bad_model;
mod commands;
mod experts;
mod inspect;
mod lost_records;
mod pack;
mod prompts;
mod resume;
mod score;
mod smollm2;
mod tiny;
mod train;
