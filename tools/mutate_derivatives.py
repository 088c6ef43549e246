#!/usr/bin/env python3
"""Breaks the rules of differentiation, one place at a time, and counts how many broken copies the tests find.

    tools/mutate_derivatives.py [--only PATH_PART] [--every N] [--list]

Each copy differs from the original in one place of one rule: a sign, an operation, a constant, two operands exchanged, a
cotangent dropped. Survivors are listed: each needs a test, or a reason why it is no fault.
"""

import re

import mutants

RULES = ["crates/graph/src/ops", "crates/graph/src/control", "crates/graph/src/autodiff.rs"]
TEST = ["cargo", "test", "-q", "-p", "ferrotune-program", "--test", "language"]
SKIP = ["--", "--skip", "random_graphs", "--skip", "golden"]

# What a copy may change, as (pattern, replacement); applied to one match at a time.
CHANGES = [
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \* ", " / "),
    (r" / ", " * "),
    (r"-\(", "("),
    (r"(?<=[(,|] )-(?=[a-z&])", ""),
    (r"\(-(?=[a-z&])", "("),
    (r"(?<![\d.])0\.5(?!\d)", "1.0"),
    (r"(?<![\d.])2\.0(?!\d)", "1.0"),
    (r"(?<![\d.])1\.0(?!\d)", "2.0"),
    (r"(?<![\d.])3\.0(?!\d)", "1.0"),
    (r"\.cos\(\)", ".sin()"),
    (r"\.sin\(\)", ".cos()"),
    (r"\.gt\(", ".lt("),
    (r"\.lt\(", ".gt("),
    (r"\.ge\(", ".gt("),
    (r"\.reverse\([^()]*\)", ""),
    (r"\.transpose\([^()]*\)", ""),
    (r"\.stop_gradient\(\)", ""),
    (r"\.square\(\)", ""),
    (r"cx\.inputs\[0\]", "cx.inputs[1]"),
    (r"cx\.inputs\[1\]", "cx.inputs[0]"),
    (r"cx\.outputs\[0\]", "cx.inputs[0]"),
    (r"select\((\w+), (&\w+)\)", r"select(\2, \1)"),
    (r"select\((&\w+), (\w+)\)", r"select(\2, \1)"),
    (r"two\((.+?), (.+)\)(?=[;}])", r"two(\2, \1)"),
    (r"Some\((?![a-z]+\) =)([^()]|\([^()]*\))+\)(?=[,\]])", "None"),
    (r"self\.low", "self.high"),
    (r"self\.high", "self.low"),
    (r"!self\.reverse", "self.reverse"),
    (r"\.skip\(c\)", ""),
    (r"Kind::(Gather|ScatterSum) \{ dim: d \}", "Kind::Sum"),
    (r"(\w+)\.swap\((\w+), (\w+)\)", ""),
]


def rule_spans(text, path):
    """Byte ranges that hold rules: bodies of derivative functions, closures of the tables."""
    if path.endswith("autodiff.rs"):
        yield text.index("pub fn vjp"), len(text)
        return
    for match in re.finditer(r"fn (vjp|derivative|walk_back|spread|share|transposed|inverted|two)\b", text):
        depth, at = 0, text.index("{", match.end())
        start = at
        while True:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
        yield start, at
    for match in re.finditer(r"^    \w+ = \"[^\n]*\|([^|\n]*)\|(.*?);$", text, re.M | re.S):
        yield match.start(2), match.end(2)


def broken():
    files = []
    for rule in RULES:
        path = mutants.ROOT / rule
        files += [path] if path.is_file() else sorted(path.rglob("*.rs"))
    for path in files:
        text = path.read_text()
        tests = text.find("#[cfg(test)]")
        seen = set()
        for start, end in rule_spans(text, str(path)):
            for pattern, replacement in CHANGES:
                for match in re.compile(pattern).finditer(text, start, end):
                    if 0 <= tests < match.start():
                        continue
                    line = text[text.rfind("\n", 0, match.start()) + 1 : text.find("\n", match.start())]
                    if line.lstrip().startswith("//") or "//" in line[: match.start() - text.rfind("\n", 0, match.start())]:
                        continue
                    new = text[: match.start()] + match.expand(replacement) + text[match.end() :]
                    if new != text and new not in seen:
                        seen.add(new)
                        number = text.count("\n", 0, match.start()) + 1
                        name = str(path.relative_to(mutants.ROOT))
                        change = f"{match.group(0)!r} -> {match.expand(replacement)!r}"
                        yield mutants.Broken(f"{name}:{number}: {change}", name, new)


mutants.main(__doc__, broken(), TEST + ["--no-run"], [TEST + SKIP], goal=0.95)
