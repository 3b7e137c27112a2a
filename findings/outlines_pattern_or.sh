#!/usr/bin/env bash
# outlines-core 0.2.14, the schemas of outlines and of servers that use it (seen on 1 December 2026).
#
# An answer in a JSON schema is promised to be JSON. A pattern with "|" at its top breaks that: the
# pattern is put between two quotes without a group, so "^yes|no$" becomes ("yes|no") and the answers
# that the schema allows are {"answer":"yes} and {"answer":no"}, and no others. The pattern "." allows
# a quote as the text. Nothing is refused or told. The number of a schema without limits cannot be
# 1e5, because an exponent must have a sign, and "minimum", "multipleOf" and "uniqueItems" are left out
# in silence, where an unknown "format" raises an error.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q outlines-core==0.2.14
"$dir/v/bin/python" - <<'PY'
import json
import re

from outlines_core.json_schema import build_regex_from_schema


def allows(schema, text):
    return re.fullmatch(build_regex_from_schema(json.dumps(schema)), text) is not None


answer = {"type": "object", "properties": {"answer": {"type": "string", "pattern": "^yes|no$"}}, "required": ["answer"]}
for text in '{"answer":"yes"}', '{"answer":"no"}', '{"answer":"yes}', '{"answer":no"}':
    print(text, "is allowed:", allows(answer, text))
assert not allows(answer, '{"answer":"yes"}') and not allows(answer, '{"answer":"no"}'), "changed"
assert allows(answer, '{"answer":"yes}') and allows(answer, '{"answer":no"}'), "changed"
assert allows({"type": "string", "pattern": "^.$"}, '"""'), "changed"
number = {"type": "number", "minimum": 3, "multipleOf": 3}
assert allows(number, "-1") and allows(number, "1e+5") and not allows(number, "1e5"), "changed"
assert allows({"type": "array", "items": {"const": 1}, "uniqueItems": True}, "[1, 1]"), "changed"
print("and a number of at least 3 may be -1 or 1e+5, but not 1e5")
PY
