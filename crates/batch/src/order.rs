//! Orders for context parallelism: which tokens of a row each of `C` shards holds.
//!
//! A row of `T` tokens is cut into equal chunks, and a shard holds equally many of them, in natural order among themselves.
//! The array that is cut into `C` equal parts is the concatenation of the shards. Tokens keep their position, segment id
//! and loss weight, so nothing but the place in the array changes; [`OrderedRows`](crate::OrderedRows) applies an order to
//! everything that is per token, and takes it back. Orders live from packing to the device and are never written to a file:
//! permutations with one name differ between programs.
//!
//! With 16 tokens and 4 shards [`OrderKind::DualChunkSwap`] is 0 1 14 15 | 2 3 12 13 | 4 5 10 11 | 6 7 8 9.
//! [`OrderKind::Balanced`] cuts finer, at multiples of the query blocks, and gives chunks out by the tiles that each would
//! cost in this very row: exactly even where padding or documents make mirrored chunks uneven.

use std::ops::Range;
use std::str::FromStr;

use crate::error::BatchError;
use crate::even::split_evenly;
use crate::option::PackingOption;
use crate::tiles::{Pass, Tiling};

/// How the tokens of a row go to context shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OrderKind {
    /// Shard `r` holds the `r`-th stretch of the row. The later the shard, the more keys its queries see.
    #[default]
    Contiguous,
    /// `2C` chunks; shard `r` holds chunks `r` and `2C − 1 − r`. Even for one document that fills the row.
    DualChunkSwap,
    /// Finer chunks, given out so that the tiles of the forward and the backward pass are even in this row. Never worse
    /// than the other two.
    Balanced,
}

impl OrderKind {
    /// Every kind.
    pub const ALL: [OrderKind; 3] = [
        OrderKind::Contiguous,
        OrderKind::DualChunkSwap,
        OrderKind::Balanced,
    ];

    /// The name that its `FromStr` takes.
    pub fn name(self) -> &'static str {
        match self {
            OrderKind::Contiguous => "contiguous",
            OrderKind::DualChunkSwap => "dual_chunk_swap",
            OrderKind::Balanced => "balanced",
        }
    }

    /// Whether rows of `width` tokens can be cut so for `context_size` shards, before there are any.
    ///
    /// # Errors
    ///
    /// As [`Order::new`].
    pub fn check(self, width: usize, context_size: usize) -> Result<(), BatchError> {
        if context_size == 0 {
            let option = PackingOption::ContextSize;
            return Err(BatchError::Zero { option });
        }
        let twice = self == OrderKind::DualChunkSwap;
        let divisor = context_size.saturating_mul(if twice { 2 } else { 1 });
        if width.is_multiple_of(divisor) {
            return Ok(());
        }
        let below = width - width % divisor;
        Err(BatchError::Indivisible {
            budget: width,
            option: PackingOption::ContextSize,
            value: context_size,
            twice,
            below,
            above: below.saturating_add(divisor),
        })
    }
}

impl FromStr for OrderKind {
    type Err = BatchError;

    fn from_str(name: &str) -> Result<OrderKind, BatchError> {
        let found = OrderKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| BatchError::UnknownName {
            what: "order",
            given: name.to_owned(),
            known: "contiguous, dual_chunk_swap, balanced",
        })
    }
}

/// The order of one row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    shards: usize,
    chunk: usize,
    /// The natural chunk at each place.
    chunks: Vec<usize>,
}

/// More chunks than this are not given out one by one: evenness no longer gains, and the search is quadratic.
const MOST_CHUNKS: usize = 128;

impl Order {
    /// The order of a row with these segment ids over `context_size` shards. Only [`OrderKind::Balanced`] reads the ids
    /// and the tiles.
    ///
    /// # Errors
    ///
    /// [`BatchError::Zero`], or [`BatchError::Indivisible`] if the shards (for [`OrderKind::DualChunkSwap`] the `2C`
    /// chunks) do not divide the row.
    pub fn new(
        kind: OrderKind,
        segment_ids: &[i32],
        context_size: usize,
        tiling: &Tiling,
    ) -> Result<Order, BatchError> {
        kind.check(segment_ids.len(), context_size)?;
        let width = segment_ids.len();
        Ok(match kind {
            OrderKind::Contiguous => Order::contiguous(width, context_size),
            OrderKind::DualChunkSwap => Order::dual_chunk_swap(width, context_size),
            OrderKind::Balanced => Order::balanced(segment_ids, context_size, tiling),
        })
    }

