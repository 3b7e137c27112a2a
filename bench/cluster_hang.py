#!/usr/bin/env python3
"""Time to the first token with a remote that hangs for a minute, compared with a server that
recomputes.

  bench/cluster_hang.py MODEL [--requests 40] [--words 250] [--hang 60]

A proxy withholds the Redis's answers for --hang seconds from the first request on. Then it lets
answers pass for a while so that the servers fetch again, and so on. The Redis has the state of each
prompt, and no server's store has it. Each prompt goes to a server with the remote and to a server
without, in alternating order. Prints the p50 and p99 of both servers, and the outcomes of the
fetches. The goal is a p99 of at most 1.2 times that of recomputing."""
import argparse
import statistics
import time

from cluster_rig import Hanging, Redis, Server, fill, until, words

p = argparse.ArgumentParser()
p.add_argument("model")
p.add_argument("--requests", type=int, default=40)
p.add_argument("--words", type=int, default=250)
p.add_argument("--hang", type=float, default=60)
a = p.parse_args()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    redis = Redis()
    prompts = [words(i, a.words) for i in range(a.requests)]
    fill(redis, a.model, prompts)
    proxy = Hanging(redis.port)
    remote = Server(a.model, "--remote", redis.url(proxy.port), "--no-reuse")
    alone = Server(a.model, "--no-reuse")
    remote.shares()
    for s in (remote, alone):
        s.ask("The first request of a server finds its memory new. " * 20)
    times = {"remote": [], "recompute": []}
    hangs_since = None
    for i, prompt in enumerate(prompts):
        now = time.monotonic()
        if hangs_since is None or now - hangs_since > a.hang:
            proxy.hangs = False
            until("coming back", lambda: remote.tier()["up"])
            proxy.hangs, hangs_since = True, time.monotonic()
        arms = [("remote", remote), ("recompute", alone)]
        for name, s in arms if i % 2 == 0 else arms[::-1]:
            times[name].append(s.ask(prompt)["timings"]["ttft_ms"])
    proxy.hangs = False
    for name, values in times.items():
        print(f"{name}: first token p50 {statistics.median(values):.0f} ms, p99 {percentile(values, 0.99):.0f} ms")
    p50, p99 = (f(times["remote"]) / f(times["recompute"]) for f in (statistics.median, lambda v: percentile(v, 0.99)))
    print(f"remote / recompute: p50 {p50:.2f}, p99 {p99:.2f}; fetches missed: {remote.tier()['misses_by_reason']}")


main()
