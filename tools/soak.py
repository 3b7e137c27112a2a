#!/usr/bin/env python3
"""Clients use all routes of one server for a long time. Answers are compared, and memory is noted.

  tools/soak.py [--minutes 60] [--clients 8] [--seed 1] [--pause 0] [--model models/demo]

The requests are drawn from a fixed set, so that a server without a store, which is asked first,
gives the text of each. The server under test has a small disk, a small DRAM tier and packed
records, so that state is evicted and restored all the time. Clients delete the conversations, files
and batches that they made. Each minute the tool prints a line: requests, memory (RssAnon and the
peak in MiB), descriptors, threads, and what the server keeps. HCACHE_BUILD=build/release names the
directory of the program, and SOAK_PREFIX a command that runs it (heaptrack). Exit status 0: no
answer differed, and no request failed."""
import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "e2e"))
from serve_client import SAVING, Server  # noqa: E402

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--minutes", type=float, default=60)
p.add_argument("--clients", type=int, default=8)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--pause", type=float, default=0, help="seconds between the requests of a client")
p.add_argument("--model", default="models/demo")
a = p.parse_args()
N = 96  # different requests of each kind
faults, lock = [], threading.Lock()
counts = dict.fromkeys(("compared", "restored"), 0)
WORDS = "the small bird sang in a tall tree and told its friends about the river and the old mill".split()
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"], "additionalProperties": False}}}


def text(i):
    r = random.Random(i)
    return " ".join(r.choice(WORDS) for _ in range(r.randrange(20, 500)))


def chat(i, **more):
    return {"messages": [{"role": "user", "content": text(i)}], "max_tokens": 8 + i % 24, "temperature": i % 2 / 2, "seed": i, **more}


def streamed(raw):
    return "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in re.findall(r"^data: (\{.*)", raw, re.M)
                   if json.loads(e)["choices"])


# name, path, body of request i, text of the answer
KINDS = {
    "completions": ("/v1/completions", lambda i: {"prompt": text(i), "max_tokens": 12, "temperature": 0},
                    lambda r: r["choices"][0]["text"]),
    "chat": ("/v1/chat/completions", chat, lambda r: r["choices"][0]["message"]["content"]),
    "stream": ("/v1/chat/completions", lambda i: chat(i, stream=True), streamed),
    "form": ("/v1/chat/completions", lambda i: chat(i, response_format=SCHEMA), lambda r: r["choices"][0]["message"]["content"]),
    "messages": ("/v1/messages", lambda i: {**chat(i), "model": "demo"}, lambda r: r["content"]),
    "responses": ("/v1/responses", lambda i: {"input": text(i), "max_output_tokens": 16, "temperature": 0, "store": False},
                  lambda r: r["output"][0]["content"]),
    "ollama": ("/api/chat", lambda i: {"model": "demo", "messages": chat(i)["messages"], "stream": False,
                                       "options": {"num_predict": 12, "temperature": 0}}, lambda r: r["message"]["content"]),
    "generate": ("/api/generate", lambda i: {"model": "demo", "prompt": text(i), "stream": False,
                                             "options": {"num_predict": 12, "temperature": 0}}, lambda r: r["response"]),
    "llama": ("/completion", lambda i: {"prompt": text(i), "n_predict": 12, "temperature": 0}, lambda r: r["content"]),
    "embed": ("/v1/embeddings", lambda i: {"input": [text(i)[:200], "two"]}, lambda r: r["data"][0]["embedding"][:8]),
    "tokens": ("/tokenize", lambda i: {"content": text(i)}, lambda r: r["tokens"]),
    "template": ("/apply-template", lambda i: {"messages": chat(i)["messages"]}, lambda r: r["prompt"]),
}
READ = ("/health", "/metrics", "/props", "/slots", "/v1/models", "/api/tags", "/api/ps", "/v1/cache/stats", "/openapi.json", "/",
        "/v1/conversations", "/v1/files", "/v1/batches")


