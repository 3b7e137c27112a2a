#!/usr/bin/env bash
# llguidance 1.9.1 (seen on 1 December 2026).
#
# A grammar from a JSON schema is to allow only texts whose parsed value fits the schema. Names of
# members are compared as they are spelled: {"properties": {"a": {"type": "integer"}}} refuses
# {"a": "x"}, but allows the same object with the letter a written as an escape, which every parser
# reads as a member "a" that is a text. So a value that was generated under the grammar still has to be
# validated. The number 1.0 as a "const" has lost its fraction: the grammar allows 1 and refuses 1.0,
# the schema's own spelling. Most other limits hold: multipleOf 0.1, minLength, days of a month, and
# what is not done, such as uniqueItems, is refused with its name.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q llguidance==1.9.1
"$dir/v/bin/python" - <<'PY'
import json

from llguidance import LLMatcher, LLTokenizer

BYTES = LLTokenizer("byte")


def allows(schema, text):
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(schema))
    ids = list(text.encode())
    n = matcher.validate_tokens(ids)
    matcher.consume_tokens(ids[:n])
    return n == len(ids) and matcher.is_accepting()


names = {"type": "object", "properties": {"a": {"type": "integer"}}}
spelled, escaped = '{"a":"x"}', '{"\\u0061":"x"}'
assert json.loads(spelled) == json.loads(escaped)
for text in spelled, escaped, '{"a":1}':
    print(text, "is", json.loads(text), "and allowed:", allows(names, text))
assert [allows(names, t) for t in (spelled, escaped, '{"a":1}')] == [False, True, True], "changed"
ones = [allows({"const": 1.0}, t) for t in ("1", "1.0")]
print("const 1.0 allows 1 and 1.0:", ones)
assert ones == [True, False], "changed"
assert [allows({"type": "number", "multipleOf": 0.1}, t) for t in ("0.3", "0.35")] == [True, False], "changed"
assert not allows({"type": "string", "format": "date"}, '"2023-02-30"'), "changed"
PY
