#!/usr/bin/env python3
"""The gain of copies in DRAM and reading ahead to one server, against --dram 0, --prefetch off and
--plan recompute.

  bench/tier_figures.py MODEL pair       the second of two requests: how much of its load is hidden
                                         behind the first, and the first's time between tokens;
  bench/tier_figures.py MODEL beside     the cost to the first request of reading ahead for a second
                                         one: time between its tokens, on two servers that take
                                         turns, so that other work hits both
  bench/tier_figures.py MODEL floor      the same while another program reads the disk as fast (fio, 1 MiB
                                         at a time, past the page cache): a cost that no server can avoid
  bench/tier_figures.py MODEL turns      later turns of conversations, against recomputing them
  bench/tier_figures.py MODEL documents  documents with six tasks each (AttentionStore, figures 25
                                         and 26)
  bench/tier_figures.py MODEL zero       the cost of a tier to requests that find nothing: time
                                         between tokens, saving on, and processor time

Arms take turns in each round, in another order each time.  Nothing is kept on the device
(--no-reuse). Prints medians."""
import argparse
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time

from one_server import Server, by_turns, median, tokens

a = argparse.ArgumentParser()
a.add_argument("model")
a.add_argument("what", choices=("pair", "beside", "floor", "turns", "documents", "zero"))
a.add_argument("--program", default="build/hcache")
a.add_argument("--tokens", type=int, default=1024)
a.add_argument("--answer", type=int, default=64)
a.add_argument("--rounds", type=int, default=3)
a.add_argument("--throttle", default="0", help="speed of the disk's reads, in bytes per second; 0: no limit")
a.add_argument("--dram", default="1G")
a.add_argument("--floor-bytes", type=float, default=21.3e6, help="bytes that `floor` reads in the time of an answer")
a.add_argument("--vocabulary", type=int, default=8000)
a.add_argument("--threads", help="number of compute threads; by default one per processor")
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
                "dram": out[1]["dram_tokens"] if out[1] else 0}
    r = by_turns(["on", "off", "alone", "alone again"], a.rounds, run)
    on, off = median(r["on"], "load"), median(r["off"], "load")
    print(f"the second's load: {off:.1f} ms without reading ahead, {on:.1f} ms with it: {1 - on / off:.1%} hidden "
          f"({median(r['on'], 'dram'):.0f} tokens from DRAM)")
    alone = median(r["alone"], "first")
    for arm in ("alone again", "off", "on"):
        print(f"the first's time between tokens, {arm}: {median(r[arm], 'first'):.2f} ms, alone {alone:.2f}: "
              f"{median(r[arm], 'first') / alone - 1:+.1%}")


def print_ratios(what, xs, ys):
    """Prints the ratios of two arms' rounds, and a 95 % interval of their median (from its ranks)."""
    x, y = [r["first"] for r in xs], [r["first"] for r in ys]
    ratios = sorted(p / q for p, q in zip(x, y))
    n = len(ratios)
    reach = int(0.98 * n ** 0.5) + 1
    low, high = ratios[max(0, n // 2 - reach)], ratios[min(n - 1, (n - 1) // 2 + reach)]
    print(f"{what}: median {statistics.median(ratios):.3f} (95 %: {low:.3f} to {high:.3f}; {n} rounds); medians "
          f"{statistics.median(x):.2f} and {statistics.median(y):.2f} ms, minima {min(x):.2f} and {min(y):.2f} ms")


def beside(folder):
    # Each round has a second request of its own, because a context that DRAM holds already is not
    # read.
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
        return {"first": out[0]["per_token_ms"], "dram": second["dram_tokens"],
                "load": second["restore_ms"]}
    r = by_turns(["on", "off"], a.rounds, run)
    for s in servers.values():
        s.stop()
    on, off = median(r["on"], "load"), median(r["off"], "load")
    print(f"the second's load: {off:.1f} ms without reading ahead, {on:.1f} ms with it: {1 - on / off:.1%} hidden")
    print(f"{median(r['on'], 'dram'):.0f} tokens from DRAM")
    print_ratios("the first's time between tokens, reading ahead for the second over not", r["on"], r["off"])


def floor(folder):
    # As fast as `beside` reads: the context's bytes in the time of one answer.
    s = server("--max-sequences", "1", "--dram", "0")
    prompt, disk = ids(0, a.tokens), folder + "-fio"
    s.ask(prompt, a.answer)
    rate = a.floor_bytes / (s.ask(prompt, a.answer)["per_token_ms"] * a.answer / 1e3)
    fio = ["fio", "--name=read", f"--filename={disk}", "--size=512M", "--rw=read", "--bs=1M", "--direct=1",
           "--ioengine=io_uring", "--iodepth=4"]
    subprocess.run(fio, check=True, stdout=subprocess.DEVNULL)  # makes the file

    def run(arm, _):
        if arm == "alone":
            return {"first": s.ask(prompt, a.answer)["per_token_ms"]}
        with subprocess.Popen(fio + [f"--rate={rate:.0f}", "--time_based", "--runtime=600"],
                              stdout=subprocess.DEVNULL) as p:
            time.sleep(1)
            try:
                return {"first": s.ask(prompt, a.answer)["per_token_ms"]}
            finally:
                p.send_signal(signal.SIGINT)
    r = by_turns(["fio", "alone"], a.rounds, run)
    s.stop()
    print_ratios(f"the first's time between tokens, beside fio at {rate / 1e6:.0f} MB/s over alone", r["fio"], r["alone"])


def ttft_of(arm, folder, histories, requests):
    """Returns the times to first token in ms, of requests behind histories that one server
    restores, or that another server recomputes."""
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
            before = sum(s.processor_s())
            t = [s.ask(ids(5000 + 10 * i + k, a.tokens), a.answer) for k in range(3)]
            used = sum(s.processor_s()) - before
            s.stop()
        return {"processor": 1e3 * used, **{key: statistics.median(x[key + "_ms"] for x in t) for key in ("per_token", "prefill")}}
    r = by_turns(["dram", "0", "0 again"], a.rounds, run)
    for key in ("per_token", "prefill", "processor"):
        base = median(r["0"], key)
        print(f"{key}: --dram 0 {base:.2f} ms; again {median(r['0 again'], key) / base - 1:+.1%}; --dram {a.dram} "
              f"{median(r['dram'], key) / base - 1:+.1%}")


with tempfile.TemporaryDirectory(prefix="tiers.", dir="/var/tmp") as tmp:
    {"pair": pair, "beside": beside, "floor": floor, "turns": turns, "documents": documents, "zero": zero}[a.what](os.path.join(tmp, "store"))
