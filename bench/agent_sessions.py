#!/usr/bin/env python3
"""Real sessions of coding agents on one server that restarts in the middle: which share of
restorable state is restored.

  bench/agent_sessions.py MODEL --trace agents.jsonl [--sessions 4] [--requests 24] [--scale 32]
  [--think 0.05] [--throttle 1GB] [--rounds 1] [--arms dram,staging,off]

A request of the trace names the blocks of 64 tokens of its prompt.  Every SCALE-th block is kept,
so that lengths are the trace's divided by SCALE and prefixes stay prefixes; answers are divided by
SCALE, and pauses are multiplied by --think, up to --longest-pause. Sessions run concurrently.
After half of its requests each session waits for the others; then the server is killed (kill -9)
and started again.

*Attainable* chunks are the full chunks of a prompt with which an earlier prompt of its session
began, and that were durable before the kill: the server is asked to flush first.  The goal is at
least 95 % of them.  Nothing is kept on the device (--no-reuse), so each one must be restored.

Arms take turns: copies in DRAM that are read ahead, staging alone (--dram 0), and neither
(--prefetch off --dram 0)."""
import argparse
import collections
import json
import os
import statistics
import tempfile
import threading
import time

from one_server import Server, by_turns, tokens

CHUNK = 64
a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("model")
a.add_argument("--trace", required=True)
a.add_argument("--program", default="build/hcache")
a.add_argument("--sessions", type=int, default=4)
a.add_argument("--requests", type=int, default=24, help="number of requests of each session")
a.add_argument("--scale", type=int, default=32)
a.add_argument("--think", type=float, default=0.05)
a.add_argument("--longest-pause", type=float, default=2, help="bound on a pause, in seconds; the trace has pauses of hours")
a.add_argument("--throttle", default="1GB")
a.add_argument("--dram", default="1G")
a.add_argument("--max-sequences", default="2")
a.add_argument("--vocabulary", type=int, default=8000)
a.add_argument("--rounds", type=int, default=1)
a.add_argument("--arms", default="dram,staging,off")
a.add_argument("--plan", default="auto")
a = a.parse_args()
ARMS = {"dram": ("--dram", a.dram), "staging": ("--dram", "0"), "off": ("--dram", "0", "--prefetch", "off")}


def load():
    """Returns the first requests of the first sessions. Each has the numbers of the blocks that are
    kept of its prompt.
    """
    sessions = collections.OrderedDict()
    with open(a.trace) as f:
        for line in f:
            r = json.loads(line)
            rows = sessions.setdefault(r["session"], [])
            if len(rows) < a.requests:
                blocks = [b for first, last in r["blocks"] for b in range(first, last + 1) if b % a.scale == 0]
                rows.append({"blocks": blocks, "think": min(r["think"] * a.think, a.longest_pause), "out": max(1, r["out"] // a.scale)})
            if len(sessions) > 4 * a.sessions:
                break
    full = [rows for rows in sessions.values() if len(rows) == a.requests]
    return full[:a.sessions]


def prompt_of(session, row, i):
    """Returns the 64 tokens of each block, followed by a few tokens that no other request has."""
    out = []
    for b in row["blocks"]:
        out += tokens(session * 1000003 + b, CHUNK, a.vocabulary)
    return out + tokens(-1 - session * 100003 - i, 16, a.vocabulary)


def shared_chunks(x, y):
    n = 0
    while n < min(len(x), len(y)) and x[n] == y[n]:
        n += 1
    return n


class Run:
    def __init__(self, arm, folder, sessions, context):
        self.arm, self.folder, self.sessions, self.context = arm, folder, sessions, context
        self.lock = threading.Lock()
        self.rows = []
        self.server = self.start()

    def start(self):
        return Server(a.program, a.model, "--no-reuse", "--store", self.folder, "--max-context", str(self.context),
                      "--max-sequences", a.max_sequences, "--throttle", a.throttle, "--plan", a.plan, *ARMS[self.arm])

    def play(self, session, begin, end):
        rows = self.sessions[session]
        for i in range(begin, end):
            time.sleep(rows[i]["think"])
            prompt = prompt_of(session, rows[i], i)
            attainable = max([CHUNK * shared_chunks(rows[i]["blocks"], rows[k]["blocks"]) for k in range(i)], default=0)
            r = self.server.complete(prompt, rows[i]["out"])
            cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
            with self.lock:
                self.rows.append({"attainable": attainable, "cached": min(cached // CHUNK * CHUNK, attainable),
                                  "after": i >= a.requests // 2, "ttft": r["timings"]["ttft_ms"],
                                  "dram": r["timings"]["dram_tokens"],
                                  "miss": r["timings"]["miss"]})

    def half(self, begin, end):
        threads = [threading.Thread(target=self.play, args=(s, begin, end)) for s in range(len(self.sessions))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def whole(self):
        self.half(0, a.requests // 2)
        self.server.flush()
        self.server.kill()
        self.server = self.start()
        self.half(a.requests // 2, a.requests)
        self.server.stop()
        return self.rows


def run(arm, _):
    with tempfile.TemporaryDirectory(prefix="agents.", dir="/var/tmp") as folder:
        rows = Run(arm, os.path.join(folder, "store"), SESSIONS, CONTEXT).whole()
    attainable, cached = sum(r["attainable"] for r in rows), sum(r["cached"] for r in rows)
    after = [r for r in rows if r["after"]]
    got, could = sum(r["cached"] for r in after), sum(r["attainable"] for r in after)
    print(f"  {arm}: {cached} of {attainable} attainable tokens came back ({cached / attainable:.1%}); after the kill "
          f"{got} of {could} ({got / could:.1%}); median TTFT {statistics.median(r['ttft'] for r in rows):.1f} ms; from DRAM "
          f"{sum(r['dram'] for r in rows)} tokens", flush=True)
    for why, n in collections.Counter(r["miss"] for r in rows if r["cached"] < r["attainable"]).most_common(3):
        print(f"    {n} times less than attainable: {why}", flush=True)
    return {"share": cached / attainable, "after": got / could, "ttft": statistics.median(r["ttft"] for r in rows)}


SESSIONS = load()
CONTEXT = max(len(prompt_of(s, r, i)) + r["out"] for s, rows in enumerate(SESSIONS) for i, r in enumerate(rows)) + CHUNK
print(f"{len(SESSIONS)} sessions of {a.requests} requests, contexts of {CONTEXT} tokens at most", flush=True)
results = by_turns(a.arms.split(","), a.rounds, run)
least = min(r["after"] for rows in results.values() for r in rows)
print(f"least share of attainable tokens that came back after the kill: {least:.1%} (goal: 95 %)")
