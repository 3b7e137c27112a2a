#!/usr/bin/env bash
# safetensors 0.8.0 with numpy 2.3.5 (seen on 1 December 2026).
#
# safetensors.numpy.save_file writes other numbers than it was given, where an array does not lie
# in memory as its shape says: a transposed matrix, an array in Fortran's order, some columns of a
# matrix, each second row. It writes the memory from the array's first number on, with the array's
# shape. Nothing warns, the file is valid, and load_file returns the wrong numbers. Up to 0.7.0
# all four come back as they were. A converter that writes `w.T`, as those of GPT-2's checkpoints
# do, makes a model of noise. Pass np.ascontiguousarray(w).
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
cat >"$dir/try.py" <<'PY'
import sys
import numpy as np
from safetensors.numpy import load_file, save_file

a = np.arange(12, dtype=np.float32).reshape(3, 4)
views = {"transposed": a.T, "Fortran's order": np.asfortranarray(a), "two columns": a[:, 1:3], "second rows": a[::2]}
save_file(views, "views.safetensors")
back = load_file("views.safetensors")
for name, view in views.items():
    same = np.array_equal(back[name], view)
    print(f"{name}: given {view.tolist()}, read {back[name].tolist()}")
    assert back[name].shape == view.shape and same == (sys.argv[1] == "0.7.0"), "changed"
whole = {name: np.ascontiguousarray(view) for name, view in views.items()}
save_file(whole, "whole.safetensors")
assert all(np.array_equal(x, views[name]) for name, x in load_file("whole.safetensors").items()), "changed"
PY
cd "$dir"
for version in 0.7.0 0.8.0; do
    echo "safetensors $version"
    "$dir/v/bin/pip" install -q "safetensors==$version" numpy==2.3.5
    "$dir/v/bin/python" try.py "$version"
done
