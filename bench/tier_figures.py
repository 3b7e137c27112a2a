#!/usr/bin/env python3
"""The gain of copies in DRAM and reading ahead to one server, against --dram 0, --prefetch off and
--plan recompute.

  bench/tier_figures.py MODEL pair       the second of two requests: how much of its load is hidden
                                         behind the first, and the first's time between tokens;
                                         --dram 0: by staging
  bench/tier_figures.py MODEL beside     the cost to the first request of reading ahead for a second
                                         one: time between its tokens, on two servers that take
                                         turns, so that other work hits both
  bench/tier_figures.py MODEL turns      later turns of conversations, against recomputing them
  bench/tier_figures.py MODEL documents  documents with six tasks each (AttentionStore, figures 25
                                         and 26)
  bench/tier_figures.py MODEL zero       the cost of a tier to requests that find nothing: time
                                         between tokens, saving on

Arms take turns in each round, in another order each time.  Nothing is kept on the device
(--no-reuse). Prints medians."""
import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time

from one_server import Server, by_turns, median, tokens

a = argparse.ArgumentParser()
a.add_argument("model")
a.add_argument("what", choices=("pair", "beside", "turns", "documents", "zero"))
a.add_argument("--program", default="build/hcache")
a.add_argument("--tokens", type=int, default=1024)
a.add_argument("--answer", type=int, default=64)
a.add_argument("--rounds", type=int, default=3)
a.add_argument("--throttle", default="0", help="of the disk's reads, bytes per second")
a.add_argument("--dram", default="1G")
a.add_argument("--vocabulary", type=int, default=8000)
a.add_argument("--threads", help="of compute; by default one per processor")
a = a.parse_args()


def server(*options):
    threads = ("--threads", a.threads) if a.threads else ()
    return Server(a.program, a.model, "--no-reuse", "--max-context", str(a.tokens + 1024), "--throttle", a.throttle,
                  *threads, *options)


def ids(seed, n):
    return tokens(seed, n, a.vocabulary)


def pair(folder):
    prompts = [ids(i, a.tokens) for i in range(2)]
    s = server("--store", folder, "--dram", "0")
    for p in prompts:
        s.ask(p, 1)
    s.flush()
    s.stop()

    def run(arm, _):
        s = server("--store", folder, "--max-sequences", "1", "--dram", a.dram, "--plan", "kv",
                   "--prefetch", "on" if arm == "on" else "off")
        out = [None, None]

        def one(i):
            out[i] = s.ask(prompts[i], a.answer)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(2)]
        threads = threads[:1 if arm.startswith("alone") else 2]
        for t in threads:
            t.start()
            time.sleep(0.005)
        for t in threads:
            t.join()
        s.stop()
        return {"first": out[0]["per_token_ms"], "load": out[1]["restore_ms"] if out[1] else 0,
                "dram": out[1]["dram_tokens"] if out[1] else 0, "staged": out[1]["staged_bytes"] if out[1] else 0}
    r = by_turns(["on", "off", "alone", "alone again"], a.rounds, run)
    on, off = median(r["on"], "load"), median(r["off"], "load")
    print(f"the second's load: {off:.1f} ms without reading ahead, {on:.1f} ms with it: {1 - on / off:.1%} hidden "
          f"({median(r['on'], 'dram'):.0f} tokens from DRAM, {median(r['on'], 'staged') / 1e6:.1f} MB from staging)")
    alone = median(r["alone"], "first")
    for arm in ("alone again", "off", "on"):
        print(f"the first's time between tokens, {arm}: {median(r[arm], 'first'):.2f} ms, alone {alone:.2f}: "
              f"{median(r[arm], 'first') / alone - 1:+.1%}")


