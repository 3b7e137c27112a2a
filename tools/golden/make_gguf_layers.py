#!/usr/bin/env python3
"""Writes tests/model/golden/gguf/layers.gguf: a tiny random llama whose layers have matrices of different types, as
llama.cpp's Q4_K_M has them, quantised by llama.cpp.

    make_gguf_layers.py LLAMA_DIR     (what tools/compare_llama/build.sh built; needs numpy and gguf)"""
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "model" / "golden" / "gguf" / "layers.gguf"
LLAMA = pathlib.Path(sys.argv[1])
D, KV, FFN, VOCAB, LAYERS = 64, 32, 96, 64, 4
# The first and the last layer have 8 bits where the others have 4.
MORE = {"attn_v", "ffn_down"}
rng = np.random.default_rng(8)


def matrix(rows, cols):
    return (1.4 * rng.standard_normal((rows, cols)) / cols**0.5).astype(np.float32)


with tempfile.TemporaryDirectory() as tmp:
    source = pathlib.Path(tmp) / "a.gguf"
    w = gguf.GGUFWriter(source, "llama")
    for add, v in ((w.add_block_count, LAYERS), (w.add_context_length, 128), (w.add_embedding_length, D),
                   (w.add_feed_forward_length, FFN), (w.add_head_count, 4), (w.add_head_count_kv, 2),
                   (w.add_rope_dimension_count, 16), (w.add_rope_freq_base, 1e4), (w.add_layer_norm_rms_eps, 1e-5),
                   (w.add_vocab_size, VOCAB)):
        add(v)
    w.add_tokenizer_model("no_vocab")
    w.add_tensor("token_embd.weight", matrix(VOCAB, D))
    w.add_tensor("output.weight", matrix(VOCAB, D))
    w.add_tensor("output_norm.weight", (1 + 0.2 * rng.standard_normal(D)).astype(np.float32))
    types = ["token_embd=q4_0", "output=q8_0"]
    for i in range(LAYERS):
        for name, rows, cols in (("attn_q", D, D), ("attn_k", KV, D), ("attn_v", KV, D), ("attn_output", D, D),
                                 ("ffn_gate", FFN, D), ("ffn_up", FFN, D), ("ffn_down", D, FFN)):
            w.add_tensor(f"blk.{i}.{name}.weight", matrix(rows, cols))
            more = name in MORE and i in (0, LAYERS - 1)
            types.append(f"blk.{i}.{name}={'q8_0' if more else 'q4_0' if name == 'attn_output' else 'q4_1'}")
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{name}.weight", (1 + 0.2 * rng.standard_normal(D)).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    words = [x for t in types for x in ("--tensor-type", t)]
    subprocess.run([str(LLAMA / "build" / "bin" / "llama-quantize"), *words, str(source), str(OUT), "q4_1", "1"], check=True,
                   capture_output=True)
    print({t.name: t.tensor_type.name for t in gguf.GGUFReader(OUT).tensors})
