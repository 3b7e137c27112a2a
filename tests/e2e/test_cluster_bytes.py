"""Equal keys have equal bytes in a server's store, in the Redis, and on a server that computes them
again; tools/cluster_bytes.py detects a single different bit."""
import os
import sys
import tempfile

HERE = os.path.dirname(__file__)
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
from redis_proxy import Redis, is_installed  # noqa: E402
from serve_client import Server, until  # noqa: E402
from tap import check, end, equal, skip  # noqa: E402
import cluster_bytes  # noqa: E402

MODEL = "models/demo"
TEXT = "My dog is called Biscuit, and he sleeps in the sun until noon. " * 12


def remote(s):
    return next(t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"] if t["name"] == "remote")


def shared(redis, tmp):
    """Runs two servers: the second one fetches the state that the first one has computed, and
    continues."""
    stores = []
    for name, question in (("a", ""), ("b", "What does he do then?")):
        stores.append(os.path.join(tmp, name))
        s = Server(MODEL, "--store", stores[-1], "--no-reuse", "--plan", "kv", "--remote", redis.url())
        until(lambda: remote(s)["up"] and remote(s)["servers"] > 0)
        status, _, r = s.post("/v1/completions", {"prompt": TEXT + question, "max_tokens": 80,
                                                  "temperature": 0, "ignore_eos": True})
        equal(f"{name}: an answer", status, 200)
        check(f"{name}: what comes from the Redis", (r["timings"]["remote_tokens"] > 0) == (name == "b"),
              r["timings"])
        s.post("/v1/cache/flush", {})
        until(lambda: remote(s)["queued_chunks"] == 0)
        s.stop()
    return stores


def main():
    with tempfile.TemporaryDirectory(prefix="hcache-bytes.", dir="/var/tmp") as tmp:
        redis = Redis()
        stores = shared(redis, tmp)
        kept = cluster_bytes.Compare()
        n = [kept.add(store, cluster_bytes.of_store(store)) for store in stores]
        n.append(kept.add("the Redis", cluster_bytes.of_redis(redis.port)))
        check("stores and Redis have chunks", min(n) > 3, n)
        check("chains are computed anew", cluster_bytes.compute(kept, MODEL) >= 2)
        check("most chunks are held against another one", kept.n_chunks > len(kept.chunks) > 3, kept.text())
        equal("same key, same bytes", kept.differences, [])

        key = next(k for k, (_, _, index) in kept.chunks.items() if index == 1)
        name = "hcache:1:chunk:" + key.hex()
        last = int(redis.ask("STRLEN", name)) - 1
        flipped = bytes([redis.ask("GETRANGE", name, str(last), str(last))[0] ^ 1])
        redis.ask("SETRANGE", name, str(last), flipped)
        kept.add("the Redis again", cluster_bytes.of_redis(redis.port))
        check("one other bit is seen, and where it is", len(kept.differences) == 1 and
              "layer 3, KV: the Redis again differs" in kept.differences[0], kept.differences)
        redis.stop()


if is_installed():
    main()
else:
    skip("same key, same bytes", "redis-server is not installed")
end()
