"""Compares turns whose state comes back from an encrypted and packed store with the same turns of a
server without a store, while the server is killed and bits of its store are flipped:

    tools/restore_campaign.py build/release [--turns N] [--seed N] [--model qwen3.5]

A family of tests/model/golden/families that has recurrent layers, such as qwen3.5 or
granite-h-dense, names a model of random weights (tests/e2e/hybrid_model.py). Each turn continues
one of many contexts, which are up to --words long and begin like others. Its text and the
log-probabilities of its tokens must equal those of the other server, digit for digit; half of the servers also reuse what the device has. Between kills
a few bits of the chunks or of the index are flipped: damage is a miss. Prints how many turns were compared, how many had restored state, and
how many differed."""
import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading

p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
p.add_argument("build")
p.add_argument("--turns", type=int, default=10000)
p.add_argument("--contexts", type=int, default=400)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--clients", type=int, default=4)
p.add_argument("--words", type=int, default=260)
p.add_argument("--model", default="demo")
args = p.parse_args()
os.environ["HCACHE_BUILD"] = args.build
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from hybrid_model import write_hybrid_model  # noqa: E402
from serve_client import Server  # noqa: E402

rng = random.Random(args.seed)
tmp = tempfile.mkdtemp(prefix="hcache-campaign.")
store = os.path.join(tmp, "store")
MODEL = os.path.join(ROOT, "models", "demo") if args.model == "demo" else write_hybrid_model(os.path.join(tmp, "model"), args.model)
env = {"HCACHE_STORE_SECRET": f"{rng.getrandbits(256):064x}"}
words = "bird tree song river little green morning happy told friend dog rain garden blue under went".split()
contexts = [" ".join(rng.choice(words) for _ in range(rng.randrange(90, args.words))) for _ in range(args.contexts)]
for i in range(1, args.contexts, 3):  # a branch, at any place of another context
    contexts[i] = contexts[i - 1][:rng.randrange(len(contexts[i - 1]))] + " " + contexts[i]
lock = threading.Lock()
n = {"turns": 0, "restored": 0, "differ": 0, "lost": 0, "kills": 0, "flips": 0}


def ask(server, prompt):
    status, _, r = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, "temperature": 0,
                                                   "logprobs": 2})
    if status != 200:
        raise ConnectionError(status)
    c = r["choices"][0]
    return (c["text"], json.dumps(c["logprobs"], sort_keys=True)), r["timings"].get("restored_tokens", 0)


def each(items, work):
    """Runs work(item) for all items in several threads."""
    todo = list(items)

    def go():
        while True:
            with lock:
                if not todo:
                    return
                item = todo.pop()
            work(item)
    threads = [threading.Thread(target=go) for _ in range(args.clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def turn(server, i):
    try:
        got, restored = ask(server, contexts[i])
    except (OSError, ValueError, KeyError):  # the server was killed meanwhile
        with lock:
            n["lost"] += 1
        return
    with lock:
        n["turns"] += 1
        n["restored"] += restored > 0
        if got != reference[i]:
            n["differ"] += 1
            print(f"context {i} differs: {got} instead of {reference[i]}", flush=True)


def flip():
    """Flips up to four bits of the store's files."""
    names = [f for f in sorted(os.listdir(store)) if f.startswith("seg-") or f in ("index.db", "index.db-wal")]
    for _ in range(rng.randrange(5)):
        path = os.path.join(store, rng.choice(names))
        size = os.path.getsize(path)
        if size == 0:
            continue
        with open(path, "r+b") as f:
            f.seek(at := rng.randrange(size))
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1 << rng.randrange(8)]))
        n["flips"] += 1


reference = {}
alone = Server(MODEL, "--dtype", "bf16")
each(range(args.contexts), lambda i: reference.__setitem__(i, ask(alone, contexts[i])[0]))
alone.stop()
while n["turns"] < args.turns:
    server = Server(MODEL, "--store", store, "--store-key", "env", "--pack", "on", "--plan",
                    rng.choice(["kv", "hidden", "auto"]), "--dtype", "bf16", "--store-cap", "1G", "--dram",
                    rng.choice(["0", "32M"]), *rng.choice([[], ["--no-reuse"]]), env=env)
    killer = threading.Timer(rng.uniform(0.3, 5), server.p.kill) if rng.randrange(2) else None
    if killer:
        killer.start()
    each([rng.randrange(args.contexts) for _ in range(min(400, args.turns))], lambda i: turn(server, i))
    if killer:
        killer.cancel()
    server.kill()
    n["kills"] += 1
    flip()
    print(n, flush=True)
shutil.rmtree(tmp, ignore_errors=True)
sys.exit(n["differ"] != 0)
