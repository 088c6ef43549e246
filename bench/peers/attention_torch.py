#!/usr/bin/env python3
"""PyTorch's attention on the work of `ferrotune bench attention`: with a mask, and document by document. Run by hand.

    bench/peers/attention_torch.py [--tokens 4096] [--heads 8] [--group 1] [--head-size 128] [--dtype f32|bf16] [--runs 5]
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as attention


def measure(call, runs):
    times = []
    for run in range(runs + 1):
        begun = time.perf_counter()
        call()
        if run:
            times.append(time.perf_counter() - begun)
    return round(1e3 * statistics.median(times), 2)


def both(forward, leaves):
    def call():
        for leaf in leaves:
            leaf.grad = None
        out = forward()
        out.backward(torch.ones_like(out) * 0.7)

    return call


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--group", type=int, default=1)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--documents", default="1,2,5,13,16")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--runs", type=int, default=5)
    a = parser.parse_args()
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    shape = (1, a.heads, a.tokens, a.head_size)
    leaves = [torch.randn(shape).to(dtype).requires_grad_() for _ in range(3)]
    q, k, v = leaves
    results = []
    for documents in map(int, a.documents.split(",")):
        token = torch.arange(a.tokens)
        document = token * documents // a.tokens
        mask = (document[:, None] == document[None, :]) & (token[:, None] >= token[None, :])
        starts = [int((document == d).nonzero()[0]) for d in range(documents)] + [a.tokens]

        def masked():
            return attention(q, k, v, attn_mask=mask)

        def separate():
            parts = zip(starts, starts[1:])
            return torch.cat([attention(q[:, :, i:j], k[:, :, i:j], v[:, :, i:j], is_causal=True) for i, j in parts], 2)

        result = {"documents": documents}
        for name, forward in [("masked", masked), ("per_document", separate)]:
            with torch.no_grad():
                result[f"{name}_forward_ms"] = measure(forward, a.runs)
            result[f"{name}_both_ms"] = measure(both(forward, leaves), a.runs)
        results.append(result)
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "dtype": a.dtype, "attention": results}))


if __name__ == "__main__":
    main()
