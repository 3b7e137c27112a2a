#!/usr/bin/env python3
"""The cost to decodes of writing to a Redis: the time between tokens of a server that writes every
chunk there, compared with a server that saves only into its own store.

  bench/cluster_saving.py MODEL [--batch 4] [--tokens 192] [--rounds 6]

Both servers run all the time. In each round both generate the same load, one after the other, in
alternating order. Prints each server's median time between tokens, and the median of the rounds'
ratios. The goal is a ratio of at most 1.01."""
import argparse
import statistics
import threading

from cluster_rig import Redis, Server, words

p = argparse.ArgumentParser()
p.add_argument("model")
p.add_argument("--batch", type=int, default=4)
p.add_argument("--tokens", type=int, default=192)
p.add_argument("--rounds", type=int, default=6)
a = p.parse_args()


def between_tokens(s, seed):
    """Returns the median over the batch of the mean time between two tokens, in ms."""
    out = []

    def one(i):
        t = s.ask(words(1000 * seed + i, 40), a.tokens)["timings"]
        out.append(t["per_token_ms"])
    threads = [threading.Thread(target=one, args=(i,)) for i in range(a.batch)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return statistics.median(out)


def main():
    redis = Redis()
    arms = {"remote": Server(a.model, "--remote", redis.url(), "--no-reuse", "--plan", "kv"),
            "own store": Server(a.model, "--no-reuse", "--plan", "kv")}
    arms["remote"].shares()
    times = {name: [] for name in arms}
    for s in arms.values():
        between_tokens(s, 0)
    for i in range(a.rounds):
        order = list(arms) if i % 2 == 0 else list(arms)[::-1]
        for name in order:
            times[name].append(between_tokens(arms[name], i + 1))
    arms["remote"].written()
    t = arms["remote"].tier()
    for name, values in times.items():
        print(f"{name}: {statistics.median(values):.2f} ms between tokens")
    ratios = [x / y for x, y in zip(times["remote"], times["own store"])]
    print(f"remote / own store: median {statistics.median(ratios):.3f} of {[f'{r:.3f}' for r in ratios]}; "
          f"{t['written_chunks']} chunks, {t['written_bytes'] / 1e6:.0f} MB were written to the Redis")


main()
