#!/usr/bin/env bash
# jiter 0.19.0, the JSON parser of the official openai and anthropic clients (seen on 30 November 2026).
#
# Clients show the arguments of a call while they arrive, by parsing the part that is there
# (partial_mode). A text that is not complete is left out, or marked by the mode "trailing-strings". A
# number that is not complete is given as if it were: of {"n": 12.5} the parts show 1, then 12, then no n
# at all, and then 12.5. So a member that was there goes away, and values appear that the model never
# wrote. Whole texts surprise as well: NaN and Infinity, which are no JSON, are accepted by default, 1e400
# is infinite without an error, and -0 is the integer 0.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q jiter==0.19.0
"$dir/v/bin/python" - <<'PY'
import math

import jiter

text = b'{"n": 12.5}'
parts = [jiter.from_json(text[:k], partial_mode="trailing-strings") for k in range(6, len(text))]
print("the parts of", text.decode(), "give", parts)
assert parts == [{}, {"n": 1}, {"n": 12}, {}, {"n": 12.5}], "changed"
assert jiter.from_json(b'{"t": "ab', partial_mode=True) == {}, "changed"
assert jiter.from_json(b"1e400") == math.inf and math.isnan(jiter.from_json(b"NaN")), "changed"
assert str(jiter.from_json(b"-0")) == "0" and str(jiter.from_json(b"-0.0")) == "-0.0", "changed"
print("1e400, NaN, -0:", jiter.from_json(b"1e400"), jiter.from_json(b"NaN"), jiter.from_json(b"-0"))
PY
