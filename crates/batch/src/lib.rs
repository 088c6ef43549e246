//! The rows: trajectories to packed rows and loss weights.
//!
//! A [`Trajectory`] is one document: token ids, a loss mask, and any of the per-token [`Field`]s. The loss weights of the
//! whole optimizer batch are decided once, on the host ([`Aggregation::weights`]). [`Packing::pack`] lays the trajectories
//! out as [`Rows`], a struct of arrays `[B,T]` in which everything per token moves together;
//! [`Rows::micro_batches`] cuts them into pieces of one static shape; [`Rows::unpack`] brings per-token results back to
//! the trajectories. For context parallelism, [`Rows::orders`] and [`Rows::in_order`] give each shard its tokens, and
//! [`Rows::tile_lists`] says which attention tiles it has.
//!
//! # The convention
//!
//! The model's output at index `t-1` predicts the token at index `t`. Every per-token value (loss weight, log-prob,
//! advantage) sits at the *predicted* token's index `t`. Nothing predicts the first token of a document, so its weight is
//! always 0 and a loss mask that asks for it is refused. Padding is what has segment id 0; it is never inferred from ids.
//!
//! Notable: all problems of a batch are reported at once, each with its place ([`Refused`]); the same input gives the
//! same rows. Left out: device arrays, what attention does in a tile.
//!
//! # Example
//!
//! ```
//! use ferrotune_batch::{Aggregation, Field, Packing, Trajectory};
//!
//! let batch = vec![
//!     Trajectory::from_prompt(&[5, 6], &[7, 8, 9]).with_constant(Field::Advantage, 0.5),
//!     Trajectory::from_prompt(&[5, 6], &[7]).with_constant(Field::Advantage, -0.5),
//! ];
//! let weights = Aggregation::TokenMean.weights(&batch)?;
//! let rows = Packing::packed(8).pack(&batch, &weights)?;
//! assert_eq!(rows.token_ids(), [5, 6, 7, 8, 9, 5, 6, 7]);
//! assert_eq!(rows.segment_ids(), [1, 1, 1, 1, 1, 2, 2, 2]);
//! assert_eq!(rows.positions(), [0, 1, 2, 3, 4, 0, 1, 2]);
//! assert_eq!(rows.loss_weight(), [0.0, 0.0, 0.25, 0.25, 0.25, 0.0, 0.0, 0.25]);
//! assert_eq!(rows.unpack(rows.token_ids())?, [vec![5, 6, 7, 8, 9], vec![5, 6, 7]]);
//! # Ok::<(), ferrotune_batch::Refused>(())
//! ```
#![forbid(unsafe_code)]

mod balance;
mod check;
mod column;
mod error;
mod even;
mod field;
mod fit;
mod option;
mod order;
mod ordered;
mod packing;
mod rows;
mod tile_lists;
mod tiles;
mod trajectory;
mod weights;

pub use balance::Balance;
pub use column::{Column, Element, Values};
pub use error::{BatchError, Refused};
pub use field::{Field, Fields};
pub use option::{Idle, PackingOption};
pub use order::{Order, OrderKind};
pub use ordered::OrderedRows;
pub use packing::{Assembler, DEFAULT_PAD_ALIGN, Packing, PadPosition};
pub use rows::{Place, Rows};
pub use tile_lists::TileLists;
pub use tiles::{Blocks, Padding, Pass, Tile, Tiling};
pub use trajectory::{Trajectory, predictable_mask, truncate};
pub use weights::{Aggregation, LossWeights};
