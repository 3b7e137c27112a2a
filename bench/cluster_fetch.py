#!/usr/bin/env python3
"""Fetches from a Redis on loopback: their bandwidth as a share of that of GETs of the same values.

  bench/cluster_fetch.py MODEL [--words 1000] [--contexts 4] [--rounds 3] [--store disk|memory]
                         [--store-cap 1G] [--idle 5]

One server writes some contexts. In each round a new server with an empty store fetches them one
after another. The limit is a client that does nothing else: it reads the same values with pipelined
GETs into memory that it has used before. `fetch` is the time from the start of the look-up to the
commit in the server's own store. A server's first context is listed separately, because its store
and its memory are new then. --idle is the number of seconds that each server is left alone before
its first fetch. Prints medians."""
import argparse
import re
import socket
import statistics
import time

from cluster_rig import Redis, Server, command, fill, until, words

p = argparse.ArgumentParser()
p.add_argument("model")
p.add_argument("--words", type=int, default=1000)
p.add_argument("--contexts", type=int, default=4)
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--store", choices=("disk", "memory"), default="disk")
p.add_argument("--store-cap", default="")
p.add_argument("--idle", type=float, default=0)
a = p.parse_args()

FETCHED = re.compile(r"(\d+) of (\d+) chunks came from the remote in ([0-9.]+) ms")


def ceiling(redis, keys, room):
    """Returns bytes per second of all values with pipelined GETs."""
    with socket.create_connection(("127.0.0.1", redis.port)) as s:
        t, got, need = time.monotonic(), 0, sum(n for _, n in keys)
        s.sendall(b"".join(command("GET", k) for k, _ in keys))
        while got < need:  # the headers between the values add a few bytes
            n = s.recv_into(room, len(room))
            if n == 0:
                raise RuntimeError("the Redis has closed the connection")
            got += n
        return need / (time.monotonic() - t)


def measure(redis, prompts, keys, room):
    options = ("--remote", redis.url(), "--plan", "kv", "--no-reuse", "-v", "--remote-timeout", "600",
               *(("--store-cap", a.store_cap) if a.store_cap else ()))
    s = Server(a.model, *options, store="memory" if a.store == "memory" else None)
    s.shares()
    time.sleep(a.idle)
    out = []
    for prompt in prompts:
        before, n_log = s.tier(), len(s.log)
        t = s.ask(prompt)["timings"]
        after = s.tier()
        found = []
        until("a line of the log", lambda: found.extend(FETCHED.findall("".join(s.log[n_log:]))) or found)
        n_bytes = after["fetched_bytes"] - before["fetched_bytes"]
        out.append((n_bytes / (float(found[0][2]) * 1e-3), n_bytes, after["round_trips"] - before["round_trips"],
                    t["ttft_ms"], t["remote_tokens"]))
    s.stop()
    raw = ceiling(redis, keys, room)
    return out, raw


def main():
    redis = Redis()
    prompts = [words(i, a.words) for i in range(a.contexts)]
    fill(redis, a.model, prompts)
    keys = [(k, redis.ask("STRLEN", k)) for k in redis.ask("KEYS", "hcache:1:chunk:*")]
    room = bytearray(4 << 20)
    print(f"{len(keys)} chunks of {keys[0][1]} bytes, {a.contexts} contexts, store: {a.store}")
    firsts, laters, raws = [], [], []
    for i in range(a.rounds):
        got, raw = measure(redis, prompts, keys, room)
        firsts.append(got[0][0] / raw)
        laters += [g[0] / raw for g in got[1:]]
        raws.append(raw)
        print(f"round {i + 1}: GET {raw / 1e6:.0f} MB/s; fetch {' '.join(f'{g[0] / 1e6:.0f}' for g in got)} MB/s of "
              f"{got[0][1] / 1e6:.1f} MB each; round trips {[g[2] for g in got]}; first tokens "
              f"{' '.join(f'{g[3]:.0f}' for g in got)} ms")
    print(f"GET {statistics.median(raws) / 1e6:.0f} MB/s; share of it: first context {statistics.median(firsts):.2f}, "
          f"later ones {statistics.median(laters):.2f}")


main()
