//! Attention tiles: which pairs of a query block and a key block have work in them.
//!
//! A row has `T` tokens, cut over `C` context shards by its [`Order`]. A shard's queries are its own tokens, in its order,
//! in blocks of `queries`. Keys are gathered over the context axis and put back in natural order, in blocks of `keys`: so
//! a key block is one stretch of the row whatever the order. A tile is *active* iff it is not wholly above the causal
//! diagonal (its last query does not come before its first key, by index in the natural row) and the ranges of segment ids
//! of its queries and of its keys overlap.
//!
//! # Padding
//!
//! Padding has segment id 0. [`Padding::Counted`] takes it for a segment like any other, as kernels do that compare ranges
//! of ids and know nothing else: then a tile of padding with padding is active, and a block that holds one padding token
//! in front of segment 9 overlaps with all segments from 0 to 9. [`Padding::Skipped`] looks at tokens only, and never
//! lists more tiles.
//!
//! # Worked numbers
//!
//! One trajectory of 60,948 tokens in a row of 65,536, four shards, forward blocks 1024x4096, dkv 2048x2048, padding
//! counted, by [`OrderKind`](crate::OrderKind) and side of the padding (start with `pad_align` 4096):
//!
//! | order | padding | forward tiles | dkv tiles |
//! |---|---|---|---|
//! | dual_chunk_swap | end | 80 136 136 136 | 74 132 132 132 |
//! | dual_chunk_swap | start | 125 120 120 120 | 122 116 116 116 |
//! | balanced | end | 122 122 122 122 | 118 118 117 117 |
//!
//! Left out: what is masked inside of an active tile, which is the kernel's.

use std::iter::once;
use std::ops::Range;
use std::str::FromStr;

use crate::error::BatchError;
use crate::order::Order;

/// The size of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Queries in a tile; at least 1.
    pub queries: usize,
    /// Keys in a tile; at least 1.
    pub keys: usize,
}

impl FromStr for Blocks {
    type Err = BatchError;

    fn from_str(text: &str) -> Result<Blocks, BatchError> {
        let parts = text.split_once('x');
        let parsed = parts.and_then(|(q, k)| Some((q.parse().ok()?, k.parse().ok()?)));
        match parsed {
            Some((queries @ 1.., keys @ 1..)) => Ok(Blocks { queries, keys }),
            _ => Err(BatchError::UnknownName {
                what: "block size",
                given: text.to_owned(),
                known: "queries x keys, both at least 1, as in 1024x4096",
            }),
        }
    }
}

/// What padding counts for when tiles are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Padding {
    /// A segment of its own, with id 0.
    #[default]
    Counted,
    /// Nothing.
    Skipped,
}

/// One walk over the tiles of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Query block by query block.
    Forward,
    /// Gradients of the queries: query block by query block.
    Dq,
    /// Gradients of keys and values: key block by key block.
    Dkv,
}

impl Pass {
    /// Every pass.
    pub const ALL: [Pass; 3] = [Pass::Forward, Pass::Dq, Pass::Dkv];

    /// Matrix products in a tile. Scores and values; scores, `dP` and `dq`; scores, `dP`, `dk` and `dv`.
    fn products(self) -> u64 {
        match self {
            Pass::Forward => 2,
            Pass::Dq => 3,
            Pass::Dkv => 4,
        }
    }
}

/// The tile sizes of an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiling {
    /// Of the forward pass.
    pub forward: Blocks,
    /// Of the gradients of the queries.
    pub dq: Blocks,
    /// Of the gradients of keys and values.
    pub dkv: Blocks,
    /// What padding counts for.
    pub padding: Padding,
}

/// A pair of blocks that has work in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tile {
    /// Index of the query block in its shard.
    pub query_block: usize,
    /// Index of the key block in the natural row.
    pub key_block: usize,
    /// Whether nothing in it is masked: one segment, no padding, no query before a key, no block cut short.
    pub whole: bool,
}

