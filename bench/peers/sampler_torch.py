"""Generation with transformers on random weights, as `ferrotune bench sampler` measures it.

Usage: python bench/peers/sampler_torch.py [--dtype bf16|f32] [--batch N] [--sample] ...

A Llama of SmolLM2-135M's shape continues prompts of 64 tokens by 64 tokens with `generate`. Prints one JSON object for each
type and number of rows: tokens a second, of the median run and of the fastest. Each runs in a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time


def model(torch, dtype):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, rms_norm_eps=1e-5, rope_theta=100_000.0, tie_word_embeddings=True,
        max_position_embeddings=8192, initializer_range=0.04,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def measure(args):
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    net = model(torch, torch.bfloat16 if args.dtype == "bf16" else torch.float32)
    rows = [[(i * 7919 + row * 104_729) % 49_152 for i in range(args.prompt)] for row in range(args.batch)]
    prompts = torch.tensor(rows)
    settings = dict(
        attention_mask=torch.ones_like(prompts), do_sample=args.sample, min_new_tokens=args.new_tokens,
        max_new_tokens=args.new_tokens, pad_token_id=0, **({"top_k": 0} if args.sample else {}),
    )
    times = []
    with torch.inference_mode():
        for _ in range(args.runs + 1):
            begun = time.perf_counter()
            found = net.generate(prompts, **settings)
            times.append(time.perf_counter() - begun)
            assert found.shape == (args.batch, args.prompt + args.new_tokens)
    tokens = args.batch * args.new_tokens
    print(json.dumps({
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}", "compute_dtype": args.dtype,
        "batch": args.batch, "prompt_tokens": args.prompt, "new_tokens": args.new_tokens, "sample": args.sample,
        "tokens_per_second": round(tokens / statistics.median(times[1:]), 1),
        "fastest_tokens_per_second": round(tokens / min(times[1:]), 1),
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["bf16", "f32"])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    if args.dtype and args.batch:
        return measure(args)
    for dtype in [args.dtype] if args.dtype else ["bf16", "f32"]:
        for batch in [args.batch] if args.batch else [1, 8, 32]:
            flags = ["--dtype", dtype, "--batch", str(batch)]
            subprocess.run([sys.executable, *sys.argv, *flags], check=True)


main()
