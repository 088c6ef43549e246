#!/usr/bin/env python3
"""Breaks the packer, the orders and the tiles, one place at a time, and counts how many broken copies the tests find.

    tools/mutate_rows.py [--only WORD] [--list]

Each copy is one named fault from the list below: a field left where it was, a shift that is not rounded, chunks
exchanged, a weight from the wrong mask. Survivors are listed: each needs a test.
"""

import mutants

SOURCES = "crates/batch/src/"
TEST = ["cargo", "test", "-q", "-p", "ferrotune-batch", "--lib", "--tests"]

# Name of the fault, file, what stands there, what the broken copy has instead.
FAULTS = [
    # Laying rows out.
    ("token ids not moved with the row", "rows.rs", "for (to, &id) in rows.token_ids[range.clone()]", "for (to, &id) in rows.token_ids[place.row * width..][..place.len]"),
    ("positions not moved with the row", "rows.rs", "rows.positions[range.clone()].iter_mut().zip(0..)", "rows.positions[place.row * width..][..place.len].iter_mut().zip(0..)"),
    ("positions counted from the row", "rows.rs", "rows.positions[range.clone()].iter_mut().zip(0..)", "rows.positions[range.clone()].iter_mut().zip(place.start as i32..)"),
    ("positions counted from 1", "rows.rs", "rows.positions[range.clone()].iter_mut().zip(0..)", "rows.positions[range.clone()].iter_mut().zip(1..)"),
    ("segment ids from 0", "packing.rs", "segment: slot.order + 1", "segment: slot.order"),
    ("segment ids of the whole batch", "packing.rs", "segment: slot.order + 1", "segment: trajectory + 1"),
    ("segment ids one token long", "rows.rs", "rows.segment_ids[range.clone()].fill(", "rows.segment_ids[range.start..range.start + 1].fill("),
    ("loss weight of the neighbour", "rows.rs", "&weights.per_token[place.trajectory]", "&weights.per_token[(place.trajectory + 1) % batch.len()][..place.len]"),
    ("fields not moved with the row", "rows.rs", "to.copy_from(range.start, from, 0..place.len);", "to.copy_from(place.row * width, from, 0..place.len);"),
    ("fields one token short", "rows.rs", "to.copy_from(range.start, from, 0..place.len);", "to.copy_from(range.start, from, 0..place.len - 1);"),
    ("wide fields moved as if narrow", "column.rs", "let from = from.start * n..from.end * n;", "let from = from.start..from.end;"),
    ("wide fields written as if narrow", "column.rs", "(Values::S16(list), Values::S16(source)) => copy(list, to * n, source, from)", "(Values::S16(list), Values::S16(source)) => copy(list, to, source, from)"),
    ("free experts padded with expert 0", "column.rs", "impl Value for i16 {\n    const PADDING: i16 = -1;", "impl Value for i16 {\n    const PADDING: i16 = 0;"),
    ("padding with a policy version", "column.rs", "impl Value for i32 {\n    const PADDING: i32 = -1;", "impl Value for i32 {\n    const PADDING: i32 = 0;"),
    ("short captures padded with expert 0", "trajectory.rs", "ids.resize(ids.len().max(self.len() * per_token), -1);", "ids.resize(ids.len().max(self.len() * per_token), 0);"),
    ("long captures cut silently", "trajectory.rs", "ids.resize(ids.len().max(self.len() * per_token), -1);", "ids.resize(self.len() * per_token, -1);"),
    # Padding at the start.
    ("shift not rounded", "packing.rs", "*shift = trailing - trailing % self.pad_align;", "*shift = trailing;"),
    ("shift rounded up", "packing.rs", "*shift = trailing - trailing % self.pad_align;", "*shift = trailing.next_multiple_of(self.pad_align);"),
    ("shift off by one", "packing.rs", "let trailing = self.budget - end;", "let trailing = (self.budget - end).saturating_sub(1);"),
    ("shift rounded to the segment alignment", "packing.rs", "*shift = trailing - trailing % self.pad_align;", "*shift = trailing - trailing % self.segment_align;"),
    ("shift of the last segment only", "packing.rs", "ends[slot.row] = ends[slot.row].max(slot.start + length);", "ends[slot.row] = slot.start + length;"),
    ("shift of another row", "packing.rs", "start: slot.start + shifts[slot.row],", "start: slot.start + shifts[(slot.row + 1) % shifts.len()].min(shifts[slot.row]),"),
    ("start is the default", "packing.rs", "pad_position: PadPosition::End,", "pad_position: PadPosition::Start,"),
    ("end moves too", "packing.rs", "if self.pad_position == PadPosition::End {\n            return shifts;", "if self.pad_position == PadPosition::End && self.budget == 0 {\n            return shifts;"),
    # Choosing rows.
    ("shortest first", "fit.rs", "longest_first.sort_by_key(|&i| std::cmp::Reverse(lengths[i]));", "longest_first.sort_by_key(|&i| lengths[i]);"),
    ("alignment ignored", "fit.rs", "(start + lengths[i]).next_multiple_of(align)", "(start + lengths[i]).min(align.max(usize::MAX))"),
    ("cap ignored", "fit.rs", "if segments[row] == max_segments {", "if segments[row] == usize::MAX {"),
    ("cap off by one", "fit.rs", "if segments[row] == max_segments {", "if segments[row] == max_segments.saturating_add(1) {"),
    ("last row with room", "fit.rs", "node = if self.tree[2 * node] >= length {\n                2 * node\n            } else {\n                2 * node + 1\n            };", "node = if self.tree[2 * node + 1] >= length {\n                2 * node + 1\n            } else {\n                2 * node\n            };"),
    ("no empty rows", "packing.rs", "None => self.row_multiple,", "None => 1,"),
    # Refusals.
    ("too long is let through", "check.rs", "if tokens > self.budget.min(i32::MAX as usize) {", "if tokens > self.budget.max(i32::MAX as usize) {"),
    ("length of fields not checked", "trajectory.rs", "if values != tokens * per_token {", "if values < tokens {"),
    ("width of fields not checked", "check.rs", "columns.filter(|&(_, per_token)| per_token != expected)", "columns.filter(|&(_, per_token)| per_token == 0)"),
    ("partial fields let through", "check.rs", "if let (Some(missing), 1..) = (missing, present) {", "if let (Some(missing), 1..) = (missing, present / total) {"),
    ("pad_align blind to alignment", "check.rs", "|| segment_align > 0 && !pad_align.is_multiple_of(segment_align)", ""),
    ("pad_align may be the row", "check.rs", "if pad_align >= budget {", "if pad_align > budget {"),
    ("pad_align checked with end too", "check.rs", "            return;\n        }\n        if pad_align == 0", "        }\n        if pad_align == 0"),
    ("pad_align idle with end let through", "check.rs", "if pad_align != DEFAULT_PAD_ALIGN {", "if pad_align == 0 {"),
    ("start with padded let through", "check.rs", "if self.pad_position == PadPosition::Start {", "if self.pad_position == PadPosition::Start && budget == 0 {"),
    ("context size may not divide", "check.rs", '            (PackingOption::ContextSize, self.context_size),\n        ] {\n            let budget', "        ] {\n            let budget"),
    ("negative expert let through", "column.rs", "Values::S16(_) => -1,", "Values::S16(_) => i64::MIN,"),
    ("free expert refused", "column.rs", "Values::S16(_) => -1,", "Values::S16(_) => 0,"),
    ("infinite values let through", "column.rs", "|value| !value.is_finite()", "|value| value.is_nan()"),
    # Truncation, weights.
    ("mask not truncated", "trajectory.rs", "trajectory.loss_mask.truncate(budget);", ""),
    ("wide fields truncated as if narrow", "column.rs", "list.truncate(tokens * self.per_token)", "list.truncate(tokens)"),
    ("truncation not marked", "trajectory.rs", "trajectory.truncated = true;", ""),
    ("weights from all tokens", "weights.rs", ".map(|&on| if on { weight } else { 0.0 })", ".map(|_| weight)"),
    ("weights from the inverted mask", "weights.rs", "if on { weight } else { 0.0 }", "if on { 0.0 } else { weight }"),
    ("empty sequences in the mean", "weights.rs", "Aggregation::SequenceMeanTokenMean => 1.0 / (active as f64", "Aggregation::SequenceMeanTokenMean => 1.0 / (batch.len() as f64"),
    ("weights of lengths, not masks", "weights.rs", "batch.iter().map(Trajectory::trained_tokens)", "batch.iter().map(Trajectory::len)"),
    ("masked trajectories not counted", "weights.rs", "masked_trajectories: batch.len() - active", "masked_trajectories: 0"),
    # Micro-batches and the way back.
    ("piece begins a row late", "rows.rs", ".step_by(height)\n            .map(|first| self.piece(first, height))", ".step_by(height)\n            .map(|first| self.piece((first + 1).min(self.row_count - 1), height))"),
    ("places keep the row of the whole", "rows.rs", "row: place.row % height,", "row: place.row.min(height - 1),"),
    # Load balance.
    ("balance forgets empty rows", "packing.rs", "Some(balance) => balance.rows_per_micro_batch,", "Some(_) => 1,"),
    ("balance by tokens", "rows.rs", "n * (n + 1) / 2", "n"),
    ("balance takes the worst", "balance.rs", "candidates.into_iter().min_by_key(|(slowest, _)| *slowest)", "candidates.into_iter().max_by_key(|(slowest, _)| *slowest)"),
    ("balance over the budget", "balance.rs", "ends[row] + lengths[i] <= budget;", "ends[row] + lengths[i] <= budget + 1;"),
    ("balance without alignment", "balance.rs", "(ends[row] + lengths[i]).next_multiple_of(align)", "ends[row] + lengths[i] + 0 * align"),
    ("balance without cap", "balance.rs", "if segments[row] < max_segments && ", "if "),
    ("balance loses a row", "balance.rs", "place[members[member]] = first + n;", "place[members[member]] = first + n / 2;"),
    ("slowest of all shards together", "balance.rs", "shards.max().unwrap_or(0)", "shards.sum::<u64>()"),
    ("lightest instead of heaviest first", "balance.rs", "heaviest_first.sort_by_key(|&row| Reverse(work[row]));", "heaviest_first.sort_by_key(|&row| work[row] % 2);"),
    # Orders.
    ("mirrored chunks off by one", "order.rs", "[r, 2 * shards - 1 - r]", "[r, (2 * shards - r) % (2 * shards)]"),
    ("mirrored chunks exchanged", "order.rs", "[r, 2 * shards - 1 - r]", "[2 * shards - 1 - r, r]"),
    ("pairs side by side", "order.rs", "[r, 2 * shards - 1 - r]", "[2 * r, 2 * r + 1]"),
    ("inverse is the permutation", "order.rs", "inverse[index as usize] = place as i32;", "inverse[place] = index;"),
    ("order applied backwards", "ordered.rs", "self.moved(|row| orders[row].moves())", "self.moved(|row| orders[row].moves().map(|(a, b)| (b, a)))"),
    ("restore does not invert", "ordered.rs", ".map(|(place, index)| (index, place))", ".map(|(place, index)| (place, index))"),
    ("order of the first row for all", "ordered.rs", "self.moved(|row| orders[row].moves())", "self.moved(|row| orders[row * 0].moves())"),
    ("values put back where they were", "ordered.rs", "natural[base + index.start..base + index.end]\n                    .copy_from_slice(&values[base + place.start..base + place.end]);", "natural[base + place.start..base + place.end]\n                    .copy_from_slice(&values[base + place.start..base + place.end]);"),
    ("segment ids left in natural order", "rows.rs", "(&mut self.segment_ids, &source.segment_ids),\n            (&mut self.positions, &source.positions),", "(&mut self.positions, &source.positions),"),
    ("positions left in natural order", "rows.rs", "            (&mut self.positions, &source.positions),\n        ] {", "        ] {"),
    ("weights left in natural order", "rows.rs", "self.loss_weight[to.clone()].copy_from_slice(&source.loss_weight[from.clone()]);", "self.loss_weight[to.clone()].copy_from_slice(&source.loss_weight[to.clone()]);"),
    ("fields left in natural order", "rows.rs", "to_column.copy_from(to.start, from_column, from.clone());", "to_column.copy_from(to.start, from_column, to.clone());"),
    ("chunks of a shard unsorted", "order.rs", "chunks.sort_by_key(|&c| shard_of[c]);", "chunks.sort_by_key(|&c| (shard_of[c], std::cmp::Reverse(c)));"),
    ("chunks given out by number", "order.rs", "chunks.sort_by_key(|&c| shard_of[c]);", "chunks.sort_by_key(|&c| (c % shards, shard_of[c]));"),
    ("balanced is never better", "order.rs", "if let Some(chunk) = chunk_size(width / shards, shards, tiling) {", "if let Some(chunk) = chunk_size(width / shards, shards, tiling).filter(|&c| c == 0) {"),
    ("balanced takes the worst", "order.rs", ".min_by_key(|order| tiling.work(segment_ids, order))", ".max_by_key(|order| tiling.work(segment_ids, order))"),
    ("exchanges make it worse", "even.rs", "if gain > most {", "if gain < most {"),
    ("kicks forgotten", "even.rs", "if heaviest < best.0 {", "if heaviest > best.0 {"),
    ("bins of unequal size", "even.rs", "let open = (0..bins).filter(|&bin| room[bin] > 0);", "let open = (0..bins).filter(|&bin| room[bin] > 0 || bin == 0);"),
    # Tiles.
    ("diagonal off by one", "tiles.rs", "self.last >= keys.first", "self.last > keys.first"),
    ("diagonal by the first query", "tiles.rs", "self.last >= keys.first", "self.first >= keys.first"),
    ("tiles above the diagonal", "tiles.rs", "self.last >= keys.first && ", ""),
    ("documents ignored", "tiles.rs", " && self.low <= keys.high && keys.low <= self.high", ""),
    ("ranges must be equal", "tiles.rs", "self.low <= keys.high && keys.low <= self.high", "self.low == keys.low && keys.high == self.high"),
    ("ranges overlap on one side", "tiles.rs", "self.low <= keys.high && keys.low <= self.high", "self.low <= keys.high"),
    ("padding skipped by default", "tiles.rs", "    /// A segment of its own, with id 0.\n    #[default]\n    Counted,\n    /// Nothing.\n    Skipped,", "    /// A segment of its own, with id 0.\n    Counted,\n    /// Nothing.\n    #[default]\n    Skipped,"),
    ("padding never skipped", "tiles.rs", "Padding::Skipped if high == 0 => return,", "Padding::Skipped if high == 0 => (0, 0, 0),"),
    ("padding in the range of tokens", "tiles.rs", "low.map_or(0, |low| low as i32 + 1)", "low.map_or(0, |low| (low as i32 + 1).min(i32::from(self.padded)))"),
    ("whole tiles with padding", "tiles.rs", "&& !span.padded && ", "&& "),
    ("whole tiles on the diagonal", "tiles.rs", "self.first >= keys.last", "self.last >= keys.last"),
    ("short blocks are whole", "tiles.rs", " && span.positions == span.block", ""),
    ("whole tiles of two documents", "tiles.rs", "span.low == span.high && ", ""),
    ("dkv walks by query", "tiles.rs", "Pass::Dkv => by_key,", "Pass::Dkv => by_query,"),
    ("dq with the dkv blocks", "tiles.rs", "Pass::Dq => self.dq,", "Pass::Dq => self.dkv,"),
    ("last block forgotten", "tiles.rs", "if span.positions > 0 {", "if span.positions == block {"),
    ("lists not filled up", "tile_lists.rs", "array.resize(array.len() + capacity - list.len(), 0);", "array.resize(array.len() + capacity - list.len(), 1);"),
    ("lists longer than their room", "tile_lists.rs", "if tiles > capacity {", "if tiles > capacity + 1 {"),
]

mutants.main(
    __doc__,
    [mutants.replaced(what, SOURCES + file, before, after) for what, file, before, after in FAULTS],
    TEST + ["--no-run"],
    [TEST],
)
