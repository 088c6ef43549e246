"""A training step with PyTorch, on the work of `ferrotune bench step`.

Usage: python bench/peers/step_torch.py [--dtype bf16|f32] [--rows N] [--width T] [--micro-batches N] ...

A Llama of SmolLM2-135M's shape with random f32 weights: cross-entropy of every next token, backward, clipping by the global
norm, fused AdamW; bf16 is autocast. Prints one JSON object for each type: tokens a second of the median step, and the most
memory that the process held. Each runs in a process of its own.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time


def measure(args):
    import torch
    import transformers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    net = LlamaForCausalLM(LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, rms_norm_eps=1e-5, rope_theta=100_000.0, tie_word_embeddings=True,
        max_position_embeddings=8192, use_cache=False,
    )).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    tokens = args.rows * args.width * args.micro_batches
    rows = torch.randint(0, 49_152, (args.micro_batches, args.rows, args.width))
    times = []
    for _ in range(args.steps + 1):
        begun = time.perf_counter()
        for batch in rows:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
                loss = net(input_ids=batch, labels=batch).loss / args.micro_batches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begun)
    print(json.dumps({
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}", "compute_dtype": args.dtype,
        "rows": args.rows, "width": args.width, "micro_batches": args.micro_batches,
        "tokens_per_second": round(tokens / statistics.median(times[1:]), 1),
        "peak_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["bf16", "f32"])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    if args.dtype:
        return measure(args)
    for dtype in ["bf16", "f32"]:
        subprocess.run([sys.executable, *sys.argv, "--dtype", dtype], check=True)


main()
