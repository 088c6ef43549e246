"""The log-prob head in JAX: plain, and chunks with rematerialisation.

Usage: python bench/peers/head_jax.py [--way plain|checkpoint] [--dtype bf16|f32] [--tokens N] ...

The same problem and the same output as `head_torch.py`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

WAYS = ["plain", "checkpoint"]


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) // 1024


def measure(args):
    import jax
    import jax.numpy as jnp

    dtype = jnp.bfloat16 if args.dtype == "bf16" else jnp.float32
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.uniform(keys[0], (args.tokens, args.width), dtype, -1, 1)
    w = jax.random.uniform(keys[1], (args.width, args.vocab), dtype, -0.05, 0.05)
    targets = jnp.arange(args.tokens) * 7919 % args.vocab

    def logprobs(x, w, targets):
        z = jnp.matmul(x, w.astype(x.dtype), preferred_element_type=jnp.float32)
        picked = jnp.take_along_axis(z, targets[:, None], 1)[:, 0]
        return picked - jax.nn.logsumexp(z, axis=1)

    def loss(x, w, targets):
        if args.way == "plain":
            return -logprobs(x, w, targets).mean()
        cut = lambda t: t.reshape(-1, args.chunk, *t.shape[1:])
        part = jax.checkpoint(lambda parts: logprobs(parts[0], w, parts[1]))
        return -jax.lax.map(part, (cut(x), cut(targets))).mean()

    def step(x, w, targets):
        # The weights' gradient in f32, as a master copy would get it.
        return jax.value_and_grad(loss, (0, 1))(x, w.astype(jnp.float32), targets)

    compiled = jax.jit(step).lower(x, w, targets).compile()
    jax.block_until_ready((x, w, targets))
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    times = []
    for _ in range(args.runs + 1):
        begun = time.perf_counter()
        value, gradients = jax.block_until_ready(compiled(x, w, targets))
        times.append(time.perf_counter() - begun)
        del gradients
    print(json.dumps({
        "peer": "jax " + jax.__version__, "way": args.way, "dtype": args.dtype, "tokens": args.tokens,
        "width": args.width, "vocab": args.vocab, "chunk": args.chunk,
        "seconds": round(statistics.median(times[1:]), 3), "fastest_seconds": round(min(times[1:]), 3),
        "extra_mib": resident("VmHWM") - before, "loss": float(value),
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    if args.way:
        return measure(args)
    for way in WAYS:
        subprocess.run([sys.executable, *sys.argv, "--way", way], check=True)


main()
