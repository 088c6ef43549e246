//! Which tiles are active, as a list that a loop on the device reads.

use ferrotune_graph::{DType, Graph, Tensor};

use super::whole_blocks;

/// Where the queries or the keys of a batch stand.
#[derive(Clone, Debug)]
pub struct Places {
    /// Document of each token, s32 `[B,T]`, 0 for padding.
    pub segment_ids: Tensor,
    /// Place of each token in its row before any reordering, s32 `[B,T]`.
    pub index: Tensor,
}

impl Places {
    /// Tokens in their natural order.
    pub fn in_order(segment_ids: &Tensor) -> Self {
        let index = segment_ids.graph().iota(DType::S32, &segment_ids.dims(), 1);
        Self {
            segment_ids: segment_ids.clone(),
            index,
        }
    }

    /// Padded to whole blocks; what is added is padding.
    fn padded(&self, block: usize) -> Self {
        Self {
            segment_ids: whole_blocks(&self.segment_ids, 1, block),
            index: whole_blocks(&self.index, 1, block),
        }
    }

    /// The smallest and the largest of `values` among the tokens of each block that are no padding: `[B, blocks]` each.
    /// In a block of padding the smallest is above the largest.
    fn range(&self, values: &Tensor, block: usize) -> (Tensor, Tensor) {
        let (b, t) = (values.dim(0), values.dim(1));
        let real = self.segment_ids.gt(&self.segment_ids.scalar_like(0.0));
        let of = |otherwise: f64| {
            let chosen = real.select(values, &values.scalar_like(otherwise));
            chosen.reshape(&[b, t / block, block])
        };
        (of(f64::from(i32::MAX)).min(&[2]), of(-1.0).max(&[2]))
    }
}

/// The active tiles of a batch for one size of tiles.
pub(super) struct TileList {
    /// Queries and keys of a tile.
    pub(super) size: (usize, usize),
    pub(super) queries: Places,
    pub(super) keys: Places,
    /// Number of the tile in rows × blocks of queries × blocks of keys, s32 `[N]`; the first `count` are active.
    tiles: Tensor,
    /// Active tiles, an s32 scalar.
    pub(super) count: Tensor,
    blocks: (usize, usize),
}

impl TileList {
    pub(super) fn new(queries: &Places, keys: &Places, size: (usize, usize)) -> Self {
        let size = (
            size.0.min(queries.index.dim(1)),
            size.1.min(keys.index.dim(1)),
        );
        let (queries, keys) = (queries.padded(size.0), keys.padded(size.1));
        let (first_q, last_q) = queries.range(&queries.segment_ids, size.0);
        let (first_k, last_k) = keys.range(&keys.segment_ids, size.1);
        let (_, latest_q) = queries.range(&queries.index, size.0);
        let (earliest_k, _) = keys.range(&keys.index, size.1);
        let meet = first_q.expand(2).le(&last_k.expand(1));
        let meet = meet.and(&first_k.expand(1).le(&last_q.expand(2)));
        let active = meet.and(&latest_q.expand(2).ge(&earliest_k.expand(1)));

        let blocks = (active.dim(1), active.dim(2));
        let all = active.dim(0) * blocks.0 * blocks.1;
        let idle = active.not().convert(DType::S32).reshape(&[all]);
        let number = active.graph().iota(DType::S32, &[all], 0);
        // A stable sort: active tiles first, row by row, query block by query block.
        let (_, tiles) = idle.sort_by_key(&[&number], 0, false);
        Self {
            size,
            queries,
            keys,
            tiles: tiles[0].clone(),
            count: active.convert(DType::S32).sum_all(),
            blocks,
        }
    }

    /// Row, first query and first key of the tile at `step`.
    pub(super) fn at(&self, step: &Tensor) -> Corner {
        let g = step.graph();
        let number = self.tiles.dynamic_slice(&[step], &[1]).reshape(&[]);
        let whole = |n: usize| g.scalar(n as f64, DType::S32);
        let key_block = number.remainder(&whole(self.blocks.1));
        let rest = &number / whole(self.blocks.1);
        let query_block = rest.remainder(&whole(self.blocks.0));
        Corner {
            row: rest / whole(self.blocks.0),
            query: query_block * self.size.0 as f64,
            key: key_block * self.size.1 as f64,
            zero: g.scalar(0.0, DType::S32),
        }
    }

    /// Which queries of a tile may read which of its keys: boolean `[P,Q]`.
    pub(super) fn mask(&self, corner: &Corner) -> Tensor {
        let (p, q) = self.size;
        let part = |x: &Tensor, first: &Tensor, n: usize| {
            x.dynamic_slice(&[&corner.row, first], &[1, n])
                .reshape(&[n])
        };
        let of_queries = |x: &Tensor| part(x, &corner.query, p).expand(1);
        let of_keys = |x: &Tensor| part(x, &corner.key, q).expand(0);
        let (a, b) = (
            of_queries(&self.queries.segment_ids),
            of_keys(&self.keys.segment_ids),
        );
        let same = a.eq(&b).and(&b.gt(&b.scalar_like(0.0)));
        same.and(&of_queries(&self.queries.index).ge(&of_keys(&self.keys.index)))
    }

    /// Runs `body` for every active tile.
    pub(super) fn walk(
        &self,
        g: &Graph,
        carry: Vec<Tensor>,
        body: impl FnOnce(&Corner, &[Tensor]) -> Vec<Tensor>,
    ) -> Vec<Tensor> {
        let start = std::iter::once(g.scalar(0.0, DType::S32)).chain(carry);
        let mut state = g.while_loop(
            start.collect(),
            |state| state[0].lt(&self.count),
            |state| {
                let next = body(&self.at(&state[0]), &state[1..]);
                std::iter::once(&state[0] + 1.0).chain(next).collect()
            },
        );
        state.split_off(1)
    }
}

/// Where a tile stands: s32 scalars.
pub(super) struct Corner {
    row: Tensor,
    query: Tensor,
    key: Tensor,
    zero: Tensor,
}

impl Corner {
    /// The tile's queries of `[B,K,T,…]`, `[K,P,…]`.
    pub(super) fn queries(&self, x: &Tensor, count: usize) -> Tensor {
        self.part(x, &self.query, count)
    }

    /// The tile's keys of `[B,K,S,…]`, `[K,Q,…]`.
    pub(super) fn keys(&self, x: &Tensor, count: usize) -> Tensor {
        self.part(x, &self.key, count)
    }

    fn starts<'a>(&'a self, rank: usize, first: &'a Tensor) -> Vec<&'a Tensor> {
        let mut starts = vec![&self.zero; rank];
        (starts[0], starts[2]) = (&self.row, first);
        starts
    }

    fn part(&self, x: &Tensor, first: &Tensor, count: usize) -> Tensor {
        let mut window = x.dims();
        (window[0], window[2]) = (1, count);
        let part = x.dynamic_slice(&self.starts(window.len(), first), &window);
        part.reshape(&window[1..])
    }

    /// `x` with the tile's queries replaced.
    pub(super) fn with_queries(&self, x: &Tensor, part: &Tensor) -> Tensor {
        x.dynamic_update_slice(&part.expand(0), &self.starts(x.rank(), &self.query))
    }

    /// `x` with the tile's keys replaced.
    pub(super) fn with_keys(&self, x: &Tensor, part: &Tensor) -> Tensor {
        x.dynamic_update_slice(&part.expand(0), &self.starts(x.rank(), &self.key))
    }
}
