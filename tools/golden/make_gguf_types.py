#!/usr/bin/env python3
"""Writes tests/model/golden/gguf/types.bin: blocks of every GGUF element type, and their values.

    python3 -m venv V && V/bin/pip install numpy gguf
    V/bin/python tools/golden/make_gguf_types.py

The bits of the blocks are random (with finite scales), so every field takes every value.  The values
are those of gguf-py, llama.cpp's own Python reader.  For each type: its number, the number of elements
and of bytes (u32), the blocks, and the values (f32)."""
import pathlib
import struct

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "model" / "golden" / "gguf" / "types.bin"
# Offsets of the f16 fields in a block.
SCALES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "F32": [], "BF16": [],
          "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
          "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0]}
rng = np.random.default_rng(20)
out = b""
for name, fields in SCALES.items():
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n = max(2, 512 // block)
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    if name == "F32":
        raw = rng.standard_normal(n).astype("<f4").view(np.uint8).reshape(n, 4)
    if name == "BF16":
        raw = (rng.standard_normal(n).astype("<f4").view("<u4") >> 16).astype("<u2").view(np.uint8).reshape(n, 2)
    for at in fields:  # scales are normal and subnormal numbers of both signs, and zeros
        halves = np.concatenate([rng.standard_normal(n - 2) * 10.0 ** rng.integers(-7, 3, n - 2), [0.0, -0.0]])
        raw[:, at : at + 2] = halves.astype("<f2").view(np.uint8).reshape(n, 2)
    values = gguf.quants.dequantize(raw.reshape(-1), kind).astype("<f4")
    assert values.size == n * block and np.isfinite(values).all(), name
    out += struct.pack("<III", int(kind), values.size, raw.size) + raw.tobytes() + values.tobytes()
OUT.parent.mkdir(parents=True, exist_ok=True)
OUT.write_bytes(out)
print(f"{OUT}: {len(out)} bytes")