impl Tiling {
    /// These sizes, dq as the forward pass.
    pub fn new(forward: Blocks, dkv: Blocks) -> Tiling {
        Tiling {
            forward,
            dq: forward,
            dkv,
            padding: Padding::default(),
        }
    }

    /// The tile size of a pass.
    pub fn blocks(&self, pass: Pass) -> Blocks {
        match pass {
            Pass::Forward => self.forward,
            Pass::Dq => self.dq,
            Pass::Dkv => self.dkv,
        }
    }

    /// The active tiles of every shard of a row, in the order of the walk.
    ///
    /// `segment_ids` is the row in natural order.
    ///
    /// # Panics
    ///
    /// If the row and its order differ in length.
    #[track_caller]
    pub fn tiles(&self, pass: Pass, segment_ids: &[i32], order: &Order) -> Vec<Vec<Tile>> {
        let keys = self.key_spans(pass, segment_ids);
        let by_shard = self.query_spans(pass, segment_ids, order);
        let walk = match pass {
            Pass::Forward | Pass::Dq => by_query,
            Pass::Dkv => by_key,
        };
        let shards = by_shard.iter();
        shards.map(|queries| walk(queries, &keys)).collect()
    }

    /// How many active tiles each shard of a row has. As [`Tiling::tiles`], without the lists.
    #[track_caller]
    pub fn counts(&self, pass: Pass, segment_ids: &[i32], order: &Order) -> Vec<usize> {
        let keys = self.key_spans(pass, segment_ids);
        let by_shard = self.query_spans(pass, segment_ids, order);
        let shards = by_shard.iter();
        shards.map(|queries| count(queries, &keys)).collect()
    }

    /// More tiles than this no shard of a row of `width` tokens has.
    pub fn most_tiles(&self, pass: Pass, width: usize, context_size: usize) -> usize {
        let blocks = self.blocks(pass);
        (width / context_size).div_ceil(blocks.queries) * width.div_ceil(blocks.keys)
    }

    /// The tiles that each chunk of a row costs whichever shard holds it, if query blocks divide chunks.
    pub(crate) fn chunk_counts(&self, pass: Pass, segment_ids: &[i32], chunk: usize) -> Vec<u64> {
        let keys = self.key_spans(pass, segment_ids);
        let starts = (0..segment_ids.len()).step_by(chunk);
        starts
            .map(|start| {
                let run = once(start..start + chunk);
                let queries = self.spans(segment_ids, run, self.blocks(pass).queries);
                count(&queries, &keys) as u64
            })
            .collect()
    }

    /// What a tile of each pass costs, in products of one number with another for each element of a head.
    pub(crate) fn work_per_tile(&self) -> [u64; 3] {
        Pass::ALL.map(|pass| {
            let Blocks { queries, keys } = self.blocks(pass);
            pass.products() * (queries as u64) * (keys as u64)
        })
    }

    /// What the slowest shard costs: passes are done one after the other, and all wait for the last at each.
    pub(crate) fn work(&self, segment_ids: &[i32], order: &Order) -> u128 {
        let most = Pass::ALL.map(|pass| self.counts(pass, segment_ids, order).into_iter().max());
        let passes = most.into_iter().zip(self.work_per_tile());
        passes
            .map(|(tiles, work)| tiles.unwrap_or(0) as u128 * u128::from(work))
            .sum()
    }

    fn key_spans(&self, pass: Pass, segment_ids: &[i32]) -> Vec<Span> {
        let all = once(0..segment_ids.len());
        self.spans(segment_ids, all, self.blocks(pass).keys)
    }

    #[track_caller]
    fn query_spans(&self, pass: Pass, segment_ids: &[i32], order: &Order) -> Vec<Vec<Span>> {
        assert_eq!(segment_ids.len(), order.len(), "an order of another row");
        let block = self.blocks(pass).queries;
        let shards = 0..order.shards();
        shards
            .map(|shard| self.spans(segment_ids, order.runs(shard), block))
            .collect()
    }

