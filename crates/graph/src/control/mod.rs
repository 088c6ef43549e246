//! Operations that contain regions: loops, branches, blocks whose values are recomputed, functions
//! with their own derivative, regions that each device runs for itself.

pub(crate) mod block;
pub(crate) mod cond;
pub(crate) mod custom_vjp;
pub(crate) mod manual;
pub(crate) mod scan;
pub(crate) mod while_loop;