def beside(folder):
    # Each round has a second request of its own: a context that DRAM already holds is not read.
    prompts = [ids(i, a.tokens) for i in range(a.rounds + 2)]
    s = server("--store", folder + "-on", "--dram", "0")
    for p in prompts:
        s.ask(p, 1)
    s.flush()
    s.stop()
    shutil.copytree(folder + "-on", folder + "-off")
    servers = {arm: server("--store", f"{folder}-{arm}", "--max-sequences", "1", "--dram", a.dram, "--plan", "kv",
                           "--prefetch", arm) for arm in ("on", "off")}
    for s in servers.values():
        s.ask(prompts[0], a.answer)

    def run(arm, i):
        out = []
        first = threading.Thread(target=lambda: out.append(servers[arm].ask(prompts[0], a.answer)))
        first.start()
        time.sleep(0.02)
        second = servers[arm].ask(prompts[i + 1], 1)
        first.join()
        return {"first": out[0]["per_token_ms"], "staged": second["staged_bytes"], "dram": second["dram_tokens"],
                "load": second["restore_ms"]}
    r = by_turns(["on", "off"], a.rounds, run)
    for s in servers.values():
        s.stop()
    ratios = sorted(x["first"] / y["first"] for x, y in zip(r["on"], r["off"]))
    n = len(ratios)
    on, off = median(r["on"], "load"), median(r["off"], "load")
    print(f"the second's load: {off:.1f} ms without reading ahead, {on:.1f} ms with it: {1 - on / off:.1%} hidden")
    print(f"the first's time between tokens, reading ahead for the second over not: median {statistics.median(ratios):.3f}, "
          f"quartiles {ratios[n // 4]:.3f} and {ratios[3 * n // 4]:.3f} of {n} rounds; medians "
          f"{median(r['on'], 'first'):.2f} and {median(r['off'], 'first'):.2f} ms, minima {min(x['first'] for x in r['on']):.2f} "
          f"and {min(x['first'] for x in r['off']):.2f} ms ({median(r['on'], 'staged') / 1e6:.1f} MB staged, "
          f"{median(r['on'], 'dram'):.0f} tokens from DRAM)")


def ttft_of(arm, folder, histories, requests):
    """Returns times to the first token of requests after histories, in ms: restored by one server,
    or recomputed by another."""
    if arm == "recompute":
        s = server("--plan", "recompute")
    else:
        s = server("--store", folder, "--dram", a.dram)
        for h in histories:
            s.ask(h, 1)
        s.flush()
    out = [s.ask(p, 1)["ttft_ms"] for p in requests]
    s.stop()
    return out


def against_recomputing(name, histories, requests):
    def run(arm, _):
        with tempfile.TemporaryDirectory(prefix="tiers.", dir="/var/tmp") as folder:
            return {"ttft": statistics.median(ttft_of(arm, folder, histories, requests))}
    r = by_turns(["restored", "recompute"], a.rounds, run)
    x, y = median(r["restored"], "ttft"), median(r["recompute"], "ttft")
    print(f"{name}: first token {x:.1f} ms, recomputed {y:.1f} ms: {x / y:.3f}x")


def turns(_):
    histories = [ids(100 + i, a.tokens) for i in range(4)]
    against_recomputing("later turns", histories, [h + ids(900 + i, 40) for i, h in enumerate(histories)])


def documents(_):
    docs = [ids(200 + i, a.tokens) for i in range(2)]
    tasks = [d + ids(1000 + 6 * i + k, 45) for i, d in enumerate(docs) for k in range(1, 6)]
    against_recomputing("tasks 2 to 6 of a document", docs, tasks)


def zero(_):
    def run(arm, i):
        with tempfile.TemporaryDirectory(prefix="tiers.", dir="/var/tmp") as folder:
            s = server("--store", folder, "--dram", a.dram if arm == "dram" else "0")
            t = [s.ask(ids(5000 + 10 * i + k, a.tokens), a.answer) for k in range(3)]
            s.stop()
        return {key: statistics.median(x[key + "_ms"] for x in t) for key in ("per_token", "prefill")}
    r = by_turns(["dram", "0", "0 again"], a.rounds, run)
    for key in ("per_token", "prefill"):
        base = median(r["0"], key)
        print(f"{key}: --dram 0 {base:.2f} ms; again {median(r['0 again'], key) / base - 1:+.1%}; --dram {a.dram} "
              f"{median(r['dram'], key) / base - 1:+.1%}")


with tempfile.TemporaryDirectory(prefix="tiers.", dir="/var/tmp") as tmp:
    {"pair": pair, "beside": beside, "turns": turns, "documents": documents, "zero": zero}[a.what](os.path.join(tmp, "store"))
