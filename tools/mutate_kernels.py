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
    ["-p", "ferrotune-nn", "--lib"],
]
BUILD = [*TEST, "-p", "ferrotune-cpu", "-p", "ferrotune-nn", "-p", "ferrotune-program", "--lib", "--test", "layers", "--test", "language", "--no-run"]
TESTS = [[*TEST, *tests] for tests in SETS]

FAULTS = [
    # Products.
    ("left rows in each other's place", CPU + "pack.rs", "tile[BLOCK * i + k] = value.to_bits();", "tile[BLOCK * (15 - i) + k] = value.to_bits();"),
    ("pairs exchanged", CPU + "pack.rs", "*to = [even.to_bits(), odd.to_bits()];", "*to = [odd.to_bits(), even.to_bits()];"),
    ("what fills up a tile is left in it", CPU + "pack.rs", "            if here < 16 || depth < BLOCK {\n                *tile = Tile::ZERO;\n            }\n            if here > 0 {\n                right_tile", "            if here > 0 {\n                right_tile"),
    ("later parts written over", CPU + "narrow.rs", "let fresh = part.depth.start == 0;", "let fresh = true;"),
    ("parts of the left operand at its beginning", CPU + "narrow.rs", "(left, stride, 2 * part.depth.start / BLOCK)", "(left, stride, 0)"),
    ("large left operands of the first part", CPU + "narrow.rs", "self.a.columns_of(part.depth.start, part.depth.len())", "self.a.columns_of(0, part.depth.len())"),
    ("few rows not turned back", CPU + "narrow.rs", "*turned = sums[row - first];", "*turned = sums[0];"),
    ("rounded down", CPU + "element.rs", "0x7fff + ((bits >> 16) & 1)", "0"),
    ("ties upwards", CPU + "element.rs", "0x7fff + ((bits >> 16) & 1)", "0x8000"),
    ("the last rows are left out", CPU + "few_rows.rs", "for k in whole..self.b.rows() {", "for k in whole..whole {"),
    ("the last lanes are left out", CPU + "few_rows.rs", "for (a, b) in a_last.iter().zip(b_last) {", "for (a, b) in a_last.iter().zip(b_last).take(0) {"),
    ("packed rows are added at once", CPU + "wide.rs", "if fresh { 0.0 } else { 1.0 }", "if fresh { 0.0 } else { 2.0 }"),
    ("zeros do not fill up", CPU + "packed.rs", ".resize(Self::padded(self.dims[0]) * self.dims[1], 0.0);", ".resize(Self::padded(self.dims[0]) * self.dims[1], 1.0);"),
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
    ("devices read their own keys", NN + "tiled/region.rs", "axes => tensor.all_gather(axes, dim),", "axes if axes.len() > 9 => tensor.all_gather(axes, dim),\n            _ => tensor.clone(),"),
    ("the ring is read from its beginning", NN + "decode_attention.rs", "[first..slots, 0..last + 1]", "[0..last + 1, first..slots]"),
    ("the layer is the first", NN + "decode_attention.rs", "let begin = (layer * b * k + at) * s * e;", "let begin = at * s * e;"),
]

mutants.main(
    __doc__,
    [mutants.replaced(what, file, before, after) for what, file, before, after in FAULTS],
    BUILD,
    TESTS,
)
