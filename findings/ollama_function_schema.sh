#!/usr/bin/env bash
# ollama 0.6.3, the official Python client (seen on 30 November 2026).
#
# A Python function given as a tool becomes a schema that says something else than its signature. A
# parameter with a default is required, except where its type is Optional: the model must invent what the
# author wanted to leave out. A Literal loses its values and becomes a plain string, list[int] loses what
# its items are, and a docstring in Sphinx's style (":param x:") is taken whole as the description.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q ollama==0.6.3
cat >"$dir/t.py" <<'PY'
import json
from typing import Literal, Optional

import ollama
import httpx


def forecast(city: str, days: int = 3, unit: Literal["c", "f"] = "c", hours: list[int] = [], wind: Optional[float] = None):
    """Forecast.

    :param city: its name
    """


sent = []


def answer(request):
    sent.append(json.loads(request.content))
    return httpx.Response(200, json={"model": "m", "message": {"role": "assistant", "content": ""}, "done": True})


client = ollama.Client(transport=httpx.MockTransport(answer))
client.chat(model="m", messages=[{"role": "user", "content": "hi"}], tools=[forecast])
f = sent[0]["tools"][0]["function"]
print(json.dumps(f, indent=1))
assert f["parameters"]["required"] == ["city", "days", "unit", "hours"], "changed"
assert f["parameters"]["properties"]["unit"] == {"type": "string", "description": ""}, "changed"
assert f["parameters"]["properties"]["hours"] == {"type": "array", "description": ""}, "changed"
assert ":param city:" in f["description"] and f["parameters"]["properties"]["city"]["description"] == "", "changed"
PY
"$dir/v/bin/python" "$dir/t.py"
