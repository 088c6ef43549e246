//! Matrix products on the host's processor, and what is done to rows between them.
//!
//! XLA's own products for the CPU use half of a 512-bit vector unit; they copy operands that lie otherwise than they like, and
//! widen narrow weights when there are few rows. The products here read any strides.
//!
//! - f32: the crate `gemm`; for a few rows, where memory is the bound, a loop of our own. Operands that are prepared once and used
//!   many times: tiles, in 512-bit registers.
//! - bf16, summed in f32: tiles, by AMX or AVX512-BF16. Every sum is formed in one order, whatever the number of rows and
//!   threads, so that a token has the same bits alone and in company. Without either, blocks are widened and multiplied as f32.
//! - f16: widened.
//!
//! Nothing here knows of graphs or of XLA; `ferrotune-graph` and `ferrotune-nn` call it from their kernels.

mod element;
mod few_rows;
mod kept;
mod left;
mod logits;
mod matrix;
mod narrow;
mod pack;
mod packed;
mod rows;
mod softmax;
mod target;
mod team;
#[cfg(test)]
mod tests;
mod threads;
mod tiled;
mod tiles;
mod transpose;
mod vocabulary;
mod wide;

pub use element::{Number, multiply_each_rounded, multiply_rounded};
pub use kept::{Lent, Loan, lend};
pub use left::{Block, LeftOperand};
pub use logits::{LogitSlope, OnlineSums};
pub use matrix::Matrix;
pub use packed::Packed;
pub use rows::{add, gate_back, gate_with_silu, normalize, normalize_back, rotate};
pub use softmax::{exponential_sum, exponentials, largest};
pub use threads::Threads;
pub use vocabulary::{Scored, Vocabulary};
