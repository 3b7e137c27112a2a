"""kill -9 at a random moment of a saving server, many times, each followed by a verifying restart.

All cycles use one store. In a cycle clients send new prompts and prompts that continue earlier
ones. The server is killed at a random moment. `store verify` finds nothing bad. The server starts
again on the same store. Tokens that any answer reported as committed must be found. Tokens
generated from them must have the log probabilities of a server without a store, digit by digit.

Five minutes without an answer are a failure, and the report says what the server's threads were
doing. The exception is that this test itself was stopped during that time (by a machine that stops
its guests, or SIGSTOP to a process group). A thread notices this, and the question is asked again.

KILL_CYCLES (20), KILL_SECONDS (60, at least 10 cycles are run) and KILL_SEED bound the work.
HCACHE_CAMPAIGN_OUT=FILE receives the counts."""
import http.client
import os
import random
import subprocess
import sys
import threading
import time

from serve_client import HC, Server, threads_of
from tap import PATIENCE, scratch

CYCLES = int(os.environ.get("KILL_CYCLES", "20"))
SECONDS = float(os.environ.get("KILL_SECONDS", "60"))
SEED = int(os.environ.get("KILL_SEED", "1"))
MODEL = "synth:tiny-gqa"  # has no tokenizer: takes token ids and returns log probabilities
CONTEXT, VOCABULARY = 1000, 500

tmp = scratch("kill-server")
store = ",".join(os.path.join(tmp, d) for d in ("a", "b"))
rng = random.Random(SEED)
failures = []
latest = [0.6]  # latest moment of a kill, in seconds
counts = {"cycles": 0, "killed while requests ran": 0, "contexts checked": 0, "lost": 0, "wrong": 0}


def fail(what):
    failures.append(what)
    print(f"# cycle {counts['cycles']}: {what}")


class Pulse(threading.Thread):
    """Notices when this program is stopped: a sleep of 0.1 s then lasts much longer."""

    def __init__(self):
        super().__init__(daemon=True)
        self.stopped_s = 0.0
        self.start()

    def run(self):
        before = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            if now - before > 2:
                self.stopped_s += now - before
                print(f"# cycle {counts['cycles']}: this test was not run for {now - before:.0f} s", flush=True)
            before = now

    def was_stopped_since(self, stopped_s):
        time.sleep(0.5)  # gives the thread of the pulse time to wake up first
        return self.stopped_s - stopped_s > 5


def answer(server, prompt, n):
    """Returns (log probabilities of the n generated tokens, timings, cached tokens)."""
    while True:
        stopped_s = pulse.stopped_s
        try:
            r = server.complete(prompt, max_tokens=n, logprobs=1, ignore_eos=True)
            break
        except TimeoutError:
            if not pulse.was_stopped_since(stopped_s):
                print(threads_of(server.p) + "\n# " + "# ".join(server.log[-20:]), flush=True)
                raise RuntimeError(f"no answer in {PATIENCE} s") from None
    return (r["choices"][0]["logprobs"]["token_logprobs"], r["timings"],
            r["usage"]["prompt_tokens_details"]["cached_tokens"])


def client(server, prompts, acked):
    for prompt in prompts:
        try:
            _, timings, _ = answer(server, prompt, 30)
        # the server was killed, which is what this test does
        except (OSError, http.client.HTTPException):
            return
        except RuntimeError as e:  # the server did not answer
            fail(str(e))
            return
        acked[tuple(prompt)] = timings["committed_tokens"]


def start():
    """Starts a server on the store."""
    while True:
        stopped_s = pulse.stopped_s
        try:
            return Server(MODEL, "--store", store, "--store-cap", "256M", "--no-reuse")
        except RuntimeError:
            if not pulse.was_stopped_since(stopped_s):
                raise


def prompts_new(known):
    out = []
    for _ in range(4):
        head = list(rng.choice(known)) if known and rng.random() < 0.5 else []
        tail = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(70, 400))]
        out.append((head + tail)[:CONTEXT])
    return out


def check(server, reference, prompt, committed):
    """Checks that the committed tokens are found, and that continuing them gives the results of a
    computation."""
    want, _, _ = answer(reference, list(prompt), 4)
    got, _, cached = answer(server, list(prompt), 4)
    counts["contexts checked"] += 1
    if got != want:
        counts["wrong"] += 1
        fail(f"other log probabilities than without a store: {got} instead of {want}")
    floor = min(committed, len(prompt) - 1) // 64 * 64
    if cached < floor:
        counts["lost"] += 1
        fail(f"{committed} tokens were reported committed, {cached} were found")


def cycle(server, reference, known):
    acked = {}
    threads = [threading.Thread(target=client, args=(server, prompts_new(list(known)), acked)) for _ in range(3)]
    for t in threads:
        t.start()
    time.sleep(rng.uniform(0.1, 1) * latest[0])
    running = any(t.is_alive() for t in threads)
    counts["killed while requests ran"] += running
    # Kills should come while requests run, after some were answered, on quick and on busy machines.
    latest[0] *= 0.5 if not running else 1.2 if acked else 1.5
    server.kill()
    for t in threads:
        t.join()
    p = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True, timeout=1800)
    if p.returncode != 0:
        fail(f"store verify: {p.stdout[-300:]} {p.stderr[-300:]}")
    server = start()
    known.update(acked)
    for prompt in sorted(acked)[:4] + rng.sample(sorted(known), min(2, len(known))):
        check(server, reference, prompt, known[prompt])
    # limits the bytes that the store must hold, so that its cap evicts none of them
    while len(known) > 40:
        known.pop(rng.choice(sorted(known)))
    return server


pulse = Pulse()
begin = time.time()
server = reference = None
try:
    reference = Server(MODEL)
    server = start()
    known = {}
    while counts["cycles"] < CYCLES and (time.time() - begin < SECONDS or counts["cycles"] < 10) and not failures:
        server = cycle(server, reference, known)
        counts["cycles"] += 1
        if counts["cycles"] % 50 == 0:
            print(f"# {counts}, {time.time() - begin:.0f} s", flush=True)
    if counts["killed while requests ran"] < counts["cycles"] // 3:
        fail("too few kills came while requests ran: the test is too slow to mean anything")
    if counts["contexts checked"] < counts["cycles"] // 2:
        fail("too few contexts were committed before a kill to mean anything")
except (RuntimeError, KeyError, ValueError, OSError, subprocess.TimeoutExpired) as e:
    fail(repr(e))
for s in (server, reference):
    if s is not None:
        s.kill()
if os.environ.get("HCACHE_CAMPAIGN_OUT"):
    with open(os.environ["HCACHE_CAMPAIGN_OUT"], "w") as f:
        f.write(f"kill -9 cycles of a saving server: {counts['cycles']}\n"
                f"  while requests ran: {counts['killed while requests ran']}\n"
                f"contexts checked after a kill: {counts['contexts checked']}\n"
                f"contexts lost: {counts['lost']}\nwrong bytes served: {counts['wrong']}\n")
print(f"{'not ok' if failures else 'ok'} 1 - {counts} (seed {SEED}), {time.time() - begin:.0f} s")
print("1..1")
sys.exit(bool(failures))
