#!/usr/bin/env python3
"""Breaks experts with a capacity, their adapters and the replay of routes, one place at a time, and counts what is found.

    tools/mutate_experts.py [--only WORD] [--every N] [--list]

Each copy is one named fault from the list below: tokens dropped from the wrong end, a count that leaves some out, the experts of
another token. Survivors are listed: each needs a test.
"""

import mutants

TEST = ["cargo", "test", "-q"]
BUILD = [*TEST, "-p", "ferrotune-nn", "-p", "ferrotune-engine", "-p", "ferrotune-rl", "--tests", "--no-run"]
TESTS = [
    [*TEST, "-p", "ferrotune-nn", "--test", "layers", "experts"],
    [*TEST, "-p", "ferrotune-nn", "--test", "layers", "expert_adapters"],
    [*TEST, "-p", "ferrotune-engine", "--test", "engine", "--", "capacity", "trains", "router"],
    [*TEST, "-p", "ferrotune-rl", "--lib", "--", "answers", "report"],
    [*TEST, "-p", "ferrotune-rl", "--test", "device", "replay"],
]

CAPPED = "nn/src/capped_experts.rs"
FAULTS = [
    ("one place more", CAPPED, "number.lt(&number.scalar_like(c as f64))", "number.le(&number.scalar_like(c as f64))"),
    ("all rows fill the same buffers", CAPPED, "&routes.experts * b as f64 + row", "&routes.experts * b as f64 + row * 0.0"),
    ("padding takes places", CAPPED, "counted\n            .expand(1)\n            .select(&buffer, &nowhere)", "counted\n            .expand(1)\n            .select(&buffer, &buffer)"),
    ("what is held is counted as dropped", CAPPED, "dropped: (load - held).sum(&[0]),", "dropped: held.sum(&[0]),"),
    ("empty places over full ones", CAPPED, "number.ge(&held.expand(1))", "number.ge(&(held.expand(1) - 1.0))"),
    ("answers to the wrong tokens", CAPPED, "with_dropped.permute_rows(&self.back, &self.order)", "with_dropped.permute_rows(&self.order, &self.back)"),
    ("capacity rounded down", CAPPED, "(factor * even).ceil()", "(factor * even).floor()"),
    ("more places than tokens", CAPPED, "places.min(tokens)", "places"),
    ("adapters not scaled", "nn/src/experts.rs", "by_expert(&by_expert(rows, a), b) * params.adapter_scale()", "by_expert(&by_expert(rows, a), b)"),
    ("capacity of all rows together", "models/src/decoder/feed_forward.rs", "Capacity::of_rows(factor, [b, t], j, sizes.count)", "Capacity::of_rows(factor, [1, b * t], j, sizes.count)"),
    ("dropped counts of the wrong layer", "engine/src/scores.rs", "dropped.slice(0, at, at + 1)", "dropped.slice(0, 0, 1)"),
    ("any capacity will do", "engine/src/engine/config.rs", "!factor.is_finite() || factor <= 0.0", "factor <= 0.0"),
    ("dropped choices of the last update", "rl/src/report.rs", "reports.iter().map(|it| it.metrics[name]).sum();", "reports.iter().map(|it| it.metrics[name]).last().unwrap_or(0.0);"),
    ("routes of the prompt one token late", "rollout/src/answers.rs", "let end = (place + 1) * columns * per_token;", "let end = ((place + 1) * columns - 1) * per_token;"),
    ("routes of another prompt", "rollout/src/admission.rs", "self.read.push((request, device * self.most + at));", "self.read.push((request, device * self.most));"),
    ("routes of the first column", "rollout/src/answers.rs", "&ids[at * per_token..][..per_token]", "&ids[(at - at % 4) * per_token..][..per_token]"),
    ("routes are not replayed", "rl/src/answers.rs", "trajectory = trajectory.with_expert_ids(routes.per_token, &routes.experts);", "let _ = routes;"),
    ("replayed by the router", "nn/src/experts.rs", "Some(given) => given.ge(&given.scalar_like(0.0)).select(given, &chosen),", "Some(given) => given.lt(&given.scalar_like(-1.0)).select(given, &chosen),"),
]

mutants.main(
    __doc__,
    [mutants.replaced(what, "crates/" + file, before, after) for what, file, before, after in FAULTS],
    BUILD,
    TESTS,
)
