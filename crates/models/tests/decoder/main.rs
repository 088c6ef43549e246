//! The decoder over the small models that transformers made: decoding, documents that share rows, routing.

mod documents;
mod routing;
mod setup;
mod steps;
