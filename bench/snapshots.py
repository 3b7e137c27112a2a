#!/usr/bin/env python3
"""Simulates where snapshots of recurrent states are taken, over the agents' traces.

  bench/snapshots.py [--every N] [--cap GIB ...] [--model NAME]

A store holds blocks of 64 tokens (keys and values of the attention layers; with inputs also those of
the recurrent layers) and snapshots, and evicts what was used longest ago, ends of contexts first, at
an equal number of bytes for each policy. The places come from src/save/snapshots.c, compiled for
this run. A row says what a request computes again of tokens that were computed before: milliseconds
of the mean request, with the sizes and FLOPs of a model at one speed.

  turn ends     a snapshot at the end of each turn, nothing else; no inputs
  each N        a snapshot each N tokens, nothing else; no inputs
  ours          the places of snapshots.h and inputs, from which states are replayed
  ours, behind  the same, but inputs are dropped once a later snapshot of their context is taken
  ours, last N  the same, but a context keeps the inputs of its last N tokens only
  ours, bare    the same places without inputs

At the end of a run the store holds some tokens: it also prints their bytes a token, with their snapshots.
"""
import argparse
import collections
import ctypes
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SHARED = os.environ.get("HCACHE_SHARED", os.path.join(ROOT, "..", "shared"))
CHUNK, LEAST = 64, 256

# bytes a token of K and V and of inputs, bytes of a snapshot, GFLOP a token of a pass and of a replay
MODELS = {
    "qwen3.5-0.8b": (6 * 2048, 18 * 2048, 18 * 1122368, 1.0, 0.18),
    "qwen3.6-35b-a3b": (10 * 2048, 30 * 4096, 30 * 2195520, 6.0, 0.84),
}
GFLOPS = 220  # a token's replay of 35B-A3B takes 3.8 ms


class View(ctypes.Structure):
    _fields_ = [("done", ctypes.c_int64), ("newest", ctypes.c_int64), ("prompt", ctypes.c_int64),
                ("is_branch", ctypes.c_bool)]


def load_policy():
    out = os.path.join(tempfile.mkdtemp(prefix="hcache-snapshots."), "snapshots.so")
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-I", os.path.join(ROOT, "src"), "-I", os.path.join(ROOT, "lib"),
                    os.path.join(ROOT, "src/save/snapshots.c"), "-o", out], check=True)
    lib = ctypes.CDLL(out)
    lib.snapshot_next.restype = ctypes.c_int64
    lib.snapshot_is_due.restype = ctypes.c_bool
    return lib


class Store:
    """Blocks and snapshots, the least recently used first."""

    def __init__(self, cap):
        self.cap, self.used = cap, 0
        self.items = collections.OrderedDict()

    def put(self, key, n_bytes):
        if key in self.items:
            self.items.move_to_end(key)
            return
        self.items[key] = n_bytes
        self.used += n_bytes
        while self.used > self.cap:
            self.used -= self.items.popitem(last=False)[1]

    def remove(self, key):
        self.used -= self.items.pop(key, 0)

    def drop(self, key):
        if key in self.items:
            self.items.move_to_end(key, last=False)


def ours_places(lib, first, newest, prompt, branch):
    """The places of one prefill from token `first` on."""
    view, places = View(first, newest, prompt, branch), []
    if lib.snapshot_is_due(ctypes.byref(view)):
        places.append(first)
        view.newest = first
    view.is_branch = False
    while (at := lib.snapshot_next(ctypes.byref(view))) <= prompt:
        places.append(at)
        view.done = view.newest = at
    return places


def thin(lib, at, end):
    n = len(at)
    drop = (ctypes.c_bool * n)()
    lib.snapshot_thin((ctypes.c_int64 * n)(*at), n, ctypes.c_int64(end), drop)
    return [p for p, d in zip(at, drop) if d]


