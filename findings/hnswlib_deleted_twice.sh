#!/usr/bin/env bash
# hnswlib 0.8.0 with numpy 2.4.6 (seen on 1 December 2026).
#
# BFIndex is the exact index beside which people judge the approximate one. Deleting a vector moves the
# last one into its place and leaves a copy behind it. A query for as many neighbours as there were
# before reads the copy: of the vectors 0, 1, 2 without 1 the three nearest are 0, 2, 2. The approximate
# Index raises an error where it has fewer than k. So a recall that is measured after deletions counts
# an element twice, and nothing warns. Ask for at most as many as are left.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q hnswlib==0.8.0 numpy==2.4.6
"$dir/v/bin/python" - <<'PY'
import hnswlib
import numpy as np

rows = np.eye(3, dtype=np.float32)
exact, near = hnswlib.BFIndex("l2", 3), hnswlib.Index("l2", 3)
for index in exact, near:
    index.init_index(3)
    index.add_items(rows, np.arange(3))
exact.delete_vector(1)
near.mark_deleted(1)
found = exact.knn_query(rows[0], 3)[0][0].tolist()
print("three neighbours of two vectors:", found)
assert found == [0, 2, 2], "changed"
assert exact.knn_query(rows[0], 2)[0][0].tolist() == [0, 2], "changed"
try:
    near.knn_query(rows[0], 3)
    raise SystemExit("changed")
except RuntimeError as e:
    print("the approximate index:", str(e)[:60])
PY
