#!/usr/bin/env python3
"""Measures ranks as processes of mpirun beside threads of one process, by turns.

    bench/rank_figures.py [--model synth:bench-220m] [--prompt 512] [--tokens 64] [--rounds 5] [--ranks 2]

One process with a thread for each rank, and a process with one thread for each rank (--tensor-parallel), compute the same
prompt and the same answer, in an order that changes by round. Figures are medians over rounds, and medians of paired ratios;
answers whose bits differ end the run. The goal of both ratios is 0.92."""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

HC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "hcache")
p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
p.add_argument("--model", default="synth:bench-220m")
p.add_argument("--prompt", type=int, default=512)
p.add_argument("--tokens", type=int, default=64)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--ranks", type=int, default=2)
a = p.parse_args()
ids = tempfile.NamedTemporaryFile("w", suffix=".txt")
ids.write(" ".join(str(n) for n in random.Random(1).choices(range(1000), k=a.prompt)))
ids.flush()
ONE = [HC, "run", a.model, "--token-ids", ids.name, "--max-tokens", str(a.tokens), "--speculate", "off", "--json"]
MANY = [*ONE, "--threads", "1", "--tensor-parallel", str(a.ranks)]


def measure(command):
    """Returns the digest of the logits, and tokens a second of the prompt and of the answer."""
    r = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return r["logits_digest"], a.prompt / r["timings"]["prefill_ms"] * 1e3, r["timings"]["decode_tokens_per_s"]


rates = {"threads": [], "processes": []}
for turn in range(a.rounds):
    digests = set()
    for name in sorted(rates, reverse=turn % 2 == 0):
        digest, *both = measure([*ONE, "--threads", str(a.ranks)] if name == "threads" else MANY)
        rates[name].append(both)
        digests.add(digest)
    if len(digests) > 1:
        sys.exit("the logits differ")
for i, what in enumerate(("prefill", "decode")):
    one, many = ([r[i] for r in rates[n]] for n in ("threads", "processes"))
    ratio = [m / o for o, m in zip(one, many)]
    print(f"{what}: threads {statistics.median(one):.1f}, processes {statistics.median(many):.1f} tokens/s; processes / threads "
          f"{statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})")
