"""kill -9 at a random moment of a saving run, many times.

There is one store per model, kept through all cycles; two of four are encrypted.  A cycle is:
  1. a run with a fresh prompt that ends by itself and reports committed_tokens;
  2. a run that continues that conversation and is killed at a random moment;
  3. the same run again, to its end.
The third run must print exactly the tokens and the logits digest of a run without a store, and must
find at least what run 1 reported as committed.  `store verify` must find nothing bad.

KILL_CYCLES (50) and KILL_SECONDS (60, at least 10 cycles are run) bound the work."""
import json
import os
import random
import signal
import subprocess
import sys
import time

from tap import HC, PATIENCE, scratch

CYCLES = int(os.environ.get("KILL_CYCLES", "50"))
SECONDS = float(os.environ.get("KILL_SECONDS", "60"))
SEED = int(os.environ.get("KILL_SEED", "1"))
TRAINED = "models/demo"

# name, context in tokens
models = [("synth:tiny-gqa", 2048), ("synth:tiny-mha", 2048), (TRAINED, 512), ("synth:tiny-hybrid", 2048)]
tmp = scratch("kill")
rng = random.Random(SEED)
os.environ["HCACHE_STORE_SECRET"] = "%064x" % rng.getrandbits(256)
failures = []
latest = [1.0]  # latest moment of a kill, as a fraction of the time of a run without a store


def command(model, prompt, max_tokens, store, save="both"):
    path = os.path.join(tmp, "prompt.ids")
    with open(path, "w") as f:
        f.write(" ".join(map(str, prompt)))
    cmd = [HC, "run", model, "--token-ids", path, "--max-tokens", str(max_tokens), "--temperature", "0",
           "--ignore-eos", "--json"]
    key = ["--store-key", "env"] if store and "sealed" in store else []
    return cmd + (["--store", store, "--save", save, *key] if store else [])


def run(cmd):
    p = subprocess.run(cmd, capture_output=True, text=True, timeout=PATIENCE)
    if p.returncode != 0:
        raise RuntimeError(f"status {p.returncode}: {' '.join(cmd)}\n{p.stderr[-500:]}")
    return json.loads(p.stdout)


def fail(cycle, what):
    failures.append(f"cycle {cycle}: {what}")
    print(f"# cycle {cycle}: {what}")


def cycle(number):
    model, context = models[number % len(models)]
    name = "sealed" if number % len(models) >= 2 else "store"
    stores = [os.path.join(tmp, f"{name}{number % len(models)}{d}") for d in "ab"[:1 + number % len(models) % 2]]
    store = ",".join(stores)
    prompt = [rng.randrange(3, 500) for _ in range(rng.randrange(70, context // 4))]
    first = run(command(model, prompt, 20, store))
    committed = first["committed_tokens"]
    longer = prompt + first["token_ids"] + [rng.randrange(3, 500) for _ in range(context // 8)]
    max_tokens = min(200, context - len(longer))
    save = rng.choice(["both", "hidden", "kv", "auto"])
    started = time.time()
    reference = run(command(model, longer, max_tokens, None))
    alone_s = time.time() - started

    victim = subprocess.Popen(command(model, longer, max_tokens, store, save), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0, latest[0]) * alone_s)
    victim.send_signal(signal.SIGKILL)
    said = victim.communicate()[0]
    was_killed = victim.returncode == -signal.SIGKILL
    # A killed run that restores is quicker than the run before it, and the machine may be less busy
    # now. So the latest moment is adapted.
    latest[0] = min(latest[0] * 1.5, 1) if was_killed else latest[0] * 0.5
    # the run ended before the kill and has reported its committed tokens
    if said and not was_killed:
        committed = max(committed, json.loads(said)["committed_tokens"])

    again = run(command(model, longer, max_tokens, store, save))
    if again["token_ids"] != reference["token_ids"]:
        fail(number, "other tokens than without a store")
    if again["logits_digest"] != reference["logits_digest"]:
        fail(number, "other logits than without a store")
    # If a prompt ends with a full chunk, that chunk is computed again, because at least one token
    # must be computed.
    floor = min(committed, len(longer) - 1) // 64 * 64
    # (If computing is quicker than reading this machine's disk, the chunks are found but not used,
    # and `miss` says so.)
    if again["cached_tokens"] < floor and "recomputing" not in again["miss"]:
        fail(number, f"{committed} tokens were reported committed, {again['cached_tokens']} were found")
    env = dict(os.environ, HCACHE_STORE_KEY="env") if name == "sealed" else None
    p = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True, timeout=PATIENCE, env=env)
    if p.returncode != 0:
        fail(number, f"store verify: {p.stdout[-300:]} {p.stderr[-300:]}")
    return was_killed


begin = time.time()
n_cycles = n_killed = 0
try:
    while n_cycles < CYCLES and (time.time() - begin < SECONDS or n_cycles < 10):
        n_killed += cycle(n_cycles)
        n_cycles += 1
    if n_killed < n_cycles // 4:
        fail(n_cycles, f"only {n_killed} of {n_cycles} runs were killed: the test is too slow to mean anything")
except (RuntimeError, KeyError, ValueError, subprocess.TimeoutExpired) as e:
    fail(n_cycles, repr(e))
state = "not ok" if failures else "ok"
print(f"{state} 1 - {n_cycles} cycles (seed {SEED}), {n_killed} of them killed in mid-run, {time.time() - begin:.0f} s")
print("1..1")
sys.exit(bool(failures))
