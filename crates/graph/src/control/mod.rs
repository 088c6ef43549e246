//! Loops and manual regions: operations whose bodies are regions.

pub(crate) mod manual;
pub(crate) mod scan;
pub(crate) mod while_loop;
