#!/usr/bin/env python3
"""Breaks the rules of differentiation, one place at a time, and counts how many broken copies the tests find.

    tools/mutate_derivatives.py [--only PATH_PART] [--every N] [--offset K] [--list]

Works on a copy of the repository in target/mutants, so that the tree is never touched. Each copy differs from the
original in one place of one rule: a sign, an operation, a constant, two operands exchanged, a cotangent dropped. A copy
that does not compile does not count. Survivors are listed: each needs a test, or a reason why it is no fault.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutants"
RULES = ["crates/graph/src/ops", "crates/graph/src/control", "crates/graph/src/autodiff.rs"]
TEST = ["cargo", "test", "-q", "-p", "ferrotune-program", "--test", "language"]
SKIP = ["--", "--skip", "random_graphs", "--skip", "golden"]
LIMIT_SECONDS = 900  # a copy may loop for ever

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


def mutants():
    files = []
    for rule in RULES:
        path = ROOT / rule
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
                        yield path.relative_to(ROOT), number, match.group(0), match.expand(replacement), new


def prepare():
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ["Cargo.toml", "Cargo.lock", "crates", "docs", "tests"]:
        source, to = ROOT / name, COPY / name
        if source.is_dir():
            # Not with the times of the originals: cargo would take a broken copy's build for theirs.
            shutil.copytree(source, to, dirs_exist_ok=True, copy_function=shutil.copyfile)
        elif source.is_file():
            shutil.copyfile(source, to)


def run(arguments):
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(COPY / "target"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "RUST_BACKTRACE": "0",
    }
    try:
        done = subprocess.run(arguments, cwd=COPY, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return 1, "took too long"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--every", type=int, default=1, help="only every Nth copy")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="list the copies and stop")
    arguments = parser.parse_args()
    chosen = [m for m in mutants() if arguments.only in str(m[0])][arguments.offset :: arguments.every]
    if arguments.list:
        for path, line, before, after, _ in chosen:
            print(f"{path}:{line}: {before!r} -> {after!r}")
        print(f"{len(chosen)} copies")
        return 0
    prepare()
    code, output = run(TEST + SKIP)
    if code:
        sys.exit("the tests fail before anything is broken:\n" + output[-2000:])
    died, survived, unviable, began = 0, [], 0, time.time()
    for count, (path, line, before, after, text) in enumerate(chosen, 1):
        where = f"{path}:{line}: {before!r} -> {after!r}"
        original = (COPY / path).read_text()
        (COPY / path).write_text(text)
        compiled, _ = run(TEST + ["--no-run"])
        if compiled:
            unviable, verdict = unviable + 1, "does not compile"
        elif run(TEST + SKIP)[0]:
            died, verdict = died + 1, "found"
        else:
            survived.append(where)
            verdict = "SURVIVED"
        (COPY / path).write_text(original)
        print(f"[{count}/{len(chosen)} {time.time() - began:.0f} s] {verdict}: {where}", flush=True)
    viable = died + len(survived)
    print(f"\n{died} of {viable} broken copies were found ({100 * died / max(viable, 1):.1f}%), {unviable} did not compile")
    for where in survived:
        print(f"survived: {where}")
    return 0 if died >= 0.95 * viable else 1


if __name__ == "__main__":
    sys.exit(main())