def ask(server, kind, i):
    path, body, answer = KINDS[kind]
    status, _, r = server.post(path, body(i))
    if status != 200:
        raise RuntimeError(f"{path}: {status} {str(r)[:200]}")
    cached = ((r.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens", 0) if isinstance(r, dict) else 0
    return answer(r), cached


def expect(server, method, path, body=None, headers=None):
    status, _, r = server.request(method, path, body, headers)
    if status != 200:
        raise RuntimeError(f"{method} {path}: {status} {str(r)[:200]}")
    return r


def conversation(server, rng):
    name = expect(server, "POST", "/v1/conversations", {})["id"]
    for _ in range(rng.randrange(1, 5)):
        expect(server, "POST", "/v1/responses", {"input": text(rng.randrange(N)), "conversation": name, "max_output_tokens": 8})
    expect(server, "GET", f"/v1/conversations/{name}/items")
    expect(server, "DELETE", f"/v1/conversations/{name}")


def batch(server, rng):
    lines = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": chat(rng.randrange(N))}) + "\n"
                    for i in range(3))
    data = ("--soak\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--soak\r\nContent-Disposition: form-data; "
            f"name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{lines}\r\n--soak--\r\n")
    f = expect(server, "POST", "/v1/files", data, {"Content-Type": "multipart/form-data; boundary=soak"})["id"]
    b = expect(server, "POST", "/v1/batches", {"input_file_id": f, "endpoint": "/v1/chat/completions", "completion_window": "24h"})["id"]
    while (now := expect(server, "GET", f"/v1/batches/{b}"))["status"] not in ("completed", "failed", "expired"):
        time.sleep(0.2)
    if now["request_counts"]["completed"] != 3:
        raise RuntimeError(f"a batch ended with {now['request_counts']}")
    expect(server, "GET", f"/v1/files/{now['output_file_id']}/content")
    for name in (f, now["output_file_id"]):
        expect(server, "DELETE", f"/v1/files/{name}")


def client(server, want, seed, until):
    rng = random.Random(seed)
    while time.time() < until:
        kind, i = rng.choice(list(KINDS)), rng.randrange(N)
        try:
            got, cached = ask(server, kind, i)
            with lock:
                counts["compared"] += 1
                counts["restored"] += cached > 0
                if got != want[kind, i]:
                    faults.append(f"{kind} {i}: {got!r} instead of {want[kind, i]!r}")
            what = rng.random()
            if what < 0.2:
                expect(server, "GET", rng.choice(READ))
            elif what < 0.25:
                conversation(server, rng)
            elif what < 0.27:
                batch(server, rng)
            elif what < 0.28:
                expect(server, "POST", rng.choice(("/v1/cache/flush", "/v1/cache/clear")), {})
        except Exception as e:  # noqa: BLE001
            with lock:
                faults.append(f"{type(e).__name__}: {e}")
        time.sleep(a.pause)


def pid_of(server):
    """Returns the process of the server itself, which SOAK_PREFIX may have started."""
    for d in os.listdir("/proc"):
        if d.isdigit():
            try:
                words = open(f"/proc/{d}/cmdline").read().split("\0")
                if words[0].endswith("/hcache") and str(server.store) in words:
                    return int(d)
            except OSError:
                pass
    return server.p.pid


def note(server, pid, since):
    status = dict(re.findall(r"^(\w+):\s+(\d+)", open(f"/proc/{pid}/status").read(), re.M))
    kept = server.request("GET", "/v1/cache/stats")[2]["conversations"]
    kept = {k: v for k, v in kept.items() if isinstance(v, int)}
    print(f"{(time.time() - since) / 60:5.1f} min: {counts}, anon {int(status['RssAnon']) / 1024:.1f}, peak "
          f"{int(status['VmHWM']) / 1024:.1f}, fds {len(os.listdir(f'/proc/{pid}/fd'))}, threads {status['Threads']}, {kept}, "
          f"faults {len(faults)}", flush=True)


def main():
    reference, want = Server(a.model, "--pooling", "mean"), {}
    for kind in KINDS:
        for i in range(N):
            want[kind, i] = ask(reference, kind, i)[0]
    reference.stop()
    tmp = tempfile.mkdtemp(prefix="hcache-soak.")
    try:
        server = Server(a.model, "--store", tmp + "/store", "--store-cap", "96M", "--dram", "24M", "--pack", "on", *SAVING,
                        "--pooling", "mean", prefix=os.environ.get("SOAK_PREFIX", "").split())
        server.store = tmp + "/store"
        pid, since = pid_of(server), time.time()
        until = since + 60 * a.minutes
        threads = [threading.Thread(target=client, args=(server, want, a.seed * 1000 + c, until)) for c in range(a.clients)]
        for t in threads:
            t.start()
        while time.time() < until:
            note(server, pid, since)
            time.sleep(min(60, max(1, until - time.time())))
        for t in threads:
            t.join()
        note(server, pid, since)
        server.p.kill() if os.environ.get("SOAK_PREFIX") else server.stop()
    finally:
        shutil.rmtree(tmp)
    for f in faults[:20]:
        print("FAULT:", f)
    return 1 if faults else 0


sys.exit(main())
