//! Layers on a device, beside plain loops in float64. Needs the CPU plugin.

mod capped_experts;
mod check;
mod convolution;
mod decode_attention;
mod decode_steps;
mod delta_rule;
mod expert_adapters;
mod experts;
mod fp8;
mod rows;
mod tiled;
