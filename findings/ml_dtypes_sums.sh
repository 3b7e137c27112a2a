#!/usr/bin/env bash
# ml_dtypes 0.6.0 with numpy 2.4.6, CPU (seen on 29 November 2026).
#
# numpy takes arrays of bfloat16 and the 8-bit floats of ml_dtypes without a word, but its sums add
# in the element's own type, one by one, and stick where the next addend is rounded away. The mean of
# 10,000 ones is 0.0256 in bfloat16 and 0.00195 in float8_e4m3fn, the standard deviation of 10,000
# equal numbers 0.64. float16 is right there, because numpy itself widens it for means; but
# float16 columns summed along axis 0 stick at 2048. np.dot says 9984 where @ says 10000. And np.sort
# leaves an array with a NaN unsorted ([1, nan, -1] stays so), since these types' order is not
# numpy's. Only dtype=np.float32 or astype helps: who looks at a bf16 checkpoint by mean() or std()
# sees wrong numbers.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q ml_dtypes==0.6.0 numpy==2.4.6
"$dir/v/bin/python" -W ignore - <<'PY'
import ml_dtypes
import numpy as np

bf16, f8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
ones = np.ones(10000, bf16)
seen = {
    "bf16 sum": (float(ones.sum()), 256.0),
    "bf16 mean": (round(float(ones.mean()), 4), 0.0256),
    "bf16 mean in f32": (float(ones.mean(dtype=np.float32)), 1.0),
    "bf16 standard deviation of equal numbers": (round(float((ones * bf16(3)).std()), 2), 0.64),
    "bf16 dot": (float(np.dot(ones, ones)), 9984.0),
    "bf16 @": (float((ones[None] @ ones[:, None])[0, 0]), 10000.0),
    "f8 mean": (round(float(np.ones(10000, f8).mean()), 5), 0.00195),
    "f16 mean": (float(np.ones(10000, np.float16).mean()), 1.0),
    "f16 sum of a column": (float(np.ones((10000, 4), np.float16).sum(0)[0]), 2048.0),
    "bf16 sorted": (str(np.sort(np.array([1, np.nan, -1], bf16))), "[1 nan -1]"),
}
for what, (is_now, was) in seen.items():
    print(f"{what}: {is_now}")
    assert is_now == was, f"changed: was {was}"
PY
