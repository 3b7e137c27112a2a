#!/usr/bin/env bash
# ollama 0.6.3 on httpx 0.28.1, and httpx2 2.16.2 (seen on 30 November 2026).
#
# A server streams one JSON object a line. JSON allows U+0085, U+2028 and U+2029 in strings as they are,
# and a line of such a stream ends at "\n" alone. Response.iter_lines() of httpx, and of its successor,
# ends lines as Python's str.splitlines does, so the line is cut inside the string. The ollama client
# reads its stream by it: where a model writes one of these characters (they occur in text copied from
# web pages), the client raises a JSONDecodeError in the middle of the answer. A server helps by
# escaping the three. requests' iter_lines(), which cuts bytes, ends lines at "\r" and "\n" alone.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q ollama==0.6.3 httpx==0.28.1 httpx2==2.16.2
"$dir/v/bin/python" - <<'PY'
import json

import httpx
import httpx2
import ollama


def line(c):
    return json.dumps({"model": "m", "message": {"role": "assistant", "content": f"a{c}b"}, "done": True}, ensure_ascii=False) + "\n"


for c in "\u0085\u2028\u2029":
    for http in (httpx, httpx2):
        client = http.Client(transport=http.MockTransport(lambda r: http.Response(200, content=line(c).encode())))
        with client.stream("GET", "http://localhost/") as r:
            n = len(list(r.iter_lines()))
        print(f"{http.__name__}: U+{ord(c):04X} makes {n} lines of one")
        assert n == 2, "changed"
    client = ollama.Client(transport=httpx.MockTransport(lambda r: httpx.Response(200, content=line(c).encode())))
    try:
        print([p.message.content for p in client.chat(model="m", messages=[], stream=True)])
        raise SystemExit("changed: the client reads it")
    except json.JSONDecodeError as e:
        print("ollama:", e)
PY
