#!/usr/bin/env python3
"""Kills (-9) a small run at random moments and goes on with it, until it ends as a run that nobody killed; then damages checkpoints.

    tools/kill_runs.py [--kills 100] [--damages 200] [--seed 0] [--binary PATH] [--recipe PATH] [--set key=value ...]

Each trial starts the recipe with a checkpoint after every step, kills it, perhaps again while it resumes, and lets it finish. Half
of the kills come at a random moment of the run's life, the other half when a checkpoint is being written. Its metrics (but for
times) and its trained model must be those of an undisturbed run, bit for bit. After that, one bit of a random byte of a random
file of a checkpoint is turned over, again and again, and each time the file must be named.
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL = """
    warmup.steps=4 warmup.batch_size=8 warmup.lr_warmup_steps=1 rl.steps=3 rl.prompts_per_step=2 rl.group_size=4 rl.lr_warmup_steps=1
    eval.every_steps=0
""".split()
BETWEEN_LOOKS = 0.0005


def command(arguments, run):
    settings = arguments.set or SMALL
    return [arguments.binary, "train", arguments.recipe, *settings, f"run.dir={run}", "checkpoint.every_steps=1"]


def left_by(run):
    """What must not depend on kills: metrics without times, and the weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("step_time", None)
        line.pop("checkpoint/copy_seconds", None)
    weights = (run / "model" / "model.safetensors").read_bytes()
    return lines, hashlib.sha256(weights).hexdigest()


def start(words):
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish(words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def half_written(run):
    """The names of checkpoints that are being written."""
    return {it.name for it in (run / "checkpoints").glob("*.partial")}


def until_a_save(process, run, chance):
    """Waits for one of the next checkpoints to be begun, and for a part of the time that one takes."""
    saves, before = chance.randint(1, 4), set()
    while process.poll() is None:
        now = half_written(run)
        saves -= len(now - before)
        if saves <= 0:
            time.sleep(chance.uniform(0, 0.03))
            return
        before = now
        time.sleep(BETWEEN_LOOKS)


def kill(words, run, life, chance):
    """Whether the run was killed before its end."""
    process = start(words)
    if chance.random() < 0.5:
        until_a_save(process, run, chance)
    else:
        try:
            process.wait(timeout=chance.uniform(0.05, life))
        except subprocess.TimeoutExpired:
            pass
    if process.poll() is not None:
        return False
    process.kill()
    process.wait()
    return True


def killed(arguments, folder, chance):
    whole = folder / "whole"
    finish(command(arguments, whole))  # compiles
    shutil.rmtree(whole)
    begun = time.time()
    finish(command(arguments, whole))
    life = time.time() - begun
    expected = left_by(whole)
    kills, in_saves, trials = 0, 0, 0
    while kills < arguments.kills:
        trials += 1
        run = folder / f"trial-{trials}"
        words = command(arguments, run)
        while kills < arguments.kills and kill(words, run, life, chance):
            kills += 1
            in_saves += bool(half_written(run))
            words = command(arguments, run)
            if (run / "metrics.jsonl").is_file():
                words.append("--resume")
            if chance.random() < 0.3:
                finish(words)
                break
        else:
            if not (run / "model" / "model.safetensors").is_file():
                finish(words)
        if left_by(run) != expected:
            sys.exit(f"after {kills} kills {run} differs from {whole}")
        shutil.rmtree(run)
        print(f"{kills} kills, {in_saves} of them in a save; trial {trials} is bit-identical", flush=True)
    print(f"{kills} kills, {in_saves} in a save: all {trials} runs ended as one that nobody killed")


def damaged(arguments, checkpoint, chance):
    files = sorted(it for it in checkpoint.iterdir() if it.is_file())
    verify = [arguments.binary, "checkpoint", "verify", str(checkpoint)]
    finish(verify)
    for _ in range(arguments.damages):
        path = chance.choice(files)
        good = path.read_bytes()
        at, bit = chance.randrange(len(good)), chance.randrange(8)
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :])
        done = subprocess.run(verify, capture_output=True, text=True)
        if done.returncode == 0 or path.name not in done.stdout + done.stderr:
            sys.exit(f"bit {bit} of byte {at} of {path.name}: {done.returncode}\n{done.stdout}{done.stderr}")
        path.write_bytes(good)
    finish(verify)
    print(f"{arguments.damages} damages of {', '.join(it.name for it in files)}: the file was named each time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "ferrotune")
    parser.add_argument("--recipe", default=ROOT / "recipes" / "quickstart.toml")
    parser.add_argument("--set", action="append", default=[], help="in the place of the few small steps; may be given several times")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kill_runs_"))
    killed(arguments, folder, chance)
    last = max((folder / "whole" / "checkpoints").glob("step-*"), key=lambda it: int(it.name.split("-")[1]))
    damaged(arguments, last, chance)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
