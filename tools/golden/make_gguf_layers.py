#!/usr/bin/env python3
"""Writes tiny random llamas, whose layers have matrices of different types as in llama.cpp's
Q4_K_M, into tests/model/golden/gguf, quantised by llama.cpp: layers.gguf (Q4_1, Q8_0) and six.gguf
(Q4_K, Q6_K; the head is the embedding table).

  make_gguf_layers.py LLAMA_DIR     (the result of tools/compare_llama/build.sh; needs numpy and gguf)
"""
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "model" / "golden" / "gguf"
LLAMA = pathlib.Path(sys.argv[1])
VOCAB = 64


def layers_type(name, i):
    """Returns the type of a tensor of layers.gguf. In the first and the last of 4 layers W_v and
    W_down have 8 bits. In the others they have 4.
    """
    if name in ("attn_v", "ffn_down") and i in (0, 3):
        return "q8_0"
    return "q4_0" if name in ("attn_output", "token_embd") else "q8_0" if name == "output" else "q4_1"


def six_type(name, i):
    """Returns the type of a tensor of six.gguf. In layer 0 W_k has 6 bits, and shares a matrix with
    W_v. In layer 1 W_k has 4 bits."""
    six = name in ("attn_v", "token_embd") or i == 0 and name in ("attn_k", "ffn_down")
    return "q6_k" if six else "q4_k"


def make(file, D, KV, FFN, n_layers, tied, type_of, rest):
    rng = np.random.default_rng(8)

    def matrix(rows, cols):
        return (1.4 * rng.standard_normal((rows, cols)) / cols**0.5).astype(np.float32)

    with tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp) / "a.gguf"
        w = gguf.GGUFWriter(source, "llama")
        for add, v in ((w.add_block_count, n_layers), (w.add_context_length, 256), (w.add_embedding_length, D),
                       (w.add_feed_forward_length, FFN), (w.add_head_count, 4), (w.add_head_count_kv, 2),
                       (w.add_rope_dimension_count, D // 4), (w.add_rope_freq_base, 1e4),
                       (w.add_layer_norm_rms_eps, 1e-5), (w.add_vocab_size, VOCAB)):
            add(v)
        w.add_tokenizer_model("no_vocab")
        types = []
        for name in ("token_embd",) if tied else ("token_embd", "output"):
            w.add_tensor(f"{name}.weight", matrix(VOCAB, D))
            types.append(f"{name}={type_of(name, -1)}")
        w.add_tensor("output_norm.weight", (1 + 0.2 * rng.standard_normal(D)).astype(np.float32))
        for i in range(n_layers):
            for name, rows, cols in (("attn_q", D, D), ("attn_k", KV, D), ("attn_v", KV, D), ("attn_output", D, D),
                                     ("ffn_gate", FFN, D), ("ffn_up", FFN, D), ("ffn_down", D, FFN)):
                w.add_tensor(f"blk.{i}.{name}.weight", matrix(rows, cols))
                types.append(f"blk.{i}.{name}={type_of(name, i)}")
            for name in ("attn_norm", "ffn_norm"):
                w.add_tensor(f"blk.{i}.{name}.weight", (1 + 0.2 * rng.standard_normal(D)).astype(np.float32))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        words = [x for t in types for x in ("--tensor-type", t)]
        subprocess.run([str(LLAMA / "build" / "bin" / "llama-quantize"), *words, str(source), str(OUT / file), rest, "1"],
                       check=True, capture_output=True)
        print({t.name: t.tensor_type.name for t in gguf.GGUFReader(OUT / file).tensors})


make("layers.gguf", 64, 32, 96, 4, False, layers_type, "q4_1")
make("six.gguf", 256, 128, 256, 2, True, six_type, "q4_k_m")
