#!/usr/bin/env python3
"""Requests that arrive together after a restart: the gain of reading ahead (--prefetch), into DRAM,
or with --dram 0 into staging memory.

  bench/prefetch_figures.py [--requests 32] [--tokens 2048] [--answer 64] [--rounds 2]
  bench/prefetch_figures.py --mixed --throttle 100MB [--requests 32] [--tokens 2048]

The contexts are saved first. Each round starts a server with --prefetch on, and one with it off.
DRAM is empty, one sequence runs at a time, nothing is kept on the device, and keys and values are
read from a throttled disk. The tool measures several shares: for each the throttle is chosen so
that a load takes this share of a request's service time. Prints a line for each run, and for each
share the median time to first token beside that of --prefetch off.

--mixed compares predictions with measured times instead, for contexts whose beginning is in DRAM
and whose end is on the disk."""
import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time

from one_server import Server

a = argparse.ArgumentParser()
a.add_argument("--program", default="build/hcache")
a.add_argument("--model", default="synth:bench-220m")
a.add_argument("--requests", type=int, default=32)
a.add_argument("--tokens", type=int, default=2048)
a.add_argument("--answer", type=int, default=64)
a.add_argument("--rounds", type=int, default=2)
a.add_argument("--shares", default="0.1,0.9,3.0", help="shares of a request's service time that its load takes")
a.add_argument("--dram", default="2G")
a.add_argument("--keep", help="a folder that keeps the contexts for the next run")
a.add_argument("--mixed", action="store_true", help="compare predictions for contexts that lie in DRAM and on the disk")
a.add_argument("--throttle", default="400MB", help="speed of the disk for --mixed, in bytes per second")
a.add_argument("--plan", default="kv", help="plan of the restores for --mixed: auto, kv, ...")
a = a.parse_args()


def server(*options):
    return Server(a.program, a.model, "--no-reuse", "--plan", a.plan, "--max-context", str(a.tokens + 2 * a.answer),
                  *options)


def prompt_of(i):
    return [10 + (i * 7919 + k * 104729 + k * k * 31) % 8000 for k in range(a.tokens)]


def at_once(s, prompts):
    """Returns the timings of requests that are sent together, in the order of sending."""
    out = [None] * len(prompts)

    def one(i):
        out[i] = s.ask(prompts[i], a.answer)
    threads = []
    for i in range(len(prompts)):
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
        time.sleep(0.003)  # so that the requests arrive in this order
    for t in threads:
        t.join()
    return out


def mixed(prompts):
    """Makes contexts whose beginning only is in DRAM, and restores them. A request for a beginning
    waits behind another request, so the beginning is read ahead. Then the whole context is
    requested."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="prefetch.", dir="/var/tmp") as folder:
        s = server("--store", folder, "--max-sequences", "2", "--dram", "0")
        for p in prompts:
            s.ask(p, 1)
        s.flush()
        s.stop()
        s = server("--store", folder, "--max-sequences", "1", "--throttle", a.throttle, "--dram", a.dram)
        for i, p in enumerate(prompts):
            n = 64 * (5 + i * 7 % (len(p) // 64 - 6)) + 1
            occupier = threading.Thread(target=s.ask, args=(prompt_of(1000 + i)[:200], a.answer))
            occupier.start()
            time.sleep(0.05)
            s.ask(p[:n], 1)
            occupier.join()
            t = s.ask(p, 1)
            if t["restore_source"] == "dram+disk":
                rows.append((t["dram_tokens"], t["restored_tokens"], t["restore_plan"]["predicted_ms"], t["restore_ms"]))
        s.stop()
    for r in rows[:10]:
        print("  %d of %d tokens in DRAM: predicted %.1f ms, took %.1f" % r, flush=True)
    errors = sorted(abs(r[2] / r[3] - 1) for r in rows)
    if errors:
        print(f"{len(rows)} restores from both tiers: error of the prediction, median {statistics.median(errors):.1%}, p95 "
              f"{errors[int(len(errors) * 0.95)]:.1%}")


if a.mixed:
    mixed([prompt_of(i) for i in range(a.requests)])
    raise SystemExit

tmp = a.keep or tempfile.mkdtemp(prefix="prefetch.", dir="/var/tmp")
is_saved = os.path.exists(os.path.join(tmp, "store"))
store = ["--store", os.path.join(tmp, "store")]
prompts = [prompt_of(i) for i in range(a.requests)]
if not is_saved:
    s = server(*store, "--max-sequences", "2", "--dram", "0")
    for p in prompts:
        s.ask(p, 1)
    s.flush()
    s.stop()
s = server(*store, "--max-sequences", "1", "--dram", "0")
probe = at_once(s, prompts[:6])[1:]
compute_s = statistics.median(t["decode_ms"] + t["prefill_ms"] for t in probe) * 1e-3
load_bytes = probe[-1]["restore_bytes"]
s.stop()
print(f"{a.requests} requests of {a.tokens} tokens, {a.answer} to answer: service without load {compute_s:.2f} s, "
      f"{load_bytes / 1e6:.1f} MB each (probes: " +
      ", ".join(f"{t['decode_ms'] + t['prefill_ms']:.0f}" for t in probe) + " ms)", flush=True)
for share in [float(x) for x in a.shares.split(",")]:
    rate = int(load_bytes / (compute_s * share))
    median = {"on": [], "off": []}
    for _ in range(a.rounds):
        for mode in ("on", "off"):
            begin = time.monotonic()
            s = server(*store, "--max-sequences", "1", "--max-queue", "256", "--dram", a.dram, "--prefetch", mode,
                       "--throttle", str(rate))
            start_s, before = time.monotonic() - begin, s.processor_s()
            t = at_once(s, prompts)
            used = [x - y for x, y in zip(s.processor_s(), before)]
            ttft = statistics.median(x["ttft_ms"] for x in t) * 1e-3
            median[mode].append(ttft)
            print(f"  load/service {share}, {rate / 1e6:.0f} MB/s, prefetch {mode}: median TTFT {ttft:.2f} s, from DRAM "
                  f"{sum(x['dram_tokens'] for x in t)} of {sum(x['restored_tokens'] for x in t)} tokens, never used "
                  f"{s.metric('dram_promotions_unused_total'):.0f}, no room {s.metric('dram_full_total'):.0f}; processor time "
                  f"{used[0]:.1f} s and the system's {used[1]:.1f} s; started in {start_s:.1f} s", flush=True)
            s.stop()
    on, off = statistics.median(median["on"]), statistics.median(median["off"])
    print(f"load/service {share}: prefetch on / off = {on / off:.2f}", flush=True)
if not a.keep:
    shutil.rmtree(tmp)
