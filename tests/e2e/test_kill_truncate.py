"""kill -9 at and around the moments at which a context outgrows its window.

A run prints the ids that it generates, and is killed after a seeded number of them. Half of the
kills come after the last token of a stair, so that they hit the change of stairs: at once, or a few
milliseconds later. A stair begins only when all tokens before it are durable. So a continuation
must find at least the tokens before the stair of the last printed token, at whatever moment the
kill came. Its logits must be those of one prompt without a store.

KILL_SEED (1) and KILL_TRUNCATED (10 kills) may be set."""
import json
import os
import random
import signal
import subprocess
import tempfile
import time

from tap import HC, PATIENCE, check, end, ok

KILLS = int(os.environ.get("KILL_TRUNCATED", "10"))
rng = random.Random(int(os.environ.get("KILL_SEED", "1")))
CONTEXT, STEP, PROMPT, ANSWER, LAST = 256, 64, 200, 500, 11
MODEL = ("run", "synth:tiny-mha", "--ignore-eos", "--truncate", f"{STEP / CONTEXT},context={CONTEXT}")


def cut(token):
    return 0 if token < CONTEXT else -(-(token + 1 - CONTEXT) // STEP) * STEP


def first_of(c):
    return CONTEXT + c - STEP if c else 0


def command(ids, n, *more):
    path = os.path.join(tmp, f"ids{len(ids)}")
    with open(path, "w") as f:
        f.write(" ".join(map(str, ids)))
    return [HC, *MODEL, "--token-ids", path, "--max-tokens", str(n), *more]


def run(ids, n, *more):
    return json.loads(ok(*command(ids, n, "--json", *more)[1:]))


def kill_behind(n, delay, store):
    """Kills a run after its n-th id.  Returns how many ids it had printed by then."""
    p = subprocess.Popen(command(prompt, ANSWER, "--store", store), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    seen = b""
    while seen.count(b" ") < n and (more := os.read(p.stdout.fileno(), 64)):
        seen += more
    time.sleep(delay)
    p.send_signal(signal.SIGKILL)
    seen += p.stdout.read()
    p.wait()
    return min(seen.count(b" "), ANSWER)


def one(i):
    store = os.path.join(tmp, f"store{i}")
    last_of_stair = CONTEXT + STEP * rng.randrange(6) - PROMPT
    n = last_of_stair + rng.randrange(2) if i % 2 else rng.randrange(1, ANSWER - LAST)
    n = kill_behind(n, rng.choice((0, 0, rng.uniform(0, 0.005))), store)
    durable = first_of(cut(PROMPT + n - 2))  # the last printed id may not have been computed yet
    verify = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True, timeout=PATIENCE)
    # auto may find that computing is quicker than a busy disk
    r = run(most, LAST, "--store", store, "--plan", "kv")
    check(f"killed behind {n} ids: the same logits", r["logits_digest"] == whole["logits_digest"], r)
    check(f"killed behind {n} ids: all {durable} tokens before its stair are found",
          r["cached_tokens"] >= min(durable, (len(most) - 1) // 64 * 64), r["cached_tokens"])
    check("the store is whole", verify.returncode == 0, verify.stdout + verify.stderr)
    return durable


with tempfile.TemporaryDirectory(prefix="hcache-kill-truncated.") as tmp:
    prompt = [rng.randrange(3, 480) for _ in range(PROMPT)]
    answer = run(prompt, ANSWER)["token_ids"]
    most = (prompt + answer)[:PROMPT + ANSWER - LAST + 1]
    whole = run(most, LAST)
    check("one prompt gives the same tokens", whole["token_ids"][:LAST - 1] == answer[ANSWER - LAST + 1:], whole["token_ids"])
    durable = [one(i) for i in range(KILLS)]
    check("some kills met a context behind its first step", KILLS < 10 or sum(d > 0 for d in durable) >= 3, durable)
end()
