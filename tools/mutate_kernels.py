#!/usr/bin/env python3
"""Breaks the products and the attention of the host's processor, one place at a time, and counts what is found.

    tools/mutate_kernels.py [--only WORD] [--every N] [--list]

Each copy is one named fault from the list below: a stride of the wrong dimension, a tile in another's place, a softmax that
forgets a block, a device that reads its own keys only. Survivors are listed: each needs a test.
"""

import mutants

CPU, NN, GRAPH = "crates/cpu/src/", "crates/nn/src/", "crates/graph/src/"
TEST = ["cargo", "test", "-q"]
SETS = [
    ["-p", "ferrotune-cpu", "--lib"],
    ["-p", "ferrotune-program", "--test", "language", "products"],
    ["-p", "ferrotune-nn", "--test", "layers", "attention"],
    ["-p", "ferrotune-nn", "--test", "layers", "tiled"],
    ["-p", "ferrotune-nn", "--test", "layers", "decode"],
    ["-p", "ferrotune-nn", "--test", "layers", "rows"],
    ["-p", "ferrotune-nn", "--lib"],
]
BUILD = [*TEST, "-p", "ferrotune-cpu", "-p", "ferrotune-nn", "-p", "ferrotune-program", "--lib", "--test", "layers", "--test", "language", "--no-run"]
TESTS = [[*TEST, *tests] for tests in SETS]

