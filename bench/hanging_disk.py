#!/usr/bin/env python3
"""Time to the first token of stored prompts on a disk that hangs, compared with recomputing them.

  bench/hanging_disk.py [MODEL] [--tokens 900] [--rounds 5] [--build build/release]

Each round has three requests, whose prompts were restored before. First the disk answers. Then the
disk hangs from the first read of the restore on, and recomputation races the reads. Last, a server
without a store recomputes the same prompt. The disk hangs for longer than the request takes. The
goal is at most 1.2 times the time of recomputation (medians of the rounds)."""
import argparse
import os
import shutil
import statistics
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("model", nargs="?", default="synth:bench-220m")
ap.add_argument("--tokens", type=int, default=900)
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--build", default=os.path.join(here, "../build/release"))
a = ap.parse_args()
os.environ.setdefault("HCACHE_BUILD", a.build)
sys.path.insert(0, os.path.join(here, "../tests/e2e"))
from hanging import build_library  # noqa: E402
from serve_client import Server, until  # noqa: E402


def first_token_ms(server, seed):
    """Returns (time to first token, cached tokens)."""
    ids = [3 + (i * i * 7 + seed * 31) % 400 for i in range(a.tokens)]
    r = server.complete(ids, max_tokens=1, ignore_eos=True)
    return r["timings"]["ttft_ms"], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def stalls(server):
    return [server.metric(f'hcache_restore_stalls_total{{end="{e}"}}') for e in ("read", "recomputed", "left")]


def measure(tmp):
    at, context = os.path.join(tmp, "hangs"), ("--no-reuse", "--max-context", str(a.tokens + 64))
    computing = Server(a.model, *context)
    server = Server(a.model, "--store", os.path.join(tmp, "s"), *context,
                    env={"LD_PRELOAD": build_library(tmp), "HANG": at})
    rows = []
    for i in range(a.rounds):
        first_token_ms(server, i)
        server.post("/v1/cache/flush", {})
        if not until(lambda: first_token_ms(server, i)[1] > 0):
            sys.exit("nothing is restored: recomputing is believed to be faster")
        restored = first_token_ms(server, i)[0]
        recomputed = first_token_ms(computing, i)[0]
        before = stalls(server)
        open(at, "w").close()
        hung = first_token_ms(server, i)[0]
        raced = stalls(server)[1] - before[1]
        os.remove(at)
        until(lambda: first_token_ms(server, i)[1] > 0)  # waits until the late reads have ended
        again = first_token_ms(computing, i)[0]
        rows.append((restored, (recomputed + again) / 2, hung))
        print(f"round {i}: restored {restored:.1f} ms, recomputed {recomputed:.1f} and {again:.1f} ms, "
              f"the disk hangs {hung:.1f} ms{'' if raced else ' (not raced)'}", flush=True)
    server.stop()
    computing.stop()
    return rows


folder = tempfile.mkdtemp(prefix="hcache-hanging.", dir="/var/tmp")
try:
    result = measure(folder)
finally:
    shutil.rmtree(folder)
kept, computed, hangs = (statistics.median(column) for column in zip(*result))
ratio = statistics.median(h / c for _, c, h in result)
print(f"medians: restored {kept:.1f} ms, recomputed {computed:.1f} ms, the disk hangs {hangs:.1f} ms: "
      f"{ratio:.2f} times recomputation (goal: 1.2)")
