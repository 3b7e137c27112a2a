#!/usr/bin/env bash
# gguf 0.19.0 (the Python package of llama.cpp) with numpy 2.4.6 (seen on 29 November 2026).
#
# Metadata does not come back as it was written, and nothing warns. A nested array [[1, 2], [3]] is
# read as [1, 2, 3]: contents() flattens it, although the file and the field's types have both levels.
# An empty array and an empty string are left out of the file, so a reader cannot tell "none" from
# "not said". A text that is given to add_array becomes its letters. And one weight that is too large
# for the block's scale (f16) turns the block's 31 other weights into NaN when it is quantized.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q gguf==0.19.0 numpy==2.4.6
cd "$dir"
"$dir/v/bin/python" -W ignore - <<'PY'
import gguf
import numpy as np


def back(how, value):
    w = gguf.GGUFWriter("x.gguf", "llama")
    getattr(w, how)("key", value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    field = gguf.GGUFReader("x.gguf").fields.get("key")
    return "absent" if field is None else field.contents()


for how, value, was in (("add_array", [[1, 2], [3]], [1, 2, 3]), ("add_array", [], "absent"), ("add_string", "", "absent"),
                        ("add_array", "abc", ["a", "b", "c"]), ("add_array", [1, 2], [1, 2])):
    print(f"{how}({value!r}): {back(how, value)!r}")
    assert back(how, value) == was, "changed"
q8 = gguf.GGMLQuantizationType.Q8_0
block = gguf.quants.dequantize(gguf.quants.quantize(np.array([[1e7] + [1.0] * 31], np.float32), q8), q8)[0]
print("a block of 1e7 and 31 ones in Q8_0:", block[:3])
assert np.isinf(block[0]) and np.isnan(block[1:]).all(), "changed"
PY
