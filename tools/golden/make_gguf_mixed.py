#!/usr/bin/env python3
"""Writes two tiny random llamas, quantised by llama.cpp, into tests/model/golden/gguf, and the
logits that llama.cpp computes from their dequantised values. The matrices of mixed.gguf have nine
types; those of bf16.gguf are BF16.

  make_gguf_mixed.py LLAMA_DIR     (the result of tools/compare_llama/build.sh; needs numpy and gguf)

mixed.json and bf16.json have ids, and the logits of positions 35..68 that llama.cpp computes from
the file requantised to F32, with K and V in f32."""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "model" / "golden" / "gguf"
LLAMA = pathlib.Path(sys.argv[1])
VOCAB, N = 64, 70
TYPES = {"token_embd": "q8_0", "attn_q": "q4_k", "attn_k": "q5_k", "attn_v": "q6_k", "attn_output": "q4_0",
         "ffn_gate": "q4_1", "ffn_up": "q5_0", "ffn_down": "q5_1", "output": "f16"}
rng = np.random.default_rng(7)


def matrix(rows, cols):
    return (1.4 * rng.standard_normal((rows, cols)) / cols**0.5).astype(np.float32)



def make(tmp, name, types, D, KV, FFN):
    source, f32, ids_file, logits_file = (pathlib.Path(tmp) / n for n in ("a.gguf", "f32.gguf", "ids", "logits"))
    w = gguf.GGUFWriter(source, "llama")
    for add, v in ((w.add_block_count, 1), (w.add_context_length, 128), (w.add_embedding_length, D),
                   (w.add_feed_forward_length, FFN), (w.add_head_count, 4), (w.add_head_count_kv, 2),
                   (w.add_rope_dimension_count, D // 4), (w.add_rope_freq_base, 1e4), (w.add_layer_norm_rms_eps, 1e-5),
                   (w.add_vocab_size, VOCAB)):
        add(v)
    w.add_tokenizer_model("no_vocab")
    w.add_tensor("token_embd.weight", matrix(VOCAB, D))
    w.add_tensor("output.weight", matrix(VOCAB, D))
    w.add_tensor("output_norm.weight", (1 + 0.2 * rng.standard_normal(D)).astype(np.float32))
    for part, rows, cols in (("attn_q", D, D), ("attn_k", KV, D), ("attn_v", KV, D), ("attn_output", D, D),
                             ("ffn_gate", FFN, D), ("ffn_up", FFN, D), ("ffn_down", D, FFN)):
        w.add_tensor(f"blk.0.{part}.weight", matrix(rows, cols))
    for part in ("attn_norm", "ffn_norm"):
        w.add_tensor(f"blk.0.{part}.weight", (1 + 0.2 * rng.standard_normal(D)).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    quantize = str(LLAMA / "build" / "bin" / "llama-quantize")
    words = [x for k, t in types.items() for x in ("--tensor-type", f"{k}={t}")]
    subprocess.run([quantize, *words, str(source), str(OUT / f"{name}.gguf"), "q8_0", "1"], check=True, capture_output=True)
    subprocess.run([quantize, "--allow-requantize", str(OUT / f"{name}.gguf"), str(f32), "f32", "1"], check=True,
                   capture_output=True)
    got = {t.name: t.tensor_type.name for t in gguf.GGUFReader(OUT / f"{name}.gguf").tensors}
    print(got)
    ids = [int(i) for i in rng.integers(0, VOCAB, N)]
    ids_file.write_bytes(b"hclogit1" + struct.pack("<4I", VOCAB, N, 1, 0) + struct.pack(f"<{N}i", *ids))
    subprocess.run([str(LLAMA / "logits"), str(f32), str(ids_file), str(logits_file), "1"], check=True)
    logits = np.frombuffer(logits_file.read_bytes()[24 + 4 * N :], "<f4").reshape(-1, VOCAB)
    text = json.dumps({"oracle": "llama.cpp of llama-cpp-python 0.3.36", "ids": ids, "first": N // 2,
                       "logits": [[round(float(x), 5) for x in row] for row in logits[::8]], "step": 8})
    (OUT / f"{name}.json").write_text(text.replace("], [", "],\n[") + "\n")


with tempfile.TemporaryDirectory() as folder:
    make(folder, "mixed", TYPES, 256, 128, 256)
    make(folder, "bf16", dict.fromkeys(TYPES, "bf16"), 64, 32, 64)
