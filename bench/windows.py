#!/usr/bin/env python3
"""Simulates which windows of layers with sliding attention are kept, over the agents' traces.

  bench/windows.py [--every N] [--first N] [--window TOKENS] [--layers FULL,WINDOWED]

A store without a bound holds the records of all tokens in the layers that see all of them, and those of
layers with a window where src/save/snapshots.c keeps them (compiled for this run; after each request, as
the saver does after a commit). A request resumes where its windows are whole. The rows compare this with
a store that keeps all records: tokens of prompts that came back, and bytes at the end; then the bytes
of one context by its length, after one turn and after a second one of 256 tokens.
"""
import argparse
import ctypes
import json
import os
import sys

import snapshots
from snapshots import CHUNK, SHARED


def load_policy():
    lib = snapshots.load_policy()
    lib.window_resume.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int]
    lib.window_thin.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
    return lib


def thin(lib, whole, wanted, window):
    """Returns a byte for each chunk: 1 if it loses its records of layers with a window."""
    drop = ctypes.create_string_buffer(len(whole) + 1)
    lib.window_thin(bytes(whole), bytes(wanted), len(whole), window, drop)
    return drop.raw[:len(whole)]


def run(requests, window, lib):
    node_of, n_next, has = {}, [0], bytearray([0])  # node 0 is the root
    n_hit = n_all_hit = n_prompt = 0
    for r in requests:
        path, parent, n_known = [], 0, 0
        for a, b in r["blocks"]:
            for i in range(a, b + 1):
                node = node_of.get((parent, i))
                if node is None:
                    node = node_of[(parent, i)] = len(n_next)
                    n_next[parent] += 1
                    n_next.append(0)
                    has.append(0)
                elif n_known == len(path):
                    n_known += 1
                path.append(node)
                parent = node
        n, most = len(path), min(n_known, (r["in"] - 1) // CHUNK)
        whole = bytes(has[k] for k in path[:most])
        at = lib.window_resume(whole, most, 0, most * CHUNK, window)
        n_prompt, n_all_hit, n_hit = n_prompt + n, n_all_hit + most, n_hit + at
        for k in path[at:]:
            has[k] = 1
        wanted = bytearray(n_next[k] > 1 for k in path)
        for p in (at, (r["in"] - 1) // CHUNK, n):
            if 0 < p <= n:
                wanted[p - 1] = 1
        for k, d in zip(path, thin(lib, bytes(has[k] for k in path), wanted, window)):
            if d:
                has[k] = 0
    return n_hit, n_all_hit, n_prompt, sum(has), len(node_of)


def context(lib, n, turns, window):
    """Chunks with windows of a context of n chunks whose last `turns` turns have four chunks."""
    has, at = bytearray(n), 0
    for end in [n - 4 * (turns - i) for i in range(1, turns + 1)]:
        has[at:end] = b"\1" * (end - at)
        wanted = bytearray(end)
        wanted[end - 1] = 1
        if at > 0:
            wanted[at - 1] = 1
        for i, d in enumerate(thin(lib, has[:end], wanted, window)):
            has[i] = has[i] and not d
        at = end
    return sum(has)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--every", type=int, default=8, help="each N-th session of the trace")
    p.add_argument("--first", type=int, default=0, help="the first of these")
    p.add_argument("--window", type=int, default=1024)
    p.add_argument("--layers", default="5,29", help="layers that see all tokens, and layers with the window")
    a = p.parse_args()
    full, windowed = map(int, a.layers.split(","))
    share = lambda kept: (full + windowed * kept) / (full + windowed)
    lib = load_policy()
    for n in (4096, 8192, 16384, 32768, 65536, 131072):
        one, two = (share(context(lib, n // CHUNK, t, a.window) / (n // CHUNK)) for t in (1, 2))
        print(f"a context of {n:6d} tokens: {one:.3f} of all bytes after one turn, {two:.3f} after two")
    path = os.path.join(SHARED, "traces/agents/agents.jsonl")
    if not os.path.exists(path):
        print("skip: no traces (HCACHE_SHARED)")
        return 0
    with open(path) as f:
        requests = [json.loads(line) for line in f]
    chosen = set(sorted({r["session"] for r in requests})[a.first::a.every])
    requests = sorted((r for r in requests if r["session"] in chosen), key=lambda r: r["t"])
    hit, all_hit, prompt, kept, nodes = run(requests, a.window, lib)
    print(f"{len(requests)} requests of {len(chosen)} sessions: {all_hit / prompt:.4f} of the prompts come back if "
          f"all is kept; {hit / all_hit:.4f} of that with {share(kept / nodes):.3f} of the bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