    /// The blocks of the tokens that these stretches of the natural row hold, one after the other. The last may be short.
    fn spans(
        &self,
        segment_ids: &[i32],
        runs: impl Iterator<Item = Range<usize>>,
        block: usize,
    ) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut span = Span::new(block);
        for mut run in runs {
            while !run.is_empty() {
                let end = run.end.min(run.start + (block - span.positions));
                span.take(run.start, &segment_ids[run.start..end], self.padding);
                if span.positions == block {
                    spans.push(std::mem::replace(&mut span, Span::new(block)));
                }
                run.start = end;
            }
        }
        if span.positions > 0 {
            spans.push(span);
        }
        spans
    }
}

/// What a block holds: ranges of natural indices and of segment ids.
#[derive(Clone, Copy, Debug)]
struct Span {
    block: usize,
    positions: usize,
    first: usize,
    last: usize,
    low: i32,
    high: i32,
    padded: bool,
}

impl Span {
    fn new(block: usize) -> Span {
        Span {
            block,
            positions: 0,
            first: usize::MAX,
            last: 0,
            low: i32::MAX,
            high: i32::MIN,
            padded: false,
        }
    }

    /// Adds a stretch of the natural row that begins at index `start`, later than what is there.
    fn take(&mut self, start: usize, segment_ids: &[i32], padding: Padding) {
        self.positions += segment_ids.len();
        let high = segment_ids.iter().copied().max().unwrap_or(0);
        let low = segment_ids.iter().copied().min().unwrap_or(0);
        self.padded |= low == 0;
        let (first, last, low) = match padding {
            Padding::Counted => (0, segment_ids.len() - 1, low),
            // Nothing here counts.
            Padding::Skipped if high == 0 => return,
            Padding::Skipped => {
                let token = |&id: &i32| id != 0;
                let first = segment_ids.iter().position(token).unwrap_or(0);
                let last = segment_ids.iter().rposition(token).unwrap_or(0);
                let ids = segment_ids[first..=last].iter();
                // As unsigned numbers and less 1, padding is beyond all others.
                let low = ids.map(|&id| (id as u32).wrapping_sub(1)).min();
                (first, last, low.map_or(0, |low| low as i32 + 1))
            }
        };
        self.first = self.first.min(start + first);
        self.last = self.last.max(start + last);
        self.low = self.low.min(low);
        self.high = self.high.max(high);
    }

    /// Whether a tile of these queries with `keys` has work in it. A block that counts for nothing overlaps with none.
    fn meets(&self, keys: &Span) -> bool {
        self.last >= keys.first && self.low <= keys.high && keys.low <= self.high
    }

    /// Of a tile that is active. So if each block is of one segment, it is the same one.
    fn whole_with(&self, keys: &Span) -> bool {
        let one =
            |span: &Span| span.low == span.high && !span.padded && span.positions == span.block;
        one(self) && one(keys) && self.first >= keys.last
    }
}

fn count(queries: &[Span], keys: &[Span]) -> usize {
    let active = |query: &Span| keys.iter().filter(|keys| query.meets(keys)).count();
    queries.iter().map(active).sum()
}

fn by_query(queries: &[Span], keys: &[Span]) -> Vec<Tile> {
    let pairs = (0..queries.len()).flat_map(|q| (0..keys.len()).map(move |k| (q, k)));
    active(pairs, queries, keys)
}

fn by_key(queries: &[Span], keys: &[Span]) -> Vec<Tile> {
    let pairs = (0..keys.len()).flat_map(|k| (0..queries.len()).map(move |q| (q, k)));
    active(pairs, queries, keys)
}

fn active(
    pairs: impl Iterator<Item = (usize, usize)>,
    queries: &[Span],
    keys: &[Span],
) -> Vec<Tile> {
    let tiles = pairs.filter(|&(q, k)| queries[q].meets(&keys[k]));
    tiles
        .map(|(query_block, key_block)| Tile {
            query_block,
            key_block,
            whole: queries[query_block].whole_with(&keys[key_block]),
        })
        .collect()
}
