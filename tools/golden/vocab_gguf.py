#!/usr/bin/env python3
"""Writes GGUF files with a tokenizer and no model, for tests; uses the standard library only.

  vocab_gguf.py spm TOKENIZER.model OUT.gguf       SentencePiece, kind llama
  vocab_gguf.py bpe FOLDER PRE OUT.gguf            tokenizer.json, kind gpt2
  vocab_gguf.py scores FOLDER OUT.gguf             tokenizer.json with merges like SentencePiece's, kind llama
"""
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hf_to_gguf import BOOL, F32, I32, STRING, U32, pair, tokenizer_pairs, write  # noqa: E402

SIZES = [("general.architecture", STRING, "llama")] + [("llama." + k, U32, v) for k, v in (
    ("block_count", 1), ("context_length", 512), ("embedding_length", 8), ("feed_forward_length", 8),
    ("attention.head_count", 2), ("rope.dimension_count", 4))] + [("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)]


def varint(data, at):
    n = shift = 0
    while True:
        b = data[at]
        at += 1
        n |= (b & 127) << shift
        shift += 7
        if b < 128:
            return n, at


def fields(data):
    """Yields (number, value) for each field of a protobuf message: ints, floats as bytes, and
    bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 5:
            value, at = data[at : at + 4], at + 4
        else:
            n, at = varint(data, at)
            value, at = data[at : at + n], at + n
        yield key >> 3, value


def save(out, pairs):
    write(pathlib.Path(out), [pair(k, kind, v) for k, kind, v in SIZES + pairs], [])


def llama(tokens, scores, types, out, bos=1, eos=2):
    save(out, [("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", STRING, tokens),
               ("tokenizer.ggml.scores", F32, scores), ("tokenizer.ggml.token_type", I32, types),
               ("tokenizer.ggml.bos_token_id", U32, bos), ("tokenizer.ggml.eos_token_id", U32, eos),
               ("tokenizer.ggml.unknown_token_id", U32, 0)])


def spm(model, out):
    tokens, scores, types = [], [], []
    for number, piece in fields(open(model, "rb").read()):
        if number != 1:
            continue
        got = dict(fields(piece))
        tokens.append(got[1].decode())
        scores.append(struct.unpack("<f", got.get(2, b"\0\0\0\0"))[0])
        types.append(got.get(3, 1))
    llama(tokens, scores, types, out)


def bpe(folder, pre, out):
    folder = pathlib.Path(folder)
    t = json.load(open(folder / "tokenizer.json", encoding="utf-8"))
    n = 1 + max([*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])])
    save(out, list(tokenizer_pairs(folder, n, pre)))


def scores(folder, out):
    """Writes a vocabulary with scores. A token's score is minus the rank of the first merge that
    makes the token."""
    t = json.load(open(pathlib.Path(folder) / "tokenizer.json", encoding="utf-8"))
    vocab = t["model"]["vocab"]
    n = 1 + max([*vocab.values(), *(a["id"] for a in t["added_tokens"])])
    tokens, types, worth = [f"[PAD{i}]" for i in range(n)], [5] * n, [-1e6] * n
    for s, i in vocab.items():
        tokens[i], types[i] = s, 6 if len(s) == 6 and s.startswith("<0x") else 1
    for rank, m in enumerate(t["model"]["merges"]):
        i = vocab["".join(m.split(" ") if isinstance(m, str) else m)]
        worth[i] = max(worth[i], -float(rank))
    for a in t["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], (2 if a["content"] == "<unk>" else 3) if a["special"] else 4
    llama(tokens, worth, types, out)


if __name__ == "__main__":
    {"spm": spm, "bpe": bpe, "scores": scores}[sys.argv[1]](*sys.argv[2:])
