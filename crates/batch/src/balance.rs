//! Load balance: which trajectories share a row, and which rows a micro-batch, so that data shards do even attention work.
//!
//! All shards wait for the slowest at every micro-batch, and attention work grows with the square of a segment's length:
//! rows with equally many tokens may differ a hundredfold. So what is made small is the sum over micro-batches of the work
//! of the shard that has most. Segments stay whole, in one row, and inside of them nothing moves; the members of a group
//! may part. The same input gives the same rows.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::even::split_evenly;
use crate::fit::Slot;
use crate::rows::attention_pairs;

/// What shares the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balance {
    /// Rows of a micro-batch, over all data shards. The number of rows becomes a multiple of it.
    pub rows_per_micro_batch: usize,
    /// Data shards, which share the rows of a micro-batch: shard `s` has the `s`-th stretch of them.
    pub shards: usize,
}

impl Balance {
    /// The sum over micro-batches of the work of the shard that has most, with `work` for each row.
    ///
    /// Rows are cut as [`Rows::micro_batches`](crate::Rows::micro_batches) cuts them.
    ///
    /// # Panics
    /// When there are no shards, or fewer rows in a micro-batch than shards: the assembler refuses such settings.
    pub fn slowest(&self, work: &[u64]) -> u64 {
        let per_shard = self.rows_per_micro_batch / self.shards;
        let micro_batches = work.chunks(self.rows_per_micro_batch);
        let most = |rows: &[u64]| {
            let shards = rows
                .chunks(per_shard)
                .map(|shard| shard.iter().sum::<u64>());
            shards.max().unwrap_or(0)
        };
        micro_batches.map(most).sum()
    }

    /// The slots, moved to other rows so that [`Balance::slowest`] gets smaller, or as they are. `rows` is a multiple of the
    /// rows of a micro-batch.
    pub(crate) fn apply(
        &self,
        slots: Vec<Slot>,
        spread: Option<Vec<Slot>>,
        lengths: &[usize],
        rows: usize,
    ) -> Vec<Slot> {
        let mut candidates = vec![(self.slowest(&work(&slots, lengths, rows)), slots.clone())];
        for slots in [Some(slots), spread].into_iter().flatten() {
            let slots = self.arranged(slots, lengths, rows);
            candidates.push((self.slowest(&work(&slots, lengths, rows)), slots));
        }
        // The first of equally good ones.
        let best = candidates.into_iter().min_by_key(|(slowest, _)| *slowest);
        best.expect("there is always a candidate").1
    }

    /// Whole rows given other places: like with like in a micro-batch, then even shards within it.
    fn arranged(&self, mut slots: Vec<Slot>, lengths: &[usize], rows: usize) -> Vec<Slot> {
        let work = work(&slots, lengths, rows);
        let mut heaviest_first: Vec<usize> = (0..rows).collect();
        heaviest_first.sort_by_key(|&row| Reverse(work[row]));
        let mut place = vec![0; rows];
        let micro_batches = heaviest_first.chunks(self.rows_per_micro_batch);
        for (first, members) in (0..).step_by(self.rows_per_micro_batch).zip(micro_batches) {
            let costs: Vec<[u64; 1]> = members.iter().map(|&row| [work[row]]).collect();
            let shard_of = split_evenly(&costs, self.shards, [1]);
            let mut by_shard: Vec<usize> = (0..members.len()).collect();
            by_shard.sort_by_key(|&member| shard_of[member]);
            for (n, member) in by_shard.into_iter().enumerate() {
                place[members[member]] = first + n;
            }
        }
        for slot in &mut slots {
            slot.row = place[slot.row];
        }
        slots
    }
}

fn work(slots: &[Slot], lengths: &[usize], rows: usize) -> Vec<u64> {
    let mut work = vec![0; rows];
    for (slot, &length) in slots.iter().zip(lengths) {
        work[slot.row] += attention_pairs(length);
    }
    work
}

/// Longest first, each to the row with the least attention work that has room. `None` if one finds no room.
pub(crate) fn lightest_with_room(
    lengths: &[usize],
    rows: usize,
    budget: usize,
    align: usize,
    max_segments: usize,
) -> Option<Vec<Slot>> {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_by_key(|&i| Reverse(lengths[i]));
    let shortest = lengths.iter().copied().min().unwrap_or(0);
    let mut open: BTreeSet<(u64, usize)> = (0..rows).map(|row| (0, row)).collect();
    let mut ends = vec![0; rows];
    let mut segments = vec![0; rows];
    let nowhere = Slot {
        row: 0,
        order: 0,
        start: 0,
    };
    let mut slots = vec![nowhere; lengths.len()];
    for i in longest_first {
        let fits = |&&(_, row): &&(u64, usize)| ends[row] + lengths[i] <= budget;
        let &(work, row) = open.iter().find(fits)?;
        open.remove(&(work, row));
        slots[i] = Slot {
            row,
            order: segments[row],
            start: ends[row],
        };
        segments[row] += 1;
        ends[row] = (ends[row] + lengths[i]).next_multiple_of(align);
        // Rows that can take no more are not looked at again.
        if segments[row] < max_segments && ends[row] + shortest <= budget {
            open.insert((work + attention_pairs(lengths[i]), row));
        }
    }
    Some(slots)
}
