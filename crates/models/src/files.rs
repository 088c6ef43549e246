//! Model folders of Hugging Face: weights in and out.

mod adapter;
mod atomic;
mod base;
mod element;
mod load;
#[expect(unsafe_code, reason = "a memory map has no safe constructor")]
mod mapped;
mod save;
mod stream;
mod survey;
#[cfg(test)]
mod tests;
mod write;

pub use self::adapter::{AdapterWeights, load_adapter, save_adapter};
pub use self::load::{Weights, load};
pub use self::save::{export_gradients, save, save_from};
pub use self::stream::HfLayout;
pub use self::survey::{Survey, survey};
