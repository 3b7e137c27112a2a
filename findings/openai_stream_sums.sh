#!/usr/bin/env bash
# openai 3.57.0, the official Python client (seen on 30 November 2026).
#
# chat.completions.stream() adds up what the chunks of an answer have in common, by its type: texts are
# joined and numbers are summed. Only `index` and `type` are exempt. So a server that repeats `role`, or a
# call's `id` and `name`, in each chunk gives a final message with the role "assistantassistant" and a
# function "ff" with the id "call_1call_1". A member that the client does not know is summed, too: a
# count of 5 and then 7 becomes 12, and a flag that is true in two chunks becomes the number 2. Nothing
# warns, and the plain iterator (stream=True) shows none of it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q openai==3.57.0 httpx==0.28.1 httpx2==2.16.2
"$dir/v/bin/python" -W ignore - <<'PY'
import json

import openai

try:
    import httpx2 as http
except ImportError:
    import httpx as http


def final(*deltas):
    chunks = [{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
               "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    body = "".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n"

    def answer(request):
        return http.Response(200, headers={"content-type": "text/event-stream"}, content=body.encode())

    client = openai.OpenAI(api_key="x", base_url="http://localhost/v1", http_client=http.Client(transport=http.MockTransport(answer)))
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as s:
        return s.get_final_completion().choices[0].message


m = final({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"})
print("role in two chunks:", m.role)
assert m.role == "assistantassistant" and m.content == "ab", "changed"
m = final({"role": "assistant", "content": "a", "count": 5, "flag": True}, {"content": "b", "count": 7, "flag": True})
print("a count of 5 and 7, a flag that is true twice:", m.count, m.flag)
assert m.count == 12 and m.flag == 2 and m.flag is not True, "changed"
call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
m = final({"role": "assistant", "tool_calls": [call]}, {"tool_calls": [{**call, "function": {"name": "f", "arguments": ""}}]})
print("a call in two chunks:", m.tool_calls[0].id, m.tool_calls[0].function.name, m.tool_calls[0].type)
assert m.tool_calls[0].id == "call_1call_1" and m.tool_calls[0].function.name == "ff" and m.tool_calls[0].type == "function", "changed"
PY
