#!/usr/bin/env python3
"""Breaks what devices that share rows do, one place at a time, and counts how many broken copies the tests find.

    tools/mutate_context.py [--only WORD] [--list]

Each copy is one named fault from the list below: the token before predicted, scores left where they were computed, a half of the
queries sent to the wrong device, keys of one device alone.
"""

import mutants

BUILD = ["cargo", "test", "-q", "-p", "ferrotune-nn", "-p", "ferrotune-engine", "--lib", "--test", "engine", "--no-run"]
TESTS = [
    ["cargo", "test", "-q", "-p", "ferrotune-engine", "--lib", "order"],
    ["cargo", "test", "-q", "-p", "ferrotune-nn", "--lib", "swap"],
    ["cargo", "test", "-q", "-p", "ferrotune-engine", "--test", "engine", "context"],
]

ORDER = "crates/engine/src/order.rs"
UPLOAD = "crates/engine/src/batch.rs"
REGION = "crates/nn/src/tiled/region.rs"
SWAP = "crates/nn/src/tiled/swap.rs"
HEADS = "crates/nn/src/by_heads.rs"
DELTA = "crates/models/src/decoder/delta.rs"

# Name of the fault, file, what stands there, what the broken copy has instead.
FAULTS = [
    ("the token before is predicted", ORDER, "(at + 1) % width;", "(at + width - 1) % width;"),
    ("the next place is predicted", ORDER, "let next = here.iter().map(after).collect();", "let next = (0..count * width).map(|at| after(&at)).collect();"),
    ("the row after is predicted", ORDER, "at - at % width + (at + 1) % width", "(at + 1) % (count * width)"),
    ("first tokens are predicted", ORDER, "rows.positions()[*at] != 0\n                && ", ""),
    ("scores left at the token that predicts", ORDER, "scores.iter().zip(&self.next)", "scores.iter().zip(&self.here)"),
    ("order of the first row for all", ORDER, "orders.iter().enumerate().flat_map(|(row, order)| {", "orders.iter().enumerate().flat_map(|(row, _)| {\n                let order = &orders[0];"),
    ("hybrids in another order", ORDER, "if !self.natural && self.kind", "if self.kind"),
    ("positions left in natural order", UPLOAD, "of_tokens(rows.positions())?", "ints(rows.positions())?"),
    ("segments left in natural order", UPLOAD, "of_tokens(rows.segment_ids())?", "ints(rows.segment_ids())?"),
    ("experts left in natural order", UPLOAD, "let ids = places.here(ids, per_token);", "let ids = ids.to_vec();"),
    ("keys of one device in place of the others'", REGION, "axes => tensor.all_gather(axes, dim),", "axes => {\n                let sizes = axes.iter().map(|it| g.mesh().axis_size(it).unwrap_or(1));\n                Tensor::concatenate(&vec![tensor; sizes.product()], dim)\n            }"),
    ("queries go where their places do not", REGION, "places(out(&parts[3]), out(&parts[4]))", "places(parts[3].clone(), parts[4].clone())"),
    ("answers are not sent back", REGION, "|swap| swap.back(&read)", "|swap| swap.out(&read)"),
    ("halves go to the same devices", SWAP, "home(2 * r + odd)", "home(2 * r)"),
    ("weights of the first heads for all", HEADS, "if heads.exchanged {", "if heads.exchanged && weight.rank() > 2 {"),
    ("the first tokens for all devices", HEADS, "g.axis_index(self.over) * dims[1] as f64", "g.axis_index(self.over) * 0.0"),
    ("documents of one device", HEADS, "segment_ids: heads.gathered(&places[0]),", "segment_ids: heads.gathered(&places[1]),"),
    ("keys where queries are", DELTA, "heads.slice(3, e, 2 * e),", "heads.slice(3, 0, e),"),
]

mutants.main(
    __doc__,
    [mutants.replaced(*fault) for fault in FAULTS],
    BUILD,
    TESTS,
)
