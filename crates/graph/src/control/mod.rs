//! Loops: operations whose bodies are regions.

pub(crate) mod scan;
pub(crate) mod while_loop;