    fn contiguous(width: usize, shards: usize) -> Order {
        Order {
            shards,
            chunk: width / shards,
            chunks: (0..shards).collect(),
        }
    }

    fn dual_chunk_swap(width: usize, shards: usize) -> Order {
        Order {
            shards,
            chunk: width / (2 * shards),
            chunks: (0..shards).flat_map(|r| [r, 2 * shards - 1 - r]).collect(),
        }
    }

    /// The best of chunks given out by their tiles and of the two fixed orders, by the tiles it really has.
    fn balanced(segment_ids: &[i32], shards: usize, tiling: &Tiling) -> Order {
        let width = segment_ids.len();
        let mut candidates = Vec::new();
        if let Some(chunk) = chunk_size(width / shards, shards, tiling) {
            candidates.push(Order::by_tiles(segment_ids, shards, chunk, tiling));
        }
        if width.is_multiple_of(2 * shards) {
            candidates.push(Order::dual_chunk_swap(width, shards));
        }
        candidates.push(Order::contiguous(width, shards));
        // The first of equally good ones.
        let best = candidates
            .into_iter()
            .min_by_key(|order| tiling.work(segment_ids, order));
        best.expect("the contiguous order is always there")
    }

    fn by_tiles(segment_ids: &[i32], shards: usize, chunk: usize, tiling: &Tiling) -> Order {
        let per_pass = Pass::ALL.map(|pass| tiling.chunk_counts(pass, segment_ids, chunk));
        let costs: Vec<[u64; 3]> = (0..segment_ids.len() / chunk)
            .map(|c| per_pass.each_ref().map(|counts| counts[c]))
            .collect();
        let shard_of = split_evenly(&costs, shards, tiling.work_per_tile());
        let mut chunks: Vec<usize> = (0..costs.len()).collect();
        // Stable, so that the chunks of a shard stay in natural order.
        chunks.sort_by_key(|&c| shard_of[c]);
        Order {
            shards,
            chunk,
            chunks,
        }
    }

    /// Tokens of the row.
    pub fn len(&self) -> usize {
        self.chunk * self.chunks.len()
    }

    /// Whether the row has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Context shards, `C`.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Tokens in a chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The natural chunk at each place, shard after shard.
    pub fn chunks(&self) -> &[usize] {
        &self.chunks
    }

    /// The natural indices that a shard holds, stretch by stretch, in its order.
    pub fn runs(&self, shard: usize) -> impl Iterator<Item = Range<usize>> {
        let per_shard = self.chunks.len() / self.shards;
        let chunks = &self.chunks[shard * per_shard..][..per_shard];
        chunks.iter().map(|&c| c * self.chunk..(c + 1) * self.chunk)
    }

    /// The natural index of the token at each place: `ordered[i] = natural[permutation[i]]`.
    pub fn permutation(&self) -> Vec<i32> {
        let runs = (0..self.shards).flat_map(|shard| self.runs(shard));
        runs.flatten().map(|index| index as i32).collect()
    }

    /// The place of each natural index: `natural[i] = ordered[inverse[i]]`.
    pub fn inverse(&self) -> Vec<i32> {
        let mut inverse = vec![0; self.len()];
        for (place, index) in self.permutation().into_iter().enumerate() {
            inverse[index as usize] = place as i32;
        }
        inverse
    }

    /// For each chunk: where it stands in this order, and the natural indices that it holds.
    pub(crate) fn moves(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let chunk = self.chunk;
        let range = move |c: usize| c * chunk..(c + 1) * chunk;
        let places = self.chunks.iter().enumerate();
        places.map(move |(place, &c)| (range(place), range(c)))
    }
}

/// The smallest chunk that cuts a shard at ends of query blocks into few enough pieces. Where query blocks do not divide
/// a shard, half a shard.
fn chunk_size(shard: usize, shards: usize, tiling: &Tiling) -> Option<usize> {
    let block = Pass::ALL
        .map(|pass| tiling.blocks(pass).queries)
        .into_iter()
        .try_fold(1, lcm)?;
    if !shard.is_multiple_of(block) {
        return shard.is_multiple_of(2).then_some(shard / 2);
    }
    let blocks = shard / block;
    let most = (MOST_CHUNKS / shards).max(2);
    let pieces = (1..=most.min(blocks)).rev();
    pieces
        .filter(|&n| blocks.is_multiple_of(n))
        .map(|n| shard / n)
        .next()
}

fn lcm(a: usize, b: usize) -> Option<usize> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}
