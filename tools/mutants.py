"""Runs the tests on broken copies of the sources and counts how many they find: what the `mutate_*.py` beside it share.

The work is done on a copy of the repository in target/mutants, so that the tree is never touched. A broken copy that does
not compile says nothing of the tests and does not count. One that runs out of time has looped for ever and counts as found.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutants"
LIMIT_SECONDS = 900
FIRST_SECONDS = 3600  # the dependencies are built once


@dataclasses.dataclass
class Broken:
    """One broken copy: what is wrong with it, the file, and its text."""

    what: str
    path: str
    text: str


def replaced(what, path, before, after):
    """The copy in which `after` stands for `before`, which must stand in the file exactly once."""
    text = (ROOT / path).read_text()
    if text.count(before) != 1:
        sys.exit(f"{what}: its place is {text.count(before)} times in {path}; mend the list")
    return Broken(f"{path}: {what}", path, text.replace(before, after))


def prepare():
    COPY.mkdir(parents=True, exist_ok=True)
    for name in ["Cargo.toml", "Cargo.lock", "crates", "docs", "tests"]:
        source, to = ROOT / name, COPY / name
        if source.is_dir():
            shutil.rmtree(to, ignore_errors=True)
            # Not with the times of the originals: cargo would take a broken copy's build for theirs.
            shutil.copytree(source, to, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, to)


def run(command, limit=LIMIT_SECONDS):
    """The exit code, and what was printed."""
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(COPY / "target"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "PROPTEST_MAX_SHRINK_ITERS": "0",
        "PROPTEST_FAILURE_PERSISTENCE": "off",
        "RUST_BACKTRACE": "0",
    }
    try:
        done = subprocess.run(command, cwd=COPY, env=environment, capture_output=True, text=True, timeout=limit)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return 1, "took too long"


def main(description, broken, build, tests, goal=1.0):
    """Goes over the `broken` copies: compiles each with `build`, then runs the commands `tests` until one fails."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--only", default="", help="only copies whose description contains this")
    parser.add_argument("--every", type=int, default=1, help="only every Nth copy")
    parser.add_argument("--list", action="store_true", help="list the copies and stop")
    arguments = parser.parse_args()
    chosen = [b for b in broken if arguments.only in b.what][:: arguments.every]
    if arguments.list:
        for copy in chosen:
            print(copy.what)
        print(f"{len(chosen)} copies")
        sys.exit(0)
    prepare()
    for command in [build, *tests]:
        code, output = run(command, FIRST_SECONDS)
        if code:
            sys.exit("the tests fail before anything is broken:\n" + output[-2000:])
    found, survived, unviable, began = 0, [], 0, time.time()
    for count, copy in enumerate(chosen, 1):
        path = COPY / copy.path
        original = path.read_text()
        path.write_text(copy.text)
        if run(build)[0]:
            unviable, verdict = unviable + 1, "does not compile"
        elif any(run(command)[0] for command in tests):
            found, verdict = found + 1, "found"
        else:
            survived.append(copy.what)
            verdict = "SURVIVED"
        path.write_text(original)
        print(f"[{count}/{len(chosen)} {time.time() - began:.0f} s] {verdict}: {copy.what}", flush=True)
    viable = found + len(survived)
    print(f"\n{found} of {viable} broken copies were found ({100 * found / max(viable, 1):.1f}%), {unviable} did not compile")
    for what in survived:
        print(f"survived: {what}")
    sys.exit(0 if found >= goal * viable else 1)
