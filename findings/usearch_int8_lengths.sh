#!/usr/bin/env bash
# usearch 2.26.6 with numpy 2.4.6 (seen on 1 December 2026).
#
# An index of 8-bit numbers (dtype="i8") takes f32 vectors and scales each one to the length 127 before
# it rounds, whatever the metric. That loses nothing for the cosine, but an index for Euclidean
# distances or inner products forgets the vectors' lengths: [1, 0, ..] and [100, 0, ..] are at distance
# 0, so the nearest neighbour of a vector is another one. get() gives the scaled vector back, and
# nothing warns. Vectors that are int8 already stay as they are, so the same numbers as f32 and as
# int8 are other neighbours. f16 and bf16 indexes keep the lengths.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q usearch==2.26.6 numpy==2.4.6
"$dir/v/bin/python" - <<'PY'
import numpy as np
from usearch.index import Index

rows = np.zeros((3, 8), np.float32)
rows[0, 0], rows[1, 0], rows[2, 1] = 1, 100, 1


def distances(rows, dtype):
    index = Index(ndim=8, metric="l2sq", dtype=dtype)
    index.add(np.arange(3), rows)
    found = index.search(rows[0], 3)
    return dict(zip(found.keys.tolist(), found.distances.tolist())), np.asarray(index.get(1)).tolist()


for name, given, dtype in ("f32", rows, "f32"), ("f32 in i8", rows, "i8"), ("int8 in i8", rows.astype(np.int8), "i8"):
    d, second = distances(given, dtype)
    print(f"{name}: [1, 0, ..] and [100, 0, ..] are {d[1]} apart, [0, 1, ..] is at {d[2]}; get() gives {second[:2]}")
    assert (d[1], d[2], second[0]) == {"f32": (9801, 2, 100), "f32 in i8": (0, 32258, 127), "int8 in i8": (9801, 2, 100)}[name], "changed"
PY
