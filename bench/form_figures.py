#!/usr/bin/env python3
"""The time between tokens of an answer with a JSON schema, beside one without, and beside llama-server with the same
schema and file, by turns.

    bench/form_figures.py MODEL.gguf [LLAMA_SERVER] [--rounds 6] [--tokens 128] [--schema FILE] [--rt]

Starts the servers with two threads each, asks them one after another for the same number of tokens, and prints medians
and ratios.  The time between tokens is (last - first) / (tokens - 1) of a streamed answer.  --rt runs the servers with
real-time priority, which stops everything else on the machine while they compute."""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

PERSON = {"type": "object", "required": ["name", "age", "role", "tags", "address", "notes"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "minLength": 3, "maxLength": 60}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
                         "role": {"enum": ["engineer", "designer", "manager"]},
                         "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 2, "maxItems": 4},
                         "address": {"type": "object", "required": ["street", "zip"], "additionalProperties": False,
                                     "properties": {"street": {"type": "string", "maxLength": 60}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
                         "notes": {"type": "string", "maxLength": 120}}}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 4}
HC = os.path.join(os.environ.get("HCACHE_BUILD", "build/release"), "hcache")


def start(args, rt):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen((["chrt", "-f", "50"] if rt else []) + args + ["--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
            return p, port
        except OSError:
            time.sleep(0.1)
    p.kill()
    sys.exit(args[0] + " does not start")


def between(port, tokens, schema):
    """Returns the time between tokens in ms, and how many tokens came."""
    body = {"messages": [{"role": "user", "content": "Write a long list of people who work in a hospital, with all that you know of them."}],
            "max_tokens": tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "people", "schema": schema}}
    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    first = last = None
    n = 0
    with urllib.request.urlopen(r, timeout=120) as f:
        for line in f:
            if not line.startswith(b"data: {"):
                continue
            v = json.loads(line[6:])
            if v.get("choices") and v["choices"][0].get("delta", {}).get("content"):
                last = time.monotonic()
                first = first or last
            n = (v.get("usage") or {}).get("completion_tokens", n)
    return (last - first) * 1e3 / (n - 1), n


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("llama", nargs="?")
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--schema", help="of an answer that is long enough; default: a list of people")
    p.add_argument("--options", default="", help="of hcache serve, in one text")
    p.add_argument("--rt", action="store_true")
    a = p.parse_args()
    if a.rt:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(60))  # above the servers, whose answers it times
    schema = PEOPLE
    if a.schema:
        with open(a.schema, encoding="utf-8") as f:
            schema = json.load(f)
    servers = {"hcache": start([HC, "serve", a.model, "--threads", "2", *a.options.split()], a.rt)}
    if a.llama:
        servers["llama"] = start([a.llama, "-m", a.model, "-t", "2", "-c", "4096", "-np", "1", "--host", "127.0.0.1"], a.rt)
    times, counts = {}, {}
    for turn in range(a.rounds + 1):
        for name, (_, port) in servers.items():
            for kind, form in (("plain", None), ("schema", schema)):
                ms, counts[name, kind] = between(port, a.tokens, form)
                if turn > 0:  # the first warms up
                    times.setdefault((name, kind), []).append(ms)
    for process, _ in servers.values():
        process.terminate()
        process.wait()
    out = {f"{name}_{kind}_ms": round(statistics.median(v), 3) for (name, kind), v in times.items()}
    out["tokens"] = {f"{name}_{kind}": n for (name, kind), n in counts.items()}
    out["hcache_schema_over_plain"] = round(statistics.median(s / q for s, q in zip(times["hcache", "schema"], times["hcache", "plain"])), 4)
    if a.llama:
        out["hcache_over_llama_with_schema"] = round(statistics.median(q / s for s, q in zip(times["hcache", "schema"], times["llama", "schema"])), 3)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