FAULTS = [
    # Products.
    ("left rows in each other's place", CPU + "pack.rs", "for (i, to) in tile[..part.rows()].iter_mut().enumerate() {\n            let from", "for (i, to) in tile[..part.rows()].iter_mut().rev().enumerate() {\n            let from"),
    ("pairs exchanged", CPU + "pack.rs", "u32::from(even.to_bits()) | u32::from(odd.to_bits()) << 16", "u32::from(odd.to_bits()) | u32::from(even.to_bits()) << 16"),
    ("odd columns in place of even ones", CPU + "transpose.rs", "(columns[c], columns[8 + c]) = (quarters::<EVEN>(a, b), quarters::<ODD>(a, b));", "(columns[c], columns[8 + c]) = (quarters::<ODD>(a, b), quarters::<EVEN>(a, b));"),
    ("pieces of rows one over the other", CPU + "packed.rs", "                tiles = rest;\n", "                let _ = rest;\n                tiles = own;\n"),
    ("products of several matrices from the first column on", CPU + "tiled.rs", "places.skip(range.start).take(range.len())", "places.take(range.len())"),
    ("registers: sums before are forgotten", CPU + "tiles/registers.rs", "if !fresh {", "if false {"),
    ("registers: the second tile of rows is the first", CPU + "tiles/registers.rs", "let tiles = [left.first, left.second];", "let tiles = [left.first, left.first];"),
    ("registers: rows 8 to 15 of a tile are the first", CPU + "tiles/registers.rs", "let tile = tile.wrapping_add(8 * left.row);", "let tile = tile.wrapping_add(0 * left.row);"),
    ("registers: 17 columns taken for a few", CPU + "tiles/registers.rs", "if columns > 16 {", "if columns > 17 {"),
    ("registers: every step reads the first left tiles", CPU + "tiles/registers.rs", "row = row.wrapping_add(left.step);", "row = row.wrapping_add(0 * left.step);"),
    ("columns of few rows counted short", CPU + "tiled.rs", "let rows = (a.rows() - first).min(BLOCK);\n                // SAFETY", "let rows = (a.rows() - first).min(16);\n                // SAFETY"),
    ("what fills up a tile is left in it", CPU + "pack.rs", "if here < 16 || depth < T::DEPTH {", "if here < 16 && depth > T::DEPTH {"),
    ("later parts written over", CPU + "tiled.rs", "let fresh = part.depth.start == 0;", "let fresh = true;"),
    ("parts of the left operand at its beginning", CPU + "tiled.rs", "(left, stride, 2 * part.depth.start / bf16::DEPTH)", "(left, stride, 0)"),
    ("large left operands of the first part", CPU + "tiled.rs", "self.a.columns_of(part.depth.start, part.depth.len())", "self.a.columns_of(0, part.depth.len())"),
    ("few rows not turned back", CPU + "transpose.rs", "let to = &mut to[row..][32 * (column + i)..][..16];", "let to = &mut to[row..][32 * (row + i)..][..16];"),
    ("rounded down", CPU + "element.rs", "0x7fff + ((bits >> 16) & 1)", "0"),
    ("ties upwards", CPU + "element.rs", "0x7fff + ((bits >> 16) & 1)", "0x8000"),
    ("few: later depths written over", CPU + "few_rows.rs", "kept[i].copy_from_slice(&S::as_simd_f32s(&sums[i * stride..]).0[..VECTORS]);", "let _ = &kept[i];"),
    ("few: the last panel has what was there", CPU + "few_rows.rs", "to.resize((k + 1) * width, 0.0);", "to.resize((k + 1) * width, 1.0);\n        to[k * width] += 1.0;"),
    ("few: the last lanes are left out", CPU + "few_rows.rs", "for k in count * S::F32_LANES..b[j].len() {", "for k in b[j].len()..b[j].len() {"),
    ("few: rows from the first element", CPU + "few_rows.rs", "a[i] = &rows[i][depth..][..b.rows()];", "a[i] = &rows[i][..b.rows()];"),
    ("a part from the beginning", "crates/pjrt/src/kernel/in_place.rs", "input.bytes.get(begin..end)", "input.bytes.get(end - end..len)"),
    ("packed rows are added at once", CPU + "wide.rs", "if fresh { 0.0 } else { 1.0 }", "if fresh { 0.0 } else { 2.0 }"),
    ("zeros do not fill up", CPU + "packed.rs", "2 * Self::padded(self.dims[0]) / T::DEPTH", "2 * self.dims[0].div_ceil(T::DEPTH)"),
    ("a task is left out", CPU + "team.rs", "if number >= count {", "if number + 1 >= count {"),
    ("a panic is forgotten", CPU + "team.rs", "kept.get_or_insert(panic);", "drop((kept.take(), panic));"),
    ("the batch stands still", GRAPH + "ops/einsum_cpu.rs", "rest /= size;", "rest /= size * 2;"),
    ("a slice from the beginning", GRAPH + "ops/slice.rs", "from, self.low * stride);", "from, 0);"),
    ("a slice of a slice from the beginning", GRAPH + "emit.rs", "view.first += first;", "view.first = first;"),
    ("devices that hold parts call with the whole", GRAPH + "emit.rs", "*size == 1 || self.manual_axes.contains(name)", "*size >= 1 || self.manual_axes.contains(name)"),
    ("rows that do not lie evenly", GRAPH + "ops/einsum_cpu.rs", "if step != stride * size {", "if step == 0 {"),
    # Softmax.
    ("masked keys are read", CPU + "softmax.rs", "values[visible..].fill(0.0);", "values[LANES..].fill(0.0);"),
    ("the scale is forgotten", CPU + "softmax.rs", "score.mul_add(self.scale, -self.shift)", "score.mul_add(1.0, -self.shift)"),
    # Attention.
    ("keys after a query", NN + "tiled/kernel/documents.rs", "|key| key.1 <= query.1", "|key| key.1 <= query.1 + 1"),
    ("its own key is not read", NN + "tiled/kernel/documents.rs", "|key| key.1 <= query.1", "|key| key.1 < query.1"),
    ("padding is read", NN + "tiled/kernel/documents.rs", "**segment > 0", "**segment >= 0"),
    ("earlier blocks are not shrunk", NN + "tiled/kernel/forward.rs", "if number > 0 && shrink != 1.0 {", "if number > 9 && shrink != 1.0 {"),
    ("earlier sums are not shrunk", NN + "tiled/kernel/forward.rs", "totals[row] * shrink + added", "totals[row] + added"),
    ("earlier blocks are forgotten", NN + "tiled/kernel/forward.rs", "&mut mixed, width, number == 0", "&mut mixed, width, true"),
    ("the log without the peak", NN + "tiled/kernel/forward.rs", "peaks[row] + totals[row].ln()", "totals[row].ln()"),
    ("slopes without their mean", NN + "tiled/kernel/backward.rs", "(slopes[j] - means[row])", "slopes[j]"),
    ("slopes without the scale", NN + "tiled/kernel/backward.rs", "(slopes[j] - means[row]) * scale", "(slopes[j] - means[row])"),
    ("queries of the last block only", NN + "tiled/kernel/backward.rs", "block.first == 0,", "true,"),
    ("keys of the last queries only", NN + "tiled/kernel/backward.rs", "right, wide, &mut block.dk, KEYS, false", "right, wide, &mut block.dk, KEYS, true"),
    ("values and keys exchanged", NN + "tiled/kernel/backward.rs", "dv[at * size + e] = T::nearest(block.dv", "dv[at * size + e] = T::nearest(block.dk"),
    ("keys are read for values", NN + "tiled/region.rs", "whole(&parts[1], 2), whole(&parts[2], 2)", "whole(&parts[1], 2), whole(&parts[1], 2)"),
    ("devices read their own keys", NN + "tiled/region.rs", "axes => tensor.all_gather(axes, dim),", "axes if axes.len() > 9 => tensor.all_gather(axes, dim),\n            _ => tensor.clone(),"),
    ("the ring is read from its beginning", NN + "decode/attention.rs", "[first..slots, 0..last + 1]", "[0..last + 1, first..slots]"),
    ("the layer is the first", NN + "decode/attention.rs", "let begin = (layer * b * k + at) * s * e;", "let begin = at * s * e;"),
    # A step of decoding, and what it shares with training.
    ("step: a block past the ring's end is zeros", NN + "decode/attention.rs", "rows.for_each(|(to, at)| to.copy_from_slice(&ring[place(at) * size..][..size]));", "drop(rows);"),
    ("step: other slots follow where the ring ends", NN + "decode/attention.rs", "begin + padded(end - begin) <= slots", "begin < slots"),
    ("step: pieces go over a block of keys", NN + "decode/attention.rs", ".min(KEYS - at % KEYS)", ""),
    ("step: what follows the last value is read", NN + "tiled/kernel/forward.rs", "(piece.len() / size).min(here - rows)", "piece.len() / size"),
    ("step: no norm before heads", NN + "decode/heads.rs", "normalize_rows(x, norm, eps, &mut stream);", "stream.copy_from_slice(x);"),
    ("step: no bias", NN + "decode/heads.rs", "add(heads, bias);", "let _ = (bias, add::<T>);"),
    ("step: values are turned too", NN + "decode/heads.rs", "turns: i < 2,", "turns: i < 3,"),
    ("step: angles of the first row", NN + "decode/heads.rs", "&all[row * half..][..half]", "&all[..half]"),
    ("step: norms of heads exchanged", NN + "decode/heads.rs", "if biased { 10 } else { 7 } + i]", "if biased { 11 } else { 8 } - i]"),
    ("step: no residual after attention", NN + "decode/feed.rs", "stream.copy_from_slice(x);", "stream.fill(T::nearest(0.0));"),
    ("step: gate and up exchanged", NN + "decode/feed.rs", "gate_all(&mut gate, &up);", "gate_all(&mut up, &gate);\n    gate.copy_from_slice(&up);"),
    ("step: eps is forgotten", CPU + "rows.rs", "(mean + self.eps).sqrt()", "mean.sqrt()"),
    ("step: a rounding less", CPU + "rows.rs", "let open = T::nearest(1.0 / (1.0 + exp(-x)));\n            let silu = T::nearest(x * open.wide());", "let open = 1.0 / (1.0 + exp(-x));\n            let silu = T::nearest(x * open);"),
    ("step: the last of equal logits", NN + "decode/logits.rs", "row.iter().position(|z| *z == peak)", "row.iter().rposition(|z| *z == peak)"),
    ("step: the sum without its peak", CPU + "softmax.rs", "Arch::new().dispatch(Sum(row, shift))", "Arch::new().dispatch(Sum(row, 0.5 * shift))"),
    ("step: slopes of norms without their mean", NN + "norm.rs", "(slope - &unit * along) * scale", "slope * scale"),
    ("step: norms' weights have half a slope", NN + "norm.rs", "(d * unit).sum(&rows)]", "(d * unit).sum(&rows) * 0.5]"),
    ("step: a kernel's slopes of norms without their mean", CPU + "rows.rs", "scale * (d * weight - x * pull)", "{ let _ = pull; scale * d * weight }"),
    ("step: a kernel's slopes of norms without the square of their scale", CPU + "rows.rs", "along * scale * scale", "along * scale"),
    ("step: slopes of a norm's weight of the last row", CPU + "rows.rs", "*d_weight += d * x * scale;", "*d_weight = d * x * scale;"),
    ("step: slopes of a norm's weight of the first rows", NN + "norm.rs", "for sums in sums.chunks(width) {", "for sums in sums.chunks(width).take(1) {"),
    ("step: a kernel's gates have no slope of their own", CPU + "rows.rs", "(open + silu * (1.0 - open))", "open"),
    ("step: a kernel's slopes of gates from the first part", NN + "gate.rs", "&all[part * PART..]", "&all[part.min(0) * PART..]"),
    ("step: gates have no slope of their own", NN + "gate.rs", "let slope = &open + &silu * (open.scalar_like(1.0) - &open);", "let slope = open.clone();"),
    ("step: rotations go back by other angles", NN + "rotary.rs", "turned(&d[0], &by.cos, &-&by.sin)", "turned(&d[0], &by.cos, &by.sin)"),
]

mutants.main(
    __doc__,
    [mutants.replaced(what, file, before, after) for what, file, before, after in FAULTS],
    BUILD,
    TESTS,
)
