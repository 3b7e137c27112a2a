#!/usr/bin/env python3
"""`--policy ours` on loads that nothing was tuned on: fractions of Mooncake's conversations.

  bench/tiers_fresh.py --trace conversation_trace.jsonl --seeds 51-56 [--shares 0.25,0.5,0.75]
  bench/tiers_fresh.py --trace conversation_trace.jsonl --seeds 57 --shares 1 --shift 900

A seed picks a share of the conversations, and moves each of them by up to --shift seconds. (All
requests of a conversation have the same second block; all conversations share the first block.)
The second half hour is judged, as by `hcache bench tiers --judge second-half`. Prints for each load
and window how many points the hit rate of `ours` is above that of the better one of lru and
attentionstore, a column for each size of the cache, and the number of cases in which `ours` is more
than 0.1 points behind."""
import argparse
import json
import os
import random
import subprocess
import tempfile

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("--program", default="build/hcache")
a.add_argument("--trace", required=True)
a.add_argument("--seeds", default="51-53", help="FIRST-LAST, or one seed")
a.add_argument("--shares", default="0.25,0.5,0.75", help="shares of the conversations; each seed runs with each share")
a.add_argument("--shift", type=float, default=0, help="seconds by which a conversation may move")
a.add_argument("--windows", default="0,64")
a.add_argument("--blocks", default="500,1000,2000,3000,5000,10000,20000")
a = a.parse_args()
POLICIES = ("lru", "attentionstore", "ours")


def conversation(r):
    ids = r["hash_ids"]
    return ids[1] if len(ids) > 1 else -1 - ids[0]


def fraction(requests, share, seed):
    """Returns the requests of a share of the conversations, each conversation moved as a whole."""
    rng, moved = random.Random(seed), {}
    for name in sorted({conversation(r) for r in requests}):
        is_in, shift = rng.random() < share, rng.random() * a.shift
        if is_in:
            moved[name] = int(shift * 1000)
    out = [{**r, "timestamp": r["timestamp"] + moved[conversation(r)]} for r in requests if conversation(r) in moved]
    return sorted(out, key=lambda r: r["timestamp"])


def leads(path, window):
    """Returns how many points the hit rate of `ours` is ahead, for each size of the cache."""
    text = subprocess.run([a.program, "bench", "tiers", "--load", "mooncake", "--trace", path, "--judge", "second-half",
                           "--window", window, "--policies", ",".join(POLICIES), "--blocks", a.blocks, "--json"],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    hits = {(r["policy"], r["blocks"]): 100 * r["hit_rate"] for r in json.loads(text)["rows"]}
    return [hits["ours", n] - max(hits["lru", n], hits["attentionstore", n]) for n in map(int, a.blocks.split(","))]


def main():
    with open(a.trace, encoding="utf-8") as f:
        requests = [json.loads(line) for line in f]
    first, _, last = a.seeds.partition("-")
    every = []
    print("share  seed  window " + "".join(f"{n:>8}" for n in a.blocks.split(",")))
    for share in map(float, a.shares.split(",")):
        for seed in range(int(first), int(last or first) + 1):
            with tempfile.TemporaryDirectory(prefix="fresh.") as folder:
                path = os.path.join(folder, "trace.jsonl")
                with open(path, "w", encoding="utf-8") as f:
                    f.writelines(json.dumps(r) + "\n" for r in fraction(requests, share, seed))
                for window in a.windows.split(","):
                    row = leads(path, window)
                    every += row
                    print(f"{share:5.2f} {seed:5} {window:>7} " + "".join(f"{x:+8.2f}" for x in row), flush=True)
    behind = [x for x in every if x < -0.1]
    print(f"{len(every)} cases: mean {sum(every) / len(every):+.2f} points, {len(behind)} more than 0.1 behind: "
          + (", ".join(f"{x:+.2f}" for x in sorted(behind)) or "none"))


main()
