"""Embeddings of many texts: texts a second, beside llama-server, by turns.

    python3 bench/embed_figures.py F.gguf [LLAMA_SERVER] [--texts N] [--tokens N] [--rounds N]

The texts are random token ids, other ones in each round, sent as one request each round, so both
servers batch as they like. Many texts by turns are many rounds of few (--texts 100 --rounds 10);
the last lines are the rates of all rounds together. llama-server gets the same pooling and threads. HCACHE is the program (build/hcache)."""
import argparse
import json
import os
import random
import statistics
import time
import urllib.request

from servers import start

a = argparse.ArgumentParser()
a.add_argument("model")
a.add_argument("llama", nargs="?")
a.add_argument("--texts", type=int, default=1000)
a.add_argument("--tokens", type=int, default=128)
a.add_argument("--rounds", type=int, default=3)
a.add_argument("--pooling", default="mean")
o = a.parse_args()


def ask(port, texts):
    body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64"}).encode()
    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/embeddings", body, {"Content-Type": "application/json"})
    begin = time.monotonic()
    with urllib.request.urlopen(r, timeout=3600) as f:
        n = len(json.load(f)["data"])
    assert n == len(texts), n
    return time.monotonic() - begin


threads = str(len(os.sched_getaffinity(0)))
arms = {"hcache": [os.environ.get("HCACHE", "build/hcache"), "serve", o.model, "--pooling", o.pooling, "--threads", threads]}
if o.llama:
    arms["llama-server"] = [o.llama, "-m", o.model, "--embeddings", "--pooling", o.pooling, "-t", threads, "-c", "8192", "-np", "8",
                            "-b", "2048", "-ub", "512"]
running = {name: start(words) for name, words in arms.items()}
rng, times = random.Random(1), {name: [] for name in arms}
for i in range(o.rounds + 1):  # the first round warms up
    texts = [[rng.randrange(300, 3000) for _ in range(o.tokens)] for _ in range(o.texts if i > 0 else 4)]
    for name, (_, port) in running.items():
        seconds = ask(port, texts)
        if i > 0:
            times[name].append(seconds)
            print(f"round {i}: {name:13} {o.texts / seconds:8.2f} texts/s", flush=True)
for name, t in times.items():
    print(f"{name:13} {len(t) * o.texts} texts of {o.tokens} tokens in {sum(t):.1f} s: {len(t) * o.texts / sum(t):.2f} a second; "
          f"median of rounds {o.texts / statistics.median(t):.2f}")
for p, _ in running.values():
    p.terminate()
    p.wait()
