#!/usr/bin/env python3
"""Tokens per second of `hcache batch`, compared with the same requests sent to `hcache serve` by 1
client and by 8 clients.

bench/batch_figures.py MODEL [--lines 32] [--tokens 32] [--rounds 2] [--groups 2] [--kv-tokens 0]

The requests are chats in groups, interleaved. Each group has a long system message of its own, as
in evaluations. --kv-tokens bounds the KV cache of all three ways, so that it cannot hold all
groups. All ways are greedy, and have no store and the server's default of 8 sequences. A new server
is started for each measurement, so that nothing is left from the previous one. The ways take turns
(A B C A B C). Loading is not counted: a batch's time is that of its summary. The last column is the
time of the slowest round."""
import argparse
import concurrent.futures
import http.client
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

HC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "hcache")


def requests(n, tokens, n_groups):
    systems = [f"{g}: you answer questions. " + " ".join(f"Rule {i}: be brief in case {g}." for i in range(30))
               for g in range(n_groups)]
    return [{"messages": [{"role": "system", "content": systems[i % n_groups]},
                          {"role": "user", "content": f"Question {i}: what should I know about day {i}?"}],
             "max_tokens": tokens, "temperature": 0, "ignore_eos": True} for i in range(n)]


def batch(model, options, bodies, folder, number):
    src, out = os.path.join(folder, "in"), os.path.join(folder, f"out{number}")
    with open(src, "w") as f:
        for i, b in enumerate(bodies):
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": b}) + "\n")
    p = subprocess.run([HC, "batch", model, "--in", src, "--out", out, "--json", *options], stdout=subprocess.PIPE,
                       stderr=subprocess.DEVNULL, check=True)
    s = json.loads(p.stdout)
    return s["elapsed_s"], s["generated_tokens"], s["computed_tokens"]


def serve(model, options, bodies, n_clients):
    p = subprocess.Popen([HC, "serve", model, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
    try:
        port = None
        while port is None:
            line = p.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
            m = re.search(r"ready at http://[^ ]*:(\d+)", line)
            port = m and int(m.group(1))

        def ask(body):
            c = http.client.HTTPConnection("127.0.0.1", port)
            c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = json.loads(c.getresponse().read())
            c.close()
            u = answer["usage"]
            return u["completion_tokens"], u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"]

        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(n_clients) as pool:
            got = list(pool.map(ask, bodies))
        return time.monotonic() - begun, sum(x[0] for x in got), sum(x[1] for x in got)
    finally:
        p.terminate()
        p.wait()


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("model")
    a.add_argument("--lines", type=int, default=32)
    a.add_argument("--tokens", type=int, default=32)
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--groups", type=int, default=2)
    a.add_argument("--kv-tokens", default="0")
    a = a.parse_args()
    bodies = requests(a.lines, a.tokens, a.groups)
    options = ["--kv-tokens", a.kv_tokens]
    ways = {"hcache batch": lambda r: batch(a.model, options, bodies, folder, r),
            "serve, 1 client": lambda r: serve(a.model, options, bodies, 1),
            "serve, 8 clients": lambda r: serve(a.model, options, bodies, 8)}
    got = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for r in range(a.rounds):
            for name, way in ways.items():
                got[name].append(way(r))
    print(f"{a.model}: {a.lines} requests of {a.tokens} tokens; load {os.getloadavg()[0]:.1f}")
    print(f"{'way':18} {'tokens/s':>9} {'prompt tokens computed':>23} {'slowest s':>10}")
    for name, rounds in got.items():
        print(f"{name:18} {statistics.median(n / s for s, n, _ in rounds):9.1f} {rounds[-1][2]:23} "
              f"{max(s for s, _, _ in rounds):10.1f}")


main()