def run(requests, model, cap, kind, every, lib):
    kv, inputs, state, pass_gflop, replay_gflop = MODELS[model]
    has_inputs = kind in ("ours", "behind", "last")
    store, node_of, ends, total = Store(cap), {}, collections.defaultdict(set), 0.0
    children = collections.Counter()
    for r in requests:
        path, parent, n_known = [], (r["session"],), 0
        for a, b in r["blocks"]:
            for i in range(a, b + 1):
                node = node_of.get((parent, i))
                if node is None:
                    node = node_of[(parent, i)] = len(node_of)
                    children[parent] += 1
                elif n_known == len(path):
                    n_known += 1
                path.append(node)
                parent = node
        known = n_known * CHUNK
        # answers before this request that it goes on from: places inside its known or new tokens
        turn_ends = sorted(p for k, node in enumerate(path) for p in ends.get(node, ()) if p <= r["in"])
        if turn_ends and n_known < len(path):
            known = max([known] + [p for p in turn_ends if p // CHUNK <= n_known + 1])
        n_hit = 0
        while n_hit < n_known and ("b", path[n_hit]) in store.items:
            n_hit += 1
        have = n_hit * CHUNK
        snaps = [(k + 1) * CHUNK for k in range(n_hit) if ("s", path[k]) in store.items]
        exact = [p for p in turn_ends if ("e", r["session"], p) in store.items and p // CHUNK <= n_hit]
        at = max(snaps + exact + [0])
        if exact and max(exact) > have:
            have = max(exact)
        if has_inputs:
            replayed = at  # up to which the inputs are there
            while replayed < have and ("i", path[replayed // CHUNK]) in store.items:
                replayed = min(have, replayed // CHUNK * CHUNK + CHUNK)
            again = (known - replayed) * pass_gflop + (replayed - at) * replay_gflop
            have = replayed
        else:
            again = (known - at) * pass_gflop
        total += max(again, 0) / GFLOPS * 1000
        # uses: the deeper, the earlier
        prompt = r["in"]
        for k in range(len(path) - 1, -1, -1):
            store.put(("b", path[k]), CHUNK * kv)
            if has_inputs and (kind == "ours" or k >= have // CHUNK or ("i", path[k]) in store.items):
                store.put(("i", path[k]), CHUNK * inputs)
        if at in snaps:
            store.put(("s", path[at // CHUNK - 1]), state)
        elif at > 0:
            store.put(("e", r["session"], at), state)
        if kind == "each":
            places = range((at // every + 1) * every, prompt + 1, every)
        elif kind == "turns":
            places = []
        else:
            branch = n_known < len(path) and n_known > 0 and children[path[n_known - 1]] > 1
            start = have if has_inputs else at
            places = ours_places(lib, start, at, prompt, branch and start % CHUNK == 0)
            if kind != "ours" and branch and n_known * CHUNK - at >= LEAST:
                places.append(n_known * CHUNK)
            for p in thin(lib, snaps, have) if len(snaps) > 1 else []:
                store.drop(("s", path[p // CHUNK - 1]))
        newest = at
        for p in places:
            if 0 < p // CHUNK <= len(path):
                store.put(("s", path[p // CHUNK - 1]), state)
                newest = max(newest, p)
        end = prompt + r["out"]
        cut = newest if kind == "behind" else min(newest, end - every) if kind == "last" else 0
        for k in range(max(0, cut) // CHUNK):
            store.remove(("i", path[k]) if k < len(path) else None)
        if kind == "turns" or (kind != "each" and end - newest >= LEAST):
            store.put(("e", r["session"], end), state)
            if path:
                ends[path[-1]].add(end)
        elif path:
            ends[path[-1]].add(end)
    n_blocks = sum(k[0] == "b" for k in store.items)
    return total / len(requests), store.used / max(1, n_blocks * CHUNK)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--every", type=int, default=8, help="each N-th session of the trace")
    p.add_argument("--cap", type=float, nargs="*", default=[16, 64, 256], help="GiB of the store")
    p.add_argument("--model", default="qwen3.6-35b-a3b", choices=sorted(MODELS))
    p.add_argument("--n", type=int, nargs="*", default=[2048, 8192], help="tokens of the policy each N")
    p.add_argument("--last", type=int, nargs="*", default=[8192], help="tokens of the last N")
    a = p.parse_args()
    path = os.path.join(SHARED, "traces/agents/agents.jsonl")
    if not os.path.exists(path):
        print("skip: no traces (HCACHE_SHARED)")
        return 0
    with open(path) as f:
        requests = [json.loads(line) for line in f]
    chosen = set(sorted({r["session"] for r in requests})[::a.every])
    requests = sorted((r for r in requests if r["session"] in chosen), key=lambda r: r["t"])
    lib = load_policy()
    print(f"{len(requests)} requests of {len(chosen)} sessions, {a.model}: ms computed again, mean")
    for cap in a.cap:
        arms = [("turn ends", "turns", 0)] + [(f"each {n}", "each", n) for n in a.n]
        arms += [("ours", "ours", 0), ("ours, behind", "behind", 0)]
        arms += [(f"ours, last {n}", "last", n) for n in a.last] + [("ours, bare", "bare", 0)]
        row = {name: run(requests, a.model, cap * 2**30, kind, n, lib) for name, kind, n in arms}
        print(f"{cap:7g} GiB  " + "  ".join(f"{k} {ms:.0f} ({size / 1024:.0f} KiB)" for k, (ms, size) in row.items()),
              flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
