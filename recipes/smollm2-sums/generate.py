#!/usr/bin/env python3
"""Makes the data of smollm2-sums: every sum of two numbers of one digit.

    prompt  5 + 7
    answer  12

There are a hundred. Problems are held out in pairs, 5 + 7 with 7 + 5, so that no held-out sum is a
training sum turned round. Run it anywhere, with any Python from 3.9 on and nothing installed:

    python3 recipes/smollm2-sums/generate.py

The files land beside this script, and a second run writes the same bytes. The order of the
problems comes from SHA-256 and not from `random`, whose shuffle may change between versions.
"""

import hashlib
import itertools
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Pairs that are held out, of 55: 9 + 9 is the same turned round, so they are fewer problems than twice that.
HELD_OUT_PAIRS = 22


def order(problem):
    """A fixed, arbitrary sort key."""
    return hashlib.sha256(repr(problem).encode()).digest()


def write(name, pairs):
    problems = {turned for a, b in pairs for turned in ((a, b), (b, a))}
    lines = [
        json.dumps({"prompt": f"{a} + {b}", "answer": str(a + b)}) for a, b in sorted(problems, key=order)
    ]
    (HERE / name).write_text("".join(line + "\n" for line in lines))
    print(f"{name}: {len(lines)} problems")


def main():
    pairs = sorted(itertools.combinations_with_replacement(range(10), 2), key=order)
    write("heldout.jsonl", pairs[:HELD_OUT_PAIRS])
    write("train.jsonl", pairs[HELD_OUT_PAIRS:])


if __name__ == "__main__":
    main()
