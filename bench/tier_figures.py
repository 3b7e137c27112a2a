#!/usr/bin/env python3
"""What copies in DRAM and reading ahead are worth to one server, beside --dram 0, --prefetch off and --plan recompute.

    bench/tier_figures.py MODEL pair       the second of two requests: how much of its load is hidden behind the first
    bench/tier_figures.py MODEL turns      later turns of conversations, against recomputing them
    bench/tier_figures.py MODEL documents  documents with six tasks each (AttentionStore, figures 25 and 26)
    bench/tier_figures.py MODEL zero       what a tier costs requests that find nothing: time between tokens, saving on

Arms take turns in each round, in another order each time.  Nothing is kept on the device (--no-reuse).  Prints
medians."""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

a = argparse.ArgumentParser()
a.add_argument("model")
a.add_argument("what", choices=("pair", "turns", "documents", "zero"))
a.add_argument("--program", default="build/hcache")
a.add_argument("--tokens", type=int, default=1024)
a.add_argument("--answer", type=int, default=64)
a.add_argument("--rounds", type=int, default=3)
a.add_argument("--throttle", default="0", help="of the disk's reads, bytes per second")
a.add_argument("--dram", default="1G")
a.add_argument("--vocabulary", type=int, default=8000)
a = a.parse_args()


class Server:
    def __init__(self, *options):
        self.p = subprocess.Popen([a.program, "serve", a.model, "--port", "0", "--no-reuse", "--max-context",
                                   str(a.tokens + 1024), "--throttle", a.throttle, *options], stderr=subprocess.PIPE,
                                  text=True)
        for line in self.p.stderr:
            m = re.search(r"ready at (http://\S+)", line)
            if m:
                self.url = m.group(1).rstrip("/")
                break
        threading.Thread(target=lambda: [None for _ in self.p.stderr], daemon=True).start()

    def post(self, path, body):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=600) as f:
            return json.load(f)

    def ask(self, prompt, n):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0,
                                             "ignore_eos": True})["timings"]

    def stop(self):
        self.p.terminate()
        self.p.wait(60)


def tokens(seed, n):
    r = random.Random(seed)
    return [r.randrange(10, a.vocabulary) for _ in range(n)]


def by_turns(arms, run):
    """run(arm, round) of each arm in each round, as {arm: [result, ...]}."""
    out = {arm: [] for arm in arms}
    for i in range(a.rounds):
        for k in range(len(arms)):
            arm = arms[(i + k) % len(arms)]
            out[arm].append(run(arm, i))
    return out


def median(rows, key):
    return statistics.median(r[key] for r in rows)


def pair(folder):
    prompts = [tokens(i, a.tokens) for i in range(2)]
    s = Server("--store", folder, "--dram", "0")
    for p in prompts:
        s.ask(p, 1)
    s.post("/v1/cache/flush", {})
    s.stop()

    def run(arm, _):
        s = Server("--store", folder, "--max-sequences", "1", "--dram", a.dram, "--plan", "kv",
                   "--prefetch", "on" if arm == "on" else "off")
        out = [None, None]

        def one(i):
            out[i] = s.ask(prompts[i], a.answer)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(2)]
        for t in threads[:1 if arm == "alone" else 2]:
            t.start()
            time.sleep(0.005)
        for t in threads[:1 if arm == "alone" else 2]:
            t.join()
        s.stop()
        return {"first": out[0]["per_token_ms"], "load": out[1]["restore_ms"] if out[1] else 0,
                "dram": out[1]["dram_tokens"] if out[1] else 0}
    r = by_turns(["on", "off", "alone"], run)
    on, off = median(r["on"], "load"), median(r["off"], "load")
    print(f"the second's load: {off:.1f} ms without reading ahead, {on:.1f} ms with it: {1 - on / off:.1%} hidden "
          f"({median(r['on'], 'dram'):.0f} tokens from DRAM)")
    alone = median(r["alone"], "first")
    for arm in ("off", "on"):
        print(f"the first's time between tokens, {arm}: {median(r[arm], 'first'):.2f} ms, alone {alone:.2f}: "
              f"{median(r[arm], 'first') / alone - 1:+.1%}")


def ttft_of(arm, folder, histories, requests):
    """First tokens of requests behind histories, ms: restored by one server, or recomputed by another."""
    if arm == "recompute":
        s = Server("--plan", "recompute")
    else:
        s = Server("--store", folder, "--dram", a.dram)
        for h in histories:
            s.ask(h, 1)
        s.post("/v1/cache/flush", {})
    out = [s.ask(p, 1)["ttft_ms"] for p in requests]
    s.stop()
    return out


def against_recomputing(name, histories, requests):
    def run(arm, _):
        with tempfile.TemporaryDirectory(prefix="tiers.", dir="/var/tmp") as folder:
            return {"ttft": statistics.median(ttft_of(arm, folder, histories, requests))}
    r = by_turns(["restored", "recompute"], run)
    x, y = median(r["restored"], "ttft"), median(r["recompute"], "ttft")
    print(f"{name}: first token {x:.1f} ms, recomputed {y:.1f} ms: {x / y:.3f}x")


def turns(_):
    histories = [tokens(100 + i, a.tokens) for i in range(4)]
    against_recomputing("later turns", histories, [h + tokens(900 + i, 40) for i, h in enumerate(histories)])


def documents(_):
    docs = [tokens(200 + i, a.tokens) for i in range(2)]
    tasks = [d + tokens(1000 + 6 * i + k, 45) for i, d in enumerate(docs) for k in range(1, 6)]
    against_recomputing("tasks 2 to 6 of a document", docs, tasks)


def zero(_):
    def run(arm, i):
        with tempfile.TemporaryDirectory(prefix="tiers.", dir="/var/tmp") as folder:
            s = Server("--store", folder, "--dram", a.dram if arm == "dram" else "0")
            t = [s.ask(tokens(5000 + 10 * i + k, a.tokens), a.answer) for k in range(3)]
            s.stop()
        return {key: statistics.median(x[key + "_ms"] for x in t) for key in ("per_token", "prefill")}
    r = by_turns(["dram", "0", "0 again"], run)
    for key in ("per_token", "prefill"):
        base = median(r["0"], key)
        print(f"{key}: --dram 0 {base:.2f} ms; again {median(r['0 again'], key) / base - 1:+.1%}; --dram {a.dram} "
              f"{median(r['dram'], key) / base - 1:+.1%}")


with tempfile.TemporaryDirectory(prefix="tiers.", dir="/var/tmp") as tmp:
    {"pair": pair, "turns": turns, "documents": documents, "zero": zero}[a.what](os.path.join(tmp, "store"))
