"""First token of a model that must be loaded, beside a warm one: two models of which one fits in memory.

    python3 bench/switch_figures.py DIR ONE OTHER [LLAMA_SERVER] [--rounds N]

DIR holds ONE.gguf and OTHER.gguf. hcache runs with a --models-memory for one of them and a store; llama-server's router with
--models-max 1. Both files are in the page cache after the first round, which does not count. HCACHE is the program."""
import argparse
import http.client
import json
import os
import re
import statistics
import tempfile
import time

from servers import start

a = argparse.ArgumentParser()
a.add_argument("dir")
a.add_argument("names", nargs=2)
a.add_argument("llama", nargs="?")
a.add_argument("--rounds", type=int, default=4)
o = a.parse_args()
HC = os.environ.get("HCACHE", "build/hcache")


def get(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("GET", path)
    r = c.getresponse()
    return r.status, r.read().decode()


def first_token(port, model):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begin = time.monotonic()
    c.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": "The capital of France is", "max_tokens": 4,
                                                     "temperature": 0, "stream": True}), {"Content-Type": "application/json"})
    r = c.getresponse()
    line = r.readline()
    while not line.startswith(b"data: {"):
        if not line:
            raise SystemExit(f"{model}: {r.status}")
        line = r.readline()
    seconds = time.monotonic() - begin
    r.read()
    return seconds


paths = [os.path.join(o.dir, n + ".gguf") for n in o.names]
with tempfile.TemporaryDirectory() as store:
    p, port = start([HC, "serve", *paths, "--store", store])
    need = float(re.search(r"^hcache_models_bytes (\S+)", get(port, "/metrics")[1], re.M)[1])
    p.terminate()
    p.wait()
    arms = {"hcache": ([HC, "serve", *paths, "--store", store, "--models-memory", str(int(need * 1.5))],
                       [n + ".gguf" for n in o.names])}
    if o.llama:
        arms["llama-server"] = ([o.llama, "--models-dir", o.dir, "--models-max", "1"], o.names)
    running = {name: start(words) for name, (words, _) in arms.items()}
    cold, warm = {n: [] for n in arms}, {n: [] for n in arms}
    for i in range(2 * o.rounds + 2):
        for name, (_, port) in running.items():
            model = arms[name][1][i % 2]
            pair = first_token(port, model), first_token(port, model)
            if i >= 2:
                cold[name].append(pair[0])
                warm[name].append(pair[1])
    for name in arms:
        c, w = statistics.median(cold[name]), statistics.median(warm[name])
        print(f"{name:13} first token: switched {c:.3f} s, warm {w:.3f} s, difference {c - w:.3f} s "
              f"({len(cold[name])} switches, {min(cold[name]):.3f} to {max(cold[name]):.3f})")
    for p, _ in running.values():
        p.terminate()
        p.wait()
