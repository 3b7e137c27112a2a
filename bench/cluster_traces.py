#!/usr/bin/env python3
"""Hits of two servers behind HAProxy with half of the capacity each, compared with one server with
all of the capacity.

  bench/cluster_traces.py mooncake conversation_trace.jsonl [--requests 1000] [--capacity 512]
  bench/cluster_traces.py agents agents.jsonl [--requests 1000]

The requests of a trace are sent one after another, in the trace's order, and get one token as an
answer. One chunk of 64 tokens stands for a block of 512 tokens of the trace. So contexts of 131,072
tokens have 16,384 tokens here: the same chunks are stored and found, and an eighth of the tokens is
computed. Longer contexts are cut at that length. Blocks of the same number have the same tokens.
Agents' requests have their session in X-Conversation. Mooncake's have no session and are routed by
their beginning. The model has two layers (the shape tiny-mha, random weights). Each arm has a Redis
with all of the capacity; --redis 0 leaves it out. Nothing is kept on the device. Prints the share
of prompt tokens whose state was found. The goal: two servers find 0.95 of the tokens that one
finds."""
import argparse
import json
import os
import random
import subprocess

from cluster_rig import PROGRAM, Redis, Server, children, folder, free_port, request, until

HERE = os.path.dirname(os.path.abspath(__file__))
CHUNK, BLOCK, MOST = 64, 512, 16384

p = argparse.ArgumentParser()
p.add_argument("kind", choices=("mooncake", "agents"))
p.add_argument("trace")
p.add_argument("--requests", type=int, default=1000)
p.add_argument("--capacity", type=int, default=512, help="capacity of all stores together, in MiB")
p.add_argument("--redis", type=int, help="maxmemory of the Redis, in MiB; the capacity by default")
a = p.parse_args()


def model():
    """Makes a model of two layers with a context of 16,384 tokens and some more for an answer.
    Returns its folder and the size of its vocabulary."""
    to = folder()
    subprocess.run([PROGRAM, "model", "synth", "--shape", "tiny-mha", "--layers", "2", "--dtype",
                    "bf16", "--out", to], check=True, stdout=subprocess.DEVNULL)
    path = os.path.join(to, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["max_position_embeddings"] = MOST + CHUNK
    with open(path, "w") as f:
        json.dump(config, f)
    return to, config["vocab_size"]


def blocks_of(line):
    """Returns the names of a request's blocks of 512 tokens."""
    if a.kind == "mooncake":
        return line["hash_ids"]
    ids = [i for first, last in line["blocks"] for i in range(first, last + 1)]
    return [(line["session"], i) for i in ids[BLOCK // CHUNK - 1::BLOCK // CHUNK]]


def requests(vocabulary):
    """Returns the prompts as token ids, and their sessions."""
    out, first = [], 3  # ids below 3 are special tokens
    with open(a.trace) as f:
        for text in f:
            line = json.loads(text)
            ids = []
            for block in blocks_of(line)[:MOST // CHUNK]:
                rng = random.Random(str(block))
                ids += [rng.randrange(first, vocabulary) for _ in range(CHUNK)]
            if ids:
                out.append((line.get("session"), ids + [first]))
            if len(out) == a.requests:
                return out
    return out


def arm(path, prompts, n_servers):
    """Returns the share of prompt tokens that were found."""
    redis_mib = a.capacity if a.redis is None else a.redis
    redis = Redis("--maxmemory", f"{redis_mib}mb", "--maxmemory-policy", "volatile-lru") if redis_mib > 0 else None
    remote = ("--remote", redis.url()) if redis else ()
    servers = [Server(path, "--no-reuse", "--plan", "kv", "--dram", "0", "--kv-tokens", "20000",
                      "--store-cap", f"{a.capacity // n_servers}M", *remote) for _ in range(n_servers)]
    port = free_port()
    # haproxy.cfg has three servers, so servers are repeated
    spare = [servers[i % n_servers].port for i in range(3)]
    proxy = subprocess.Popen(["haproxy", "-db", "-f", os.path.join(HERE, "..", "examples", "cluster", "haproxy.cfg")],
                             env={**os.environ, "HCACHE_LISTEN": f"127.0.0.1:{port}",
                                  **{f"HCACHE_{i + 1}": f"127.0.0.1:{spare[i]}" for i in range(3)}},
                             stderr=subprocess.DEVNULL)
    children.append(proxy)
    until("the balancer", lambda: healthy(port))
    if redis:
        for s in servers:
            s.shares()
    found = asked = from_redis = 0
    for session, ids in prompts:
        r = request(port, "POST", "/v1/completions", {"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True},
                    {"X-Conversation": session} if session else {})
        asked += len(ids)
        found += r["usage"]["prompt_tokens_details"]["cached_tokens"]
        from_redis += r["timings"]["remote_tokens"]
    for c in (proxy, *(s.p for s in servers), *([redis.p] if redis else [])):
        c.kill()
        c.wait()
    print(f"{n_servers} server{'s' if n_servers > 1 else ''} of {a.capacity // n_servers} MiB, Redis of {redis_mib} MiB: "
          f"{found / asked:.3f} of {asked} tokens found, {from_redis / asked:.3f} came from the Redis", flush=True)
    return found / asked


def healthy(port):
    try:
        request(port, "GET", "/v1/models")
        return True
    except (OSError, RuntimeError):
        return False


def main():
    path, vocabulary = model()
    prompts = requests(vocabulary)
    print(f"{len(prompts)} requests, {sum(len(ids) for _, ids in prompts)} tokens")
    one, two = arm(path, prompts, 1), arm(path, prompts, 2)
    print(f"two servers find {two / one:.3f} of what one finds")


main()
