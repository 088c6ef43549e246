#!/usr/bin/env python3
"""Kills (-9) a tiny run at random moments and goes on with it, until it ends as a run that nobody killed.

    tools/kill_runs.py [--kills 100] [--seed 0] [--binary PATH]

Each trial starts the quickstart's recipe with few steps and a checkpoint after every one, kills it at a random moment of its
life (saves included, which run beside the steps), perhaps again while it resumes, and lets it finish. Its metrics (but for
times) and its trained model must be those of an undisturbed run, bit for bit. Needs a recipe whose model is there: see --recipe.
"""

import argparse
import hashlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time


def command(arguments, run):
    return [arguments.binary, "train", arguments.recipe, *arguments.set, f"run.dir={run}", "checkpoint.every_steps=1"]


def left_by(run):
    """What must not depend on kills: metrics without times, and the weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("step_time", None)
        line.pop("checkpoint/copy_seconds", None)
    weights = (run / "model" / "model.safetensors").read_bytes()
    return lines, hashlib.sha256(weights).hexdigest()


def start(words):
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def kill_after(words, seconds):
    """Whether the run was killed before its end."""
    process = start(words)
    try:
        process.communicate(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--binary", default="target/release/ferrotune")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--set", action="append", default=[], help="key=value, may be given several times")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kill_runs_"))
    whole = folder / "whole"
    finish(command(arguments, whole))
    begun = time.time()
    shutil.rmtree(whole)
    finish(command(arguments, whole))
    life = time.time() - begun
    expected = left_by(whole)
    kills, half_written, trials = 0, 0, 0
    while kills < arguments.kills:
        trials += 1
        run = folder / f"trial-{trials}"
        words = command(arguments, run)
        while kills < arguments.kills and kill_after(words, chance.uniform(0.1, life)):
            kills += 1
            half_written += any((run / "checkpoints").glob("*.partial")) if (run / "checkpoints").is_dir() else 0
            if (run / "metrics.jsonl").is_file():
                words = [*command(arguments, run), "--resume"]
            if chance.random() < 0.5:
                break
        done = run / "model"
        if not done.is_dir() or words[-1] == "--resume":
            finish(words)
        if left_by(run) != expected:
            sys.exit(f"after {kills} kills {run} differs from {whole}")
        shutil.rmtree(run)
        print(f"{kills} kills, {half_written} of them in a save; trial {trials} is bit-identical", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
