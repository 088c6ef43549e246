//! Operations that contain regions: loops, branches, blocks whose values are recomputed, functions with their own derivative.

pub(crate) mod block;
pub(crate) mod cond;
pub(crate) mod custom_vjp;
pub(crate) mod scan;
pub(crate) mod while_loop;
