"""The log-prob head in PyTorch, three ways: plain, chunks with checkpointing, one pass written by hand.

Usage: python bench/peers/head_torch.py [--way plain|checkpoint|one_pass] [--dtype bf16|f32] [--tokens N] ...

Cross-entropy of random hidden states with gradients by hidden states and weights (the latter in f32), as
`ferrotune bench head` measures it. Prints one JSON object: median and fastest seconds, and the memory that the process took
beyond what the inputs take. Run each way in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WAYS = ["plain", "checkpoint", "one_pass"]


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) // 1024


def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def plain(torch, x, w, targets, _):
    logits = (x @ w).float()
    return torch.nn.functional.cross_entropy(logits, targets)


def checkpoint(torch, x, w, targets, chunk):
    from torch.utils.checkpoint import checkpoint as again

    def part(x, targets):
        return torch.nn.functional.cross_entropy((x @ w).float(), targets, reduction="sum")

    cuts = range(0, len(x), chunk)
    parts = [again(part, x[i:i + chunk], targets[i:i + chunk], use_reentrant=False) for i in cuts]
    return sum(parts) / len(x)


def one_pass(torch, x, w, targets, chunk):
    """Loss, dx and dw; nothing is recorded."""
    loss, dx = 0.0, torch.empty_like(x)
    dw = torch.zeros(w.shape, dtype=torch.float32)
    with torch.no_grad():
        for i in range(0, len(x), chunk):
            part, own = x[i:i + chunk], targets[i:i + chunk, None]
            z = (part @ w).float()
            peak = z.amax(1, keepdim=True)
            target = z.gather(1, own) - peak
            z.sub_(peak).exp_()
            total = z.sum(1, keepdim=True)
            loss += (total.log() - target).sum().item()
            z.div_(total)
            z.scatter_add_(1, own, torch.full_like(target, -1.0))
            dz = z.div_(len(x)).to(x.dtype)
            del z
            dx[i:i + chunk] = dz @ w.T
            if w.dtype == torch.float32:
                dw.addmm_(part.T, dz)
            else:
                dw += part.T @ dz
    return loss / len(x), dx, dw


def measure(args):
    import torch

    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    x = (torch.rand(args.tokens, args.width) * 2 - 1).to(dtype)
    w = ((torch.rand(args.width, args.vocab) * 2 - 1) * 0.05).to(dtype)
    targets = torch.arange(args.tokens) * 7919 % args.vocab
    if args.way != "one_pass":
        x.requires_grad_()
        w.requires_grad_()
    before = resident("VmRSS")
    forget_peak()
    times = []
    for _ in range(args.runs + 1):
        begun = time.perf_counter()
        if args.way == "one_pass":
            loss, *gradients = one_pass(torch, x, w, targets, args.chunk)
        else:
            function = plain if args.way == "plain" else checkpoint
            value = function(torch, x, w, targets, args.chunk)
            gradients = list(torch.autograd.grad(value, [x, w]))
            gradients[1] = gradients[1].float()
            loss = value.item()
        times.append(time.perf_counter() - begun)
        del gradients
    print(json.dumps({
        "peer": "torch " + torch.__version__, "way": args.way, "dtype": args.dtype, "tokens": args.tokens,
        "width": args.width, "vocab": args.vocab, "chunk": args.chunk,
        "seconds": round(statistics.median(times[1:]), 3), "fastest_seconds": round(min(times[1:]), 3),
        "extra_mib": resident("VmHWM") - before, "loss": loss,
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    if args.way:
        return measure(args)
    for way in WAYS:
        subprocess.run([sys.executable, *sys.argv, "--way", way], check=True)


main()
