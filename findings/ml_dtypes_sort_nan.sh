#!/usr/bin/env bash
# ml_dtypes 0.5.4 with numpy 2.3.5 (seen on 1 December 2026).
#
# numpy sorts NaN to the end, in every float type of its own. In ml_dtypes' bfloat16 and 8-bit floats
# one NaN breaks the order of the other numbers: [3, NaN, 1, 2] comes back as it was, and so does the
# argsort. The script sorts 1,000 random arrays of 200 numbers with one NaN each: 744 come back out of
# order, and 88 have another number among their largest five. Nothing warns. numpy's own types have an order for sorting in which NaN is
# the largest; here sorting uses "less than", which is false beside NaN in both ways. So the best k of
# bfloat16 logits by argsort are wrong where one logit is NaN. Convert to float32 before sorting.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q ml_dtypes==0.5.4 numpy==2.3.5
"$dir/v/bin/python" - <<'PY'
import ml_dtypes
import numpy as np

x = np.array([3, np.nan, 1, 2], np.float32)
for kind in np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn:
    order = np.argsort(x.astype(kind)).tolist()
    print(kind.__name__, np.sort(x.astype(kind)), order)
    assert order == ([2, 3, 0, 1] if kind is np.float16 else [0, 1, 2, 3]), "changed"
broken = wrong = 0
for seed in range(1000):
    many = np.random.default_rng(seed).permutation(200).astype(np.float32)
    many[seed % 200] = np.nan
    order = np.argsort(many.astype(ml_dtypes.bfloat16))
    kept = [many[i] for i in order if i != seed % 200]
    broken += any(a > b for a, b in zip(kept, kept[1:]))
    wrong += not set(order[::-1][:5]) - {seed % 200} <= set(np.argsort(-np.nan_to_num(many, nan=-1))[:5])
print("of 1,000 arrays of 200 with a NaN:", broken, "are out of order,", wrong, "have other largest five")
assert broken > 500 and wrong > 50, "changed"
assert np.argmax(x.astype(ml_dtypes.bfloat16)) == 1, "changed"
PY
