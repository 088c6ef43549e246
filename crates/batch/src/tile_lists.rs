//! Tile lists as arrays that a loop on the device reads.

use crate::error::{BatchError, Refused};
use crate::order::Order;
use crate::rows::Rows;
use crate::tiles::{Pass, Tile, Tiling};

/// The active tiles of one pass over some rows, for every row and shard.
///
/// Shapes: `count` is `[B,C]`, the others `[B,C,N]` with `N` the capacity; all row-major. Of the `N` places of a list the
/// first `count` are in use, and the others hold 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TileLists {
    /// Rows, `B`.
    pub rows: usize,
    /// Context shards, `C`.
    pub shards: usize,
    /// Tiles that a list has room for, `N`.
    pub capacity: usize,
    /// Tiles of each list.
    pub count: Vec<i32>,
    /// Index of the query block in its shard.
    pub query_block: Vec<i32>,
    /// Index of the key block in the natural row.
    pub key_block: Vec<i32>,
    /// 1 where nothing in the tile is masked.
    pub whole: Vec<i32>,
}

impl Rows {
    /// The tile lists of a pass. Without a capacity it is that of the longest list, at least 1; a program of one static
    /// shape gives its own, [`Tiling::most_tiles`] at most.
    ///
    /// # Errors
    ///
    /// [`BatchError::OrderCount`], [`BatchError::MixedShards`], and [`BatchError::TileCapacity`] for every list that does
    /// not fit.
    pub fn tile_lists(
        &self,
        pass: Pass,
        tiling: &Tiling,
        orders: &[Order],
        capacity: Option<usize>,
    ) -> Result<TileLists, Refused> {
        self.check_orders(orders)?;
        let tiles_of = |(row, order)| tiling.tiles(pass, self.row_segment_ids(row), order);
        let lists: Vec<Vec<Vec<Tile>>> = orders.iter().enumerate().map(tiles_of).collect();
        let longest = lists.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let capacity = capacity.unwrap_or(longest.max(1));
        let mut problems = Vec::new();
        for (row, shards) in lists.iter().enumerate() {
            for (shard, list) in shards.iter().enumerate() {
                let tiles = list.len();
                if tiles > capacity {
                    problems.push(BatchError::TileCapacity {
                        row,
                        shard,
                        tiles,
                        capacity,
                    });
                }
            }
        }
        Refused::unless_empty(problems)?;
        let shards = orders.first().map_or(1, Order::shards);
        Ok(TileLists::of(&lists, shards, capacity))
    }
}

impl TileLists {
    fn of(lists: &[Vec<Vec<Tile>>], shards: usize, capacity: usize) -> TileLists {
        let filled = |value: fn(&Tile) -> i32| {
            let mut array = Vec::with_capacity(lists.len() * shards * capacity);
            for list in lists.iter().flatten() {
                array.extend(list.iter().map(value));
                array.resize(array.len() + capacity - list.len(), 0);
            }
            array
        };
        TileLists {
            rows: lists.len(),
            shards,
            capacity,
            count: lists.iter().flatten().map(|it| it.len() as i32).collect(),
            query_block: filled(|tile| tile.query_block as i32),
            key_block: filled(|tile| tile.key_block as i32),
            whole: filled(|tile| i32::from(tile.whole)),
        }
    }
}
