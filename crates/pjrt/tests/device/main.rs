//! The public API on real XLA plugins. The plugins are fetched once with pip; without them these tests fail.

mod arrays;
mod caching;
mod donation;
mod gpus;
mod kernels;
mod kernels_in_place;
mod kernels_on_meshes;
mod loading;
mod programs;
mod refusals;
mod running;
mod topologies;
