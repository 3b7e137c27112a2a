#!/usr/bin/env python3
"""Writes lib/checkpoint/gguf_grids.c: the points of the grids of IQ2 and IQ3, as gguf-py has them.

    python3 -m venv V && V/bin/pip install numpy gguf
    V/bin/python tools/golden/make_gguf_grids.py
"""
import pathlib

from gguf import quants

OUT = pathlib.Path(__file__).resolve().parents[2] / "src" / "model" / "gguf_grids.c"
HEAD = """/* gguf_grids.c - the points of the grids of IQ2 and IQ3 (gguf_grids.h), which the formats define.
 * tools/golden/make_gguf_grids.py writes this file. */
#include "checkpoint/gguf_grids.h"

/* clang-format off */
"""


def table(name, kind, bits):
    """Returns a grid as an array: a coordinate is the number of its value, the first one in the lowest bits."""
    kind.init_grid()
    number = {float(v): i for i, v in enumerate(kind.grid_map)}
    points = [sum(number[float(x)] << bits * i for i, x in enumerate(row)) for row in kind.grid.reshape(kind.grid_shape)]
    lines = ["   "]
    for p in points:
        if len(lines[-1]) + len(f" {p},") > 88:
            lines.append("   ")
        lines[-1] += f" {p},"
    return f"const uint16_t {name}[{len(points)}] = {{\n" + "\n".join(lines) + "\n};\n"


grids = (("iq2_xxs", quants.IQ2_XXS, 2), ("iq2_xs", quants.IQ2_XS, 2), ("iq2_s", quants.IQ2_S, 2),
         ("iq3_xxs", quants.IQ3_XXS, 3), ("iq3_s", quants.IQ3_S, 3))
OUT.write_text(HEAD + "\n".join(table(f"gguf_grid_{n}", k, b) for n, k, b in grids) + "/* clang-format on */\n")
