#!/usr/bin/env bash
# xgrammar 0.2.9 with torch 2.15.0 (seen on 1 December 2026).
#
# A grammar from a JSON schema is to allow what the schema allows. A name in "required" that "properties"
# does not list is forgotten: of {"required": ["b"], "properties": {"a": {"const": 1}}} the grammar
# allows {"a": 1}, which is wrong, and refuses {"b": 3}, which is right, with strict_mode=False, too.
# Limits beside "anyOf", "$ref" or "enum" are left out, too. Nothing is told in either case, although the
# library warns on standard error of other things that it leaves out: an "allOf" with two parts (then
# any JSON is allowed), minLength beside a pattern, and multipleOf beside a limit.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q xgrammar==0.2.9 torch==2.15.0
"$dir/v/bin/python" -W ignore - <<'PY'
import json

import xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts


def allowed(schema, texts, **options):
    grammar = xgrammar.Grammar.from_json_schema(json.dumps(schema), **options)
    out = [t for t in texts if accepts(grammar, t)]
    print(json.dumps(schema), options, "allows", out)
    return out


names = {"type": "object", "required": ["b"], "properties": {"a": {"const": 1}}}
for strict in True, False:
    assert allowed(names, ['{"a": 1}', '{"b": 3}'], strict_mode=strict) == ['{"a": 1}'], "changed"
both = {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}
assert allowed(both, ["2", "4", "6", '"six"']) == ["2", "4", "6", '"six"'], "changed"
assert allowed({"type": "string", "pattern": "^a*$", "minLength": 2}, ['"a"', '"aa"']) == ['"a"', '"aa"'], "changed"
assert allowed({"anyOf": [{"type": "integer"}], "minimum": 3}, ["2", "3"]) == ["2", "3"], "changed"
assert allowed({"type": "integer", "minimum": 3, "multipleOf": 3}, ["2", "3", "4"]) == ["3", "4"], "changed"
assert allowed({"type": "integer", "enum": ["a"]}, ['"a"']) == ['"a"'], "changed"
PY
