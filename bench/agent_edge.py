#!/usr/bin/env python3
"""The cost of an agent's request at the edge: parsing, rendering and tokenizing it.

  bench/agent_edge.py [MODEL] [--request FILE] [--rounds 60]

Starts build/hcache serve on a free port and counts the tokens of two requests by turns, which does all
but generate: a request as Claude Code sends it (cache marks, a late system message, edits, effort,
metadata), and the same prompt as a plain client sends it: a text of the system, texts of messages, tools
with their schemas. --request: a body of Claude Code, recorded; else one of that form is made. Each round
has other texts, so nothing is known from the round before. Prints medians of the
server's processor time, and the median of the rounds' ratios; the goal is at most 1.1 (docs/PERF.md)."""
import argparse
import copy
import glob
import http.client
import json
import os
import random
import statistics
import sys
import tempfile

from one_server import Server

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "e2e"))
from scripted_model import make_talker  # noqa: E402

# as most templates: the system with the tools first
TEMPLATE = """<|begin|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}{% for t in tools or [] %}{{ t | tojson }}
{% endfor %}<|end|>
{% for m in messages %}{% if m.role != 'system' %}<|begin|>{{ m.role }}
{{ m.content }}<|end|>
{% endif %}{% endfor %}<|begin|>assistant
"""

EPHEMERAL = {"type": "ephemeral"}


def words(r, n):
    return " ".join(r.choice(("the", "a", "file", "reads", "path", "value", "of", "tool", "must", "return", "`x.py`"))
                    for _ in range(n))


def made(r):
    """Returns a request of about 60 KB: 24 tools, a system of two blocks, a question with a reminder."""
    def tool(i):
        schema = {"type": "object", "additionalProperties": False, "required": ["a0"], "properties": {
            f"a{k}": {"type": "string", "description": words(r, 20)} for k in range(4)}}
        return {"name": f"Tool{i}", "description": words(r, 180), "input_schema": schema}
    system = [{"type": "text", "text": words(r, n), "cache_control": EPHEMERAL} for n in (100, 1400)]
    said = [{"type": "text", "text": "<system-reminder>\n" + words(r, 1500) + "\n</system-reminder>\n"},
            {"type": "text", "text": "What is six times seven?", "cache_control": EPHEMERAL}]
    return {"model": "default", "max_tokens": 32000, "stream": True, "system": system,
            "tools": [tool(i) for i in range(24)], "metadata": {"user_id": "{}"},
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "messages": [{"role": "user", "content": said}, {"role": "system", "content": words(r, 150)}]}


def text(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def plain(body):
    """Returns the request with the same prompt, in the form of plain clients."""
    system = [text(m["content"]) for m in body["messages"] if m["role"] == "system"]
    return {"model": "default", "max_tokens": 1024, "system": "\n\n".join([text(body["system"]), *system]),
            "messages": [{"role": m["role"], "content": text(m["content"])} for m in body["messages"]
                         if m["role"] != "system"],
            "tools": [{k: t[k] for k in ("name", "description", "input_schema")} for t in body["tools"]]}


def varied(body, i):
    """Returns the body with other texts at its beginnings, of the same size."""
    body = copy.deepcopy(body)
    body["system"][0]["text"] = f"{i:08d} " + body["system"][0]["text"]
    body["tools"][0]["description"] = f"{i:08d} " + body["tools"][0]["description"]
    return body


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model", nargs="?", help="default: one with the demo model's vocabulary, made here")
    a.add_argument("--request")
    a.add_argument("--rounds", type=int, default=60)
    a.add_argument("--program", default="build/hcache")
    a = a.parse_args()
    body = made(random.Random(1))
    if a.request:
        with open(a.request, encoding="utf-8") as f:
            body = json.load(f)
    tmp = tempfile.TemporaryDirectory(prefix="hcache-edge.")
    model = a.model or make_talker(os.path.join(tmp.name, "model"), TEMPLATE, {"<|last|>": ["It is 42."]})
    server = Server(a.program, model)
    c = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)

    def processor_ns():
        """Returns the processor time of the server's threads. It does not depend on the machine's load."""
        sum_ns = 0
        for path in glob.glob(f"/proc/{server.p.pid}/task/*/schedstat"):
            with open(path, encoding="ascii") as f:
                sum_ns += int(f.read().split()[0])
        return sum_ns

    def count(sent):
        """Returns (milliseconds, tokens)."""
        sent = {k: v for k, v in sent.items() if k not in ("max_tokens", "stream", "metadata")}
        data = json.dumps(sent, ensure_ascii=False).encode()
        begin = processor_ns()
        c.request("POST", "/v1/messages/count_tokens", data)
        answer = json.loads(c.getresponse().read())
        if "input_tokens" not in answer:
            raise SystemExit(answer)
        return (processor_ns() - begin) / 1e6, answer["input_tokens"]

    times, tokens = {"agent": [], "plain": []}, {}
    for i in range(a.rounds + 3):
        one = varied(body, i)
        arms = [("agent", one), ("plain", plain(one))]
        for name, sent in arms if i % 2 == 0 else arms[::-1]:
            ms, tokens[name] = count(sent)
            times[name] += [ms] if i >= 3 else []
    ratios = [x / y for x, y in zip(times["agent"], times["plain"])]
    for name, sent in arms:
        print(f"{name}: {len(json.dumps(sent)) / 1e3:.1f} KB, {tokens[name]} tokens, median "
              f"{statistics.median(times[name]):.2f} ms of processor time")
    print(f"agent / plain: median {statistics.median(ratios):.2f} of {a.rounds} rounds")
    server.stop()


main()
