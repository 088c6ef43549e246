#!/usr/bin/env python3
"""Makes the quickstart's data, tokenizer and model configuration.

The task: put the digits of a number in ascending order.

    prompt  sort 58213 =
    answer  12358

All digits of a number differ. The demonstrations have three or four digits; the training and the
held-out problems have six to nine, so a model that has learned the demonstrations by heart
knows what is asked and must still find out, by trying, how to sort what is longer. The problems
of one length are cut from one sequence without repeats, so no prompt is in two files.

Run it anywhere, with any Python from 3.9 on and nothing installed:

    python3 recipes/quickstart/generate.py

The files land beside this script, and a second run writes the same bytes. The order of the
problems comes from SHA-256 and not from `random`, whose shuffle may change between versions.
"""

import hashlib
import itertools
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent

# How many problems each file has of each number of digits.
DEMONSTRATIONS = {3: 20, 4: 40}
HELD_OUT = {6: 75, 7: 75, 8: 75, 9: 75}
TRAIN = {6: 1000, 7: 1000, 8: 1000, 9: 1000}

# The tokenizer is byte-level BPE, cut up as Qwen cuts text: words, single digits, punctuation.
# 256 byte tokens cover any text; the merges make the few strings of the task one token each.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
MERGES = (("s", "o"), ("r", "t"), ("so", "rt"), ("Ġ", "="))
END_OF_TURN, PADDING = "<|im_end|>", "<|pad|>"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", END_OF_TURN, PADDING)
MAX_POSITIONS = 512


def order(text):
    """A fixed, arbitrary sort key."""
    return hashlib.sha256(text.encode()).digest()


def problem(digits):
    return {"prompt": f"sort {digits} =", "answer": "".join(sorted(digits))}


def numbers(length):
    """Numbers of that many different digits, in a fixed arbitrary order, none of them twice."""
    seen = set()
    for index in itertools.count():
        shuffled = sorted("0123456789", key=lambda digit: order(f"{length}/{index}/{digit}"))
        digits = "".join(shuffled[:length])
        if digits not in seen:
            seen.add(digits)
            yield digits


def split_problems():
    """The three lists, each in a fixed shuffled order; no problem is in two."""
    lengths = sorted({*DEMONSTRATIONS, *HELD_OUT, *TRAIN})
    supply = {length: numbers(length) for length in lengths}

    def take(counts):
        return [
            digits
            for length, count in counts.items()
            for digits in itertools.islice(supply[length], count)
        ]

    parts = [take(counts) for counts in (HELD_OUT, DEMONSTRATIONS, TRAIN)]
    assert len(set().union(*parts)) == sum(map(len, parts)), "a problem is in two files"
    return [[problem(digits) for digits in sorted(part, key=order)] for part in parts]


def byte_characters():
    """The printable character that byte-level BPE writes for each byte, byte order as in GPT-2."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(len(others))]


def vocabulary():
    tokens = byte_characters() + [left + right for left, right in MERGES]
    return {token: index for index, token in enumerate(tokens)}


def added_tokens(first):
    return {
        first + i: {
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, content in enumerate(SPECIAL_TOKENS)
    }


def tokenizer():
    vocab = vocabulary()
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **t} for i, t in added_tokens(len(vocab)).items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": SPLIT_PATTERN},
                    "behavior": "Isolated",
                    "invert": False,
                },
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [list(pair) for pair in MERGES],
        },
    }


def tokenizer_config():
    tokens = added_tokens(len(vocabulary()))
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): t for i, t in tokens.items()},
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "model_max_length": MAX_POSITIONS,
        "pad_token": PADDING,
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def model_config():
    layers = 3
    first_special = len(vocabulary())
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": first_special + SPECIAL_TOKENS.index(END_OF_TURN),
        "head_dim": 48,
        "hidden_act": "silu",
        "hidden_size": 192,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": MAX_POSITIONS,
        "max_window_layers": layers,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "pad_token_id": first_special + SPECIAL_TOKENS.index(PADDING),
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "transformers_version": "5.24.0",
        "use_cache": True,
        "use_sliding_window": False,
        # 264: every id that the model can sample is a token, and devices can share the rows evenly.
        "vocab_size": first_special + len(SPECIAL_TOKENS),
    }


def generation_config():
    config = model_config()
    return {
        "_from_model_config": True,
        "eos_token_id": config["eos_token_id"],
        "pad_token_id": config["pad_token_id"],
        "transformers_version": config["transformers_version"],
    }


def write_lines(name, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (HERE / name).write_bytes(text.encode())


def write_json(name, value):
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    (HERE / "model" / name).write_bytes(text.encode())


def main():
    (HERE / "model").mkdir(exist_ok=True)
    held_out, demonstrations, train = split_problems()
    write_lines("heldout.jsonl", held_out)
    write_lines("demonstrations.jsonl", demonstrations)
    write_lines("train.jsonl", train)
    write_json("tokenizer.json", tokenizer())
    write_json("tokenizer_config.json", tokenizer_config())
    write_json("config.json", model_config())
    write_json("generation_config.json", generation_config())


if __name__ == "__main__":
    main()
