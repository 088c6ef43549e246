//! The public API on real XLA plugins. The plugins are fetched once with pip; without them these tests fail.

mod arrays;
mod caching;
mod donation;
mod gpus;
mod kernels;
mod loading;
mod programs;
mod refusals;
mod running;
mod topologies;
