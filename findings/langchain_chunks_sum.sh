#!/usr/bin/env bash
# langchain-core 1.8.3 (seen on 30 November 2026).
#
# The chunks of a stream are added to make the message, and what "added" means depends on the type of
# each member. Tokens used are summed, so a server that says in each chunk how many there are so far gets
# a bill of their sum: 6 and then 7 tokens are 13. Texts in response_metadata are joined (the model "m" is
# then "mm"), lists are joined, and whole numbers are summed, unless the name is one of a few. Two different fractions raise a TypeError in the middle of the stream. And the parser for
# answers that are not complete returns None, without an error, for a whole object with one brace too many.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q langchain-core==1.8.3
"$dir/v/bin/python" -W ignore - <<'PY'
from langchain_core.messages import AIMessageChunk
from langchain_core.utils.json import parse_partial_json


def chunk(n_output, **metadata):
    return AIMessageChunk(content="a", response_metadata=metadata,
                          usage_metadata={"input_tokens": 5, "output_tokens": n_output, "total_tokens": 5 + n_output})


m = chunk(1, model="m", step=1, tags=["x"]) + chunk(2, model="m", step=2, tags=["x"])
print("usage:", m.usage_metadata, "metadata:", m.response_metadata)
assert m.usage_metadata["input_tokens"] == 10 and m.usage_metadata["total_tokens"] == 13, "changed"
assert m.response_metadata == {"model": "mm", "step": 3, "tags": ["x", "x"]}, "changed"
try:
    chunk(1, seconds=0.5) + chunk(2, seconds=0.25)
    raise SystemExit("changed: two fractions can be added")
except TypeError as e:
    print("two fractions:", e)
print("one brace too many:", parse_partial_json('{"a": 1}}'), "trailing words:", parse_partial_json('{"a": 1} and so on'))
assert parse_partial_json('{"a": 1}}') is None and parse_partial_json('{"a": 1} and so on') == {"a": 1}, "changed"
PY
