#!/usr/bin/env bash
# safetensors 0.8.0 with numpy 2.4.6 (seen on 29 November 2026).
#
# The same tensors with the same metadata give another file in each process. Tensors are sorted, but
# the members of __metadata__ are written in the order of a hash table with a random seed: five keys
# gave 6 different digests in 6 runs, and within one process two saves differ, too. Only a file with
# at most one key of metadata is reproducible. So the digest of a checkpoint says nothing about
# whether its weights have changed; hash the tensors' bytes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q safetensors==0.8.0 numpy==2.4.6
digest() { # digest KEY...: of a file with these keys of metadata
    "$dir/v/bin/python" - "$@" <<'PY'
import hashlib
import sys

import numpy as np
from safetensors.numpy import save

data = save({"b": np.ones(3, np.float32), "a": np.ones(2, np.float16)}, metadata={k: "value" for k in sys.argv[1:]})
print(hashlib.sha256(data).hexdigest()[:16])
PY
}
several() { for _ in 1 2 3 4 5 6; do digest "$@"; done | sort -u | wc -l; }
five=$(several format author base date licence) one=$(several format)
echo "different files of 6: with five keys $five, with one key $one"
[ "$five" -gt 1 ] && [ "$one" -eq 1 ]
