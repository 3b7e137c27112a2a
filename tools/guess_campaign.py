#!/usr/bin/env python3
"""Answers with guessed tokens (--speculate) are those of a server without, over many random requests,
restores and kills.

  tools/guess_campaign.py [--answers 2000] [--seed 1] [--model models/demo]

Conversations of random texts, which repeat themselves and each other, go on for some turns on a
server that guesses 15 tokens a step, or as many as it likes, and saves its state. It is ended now
and then (two of three times with kill -9) and started again. Each answer, with its
log-probabilities, is compared with that of a server that neither guesses nor saves: at the
temperatures 0, 0.7 and 2, with penalties, forms, stop strings and predictions, two at once.

HCACHE_BUILD=build/release names the directory of the program. Exit status 0: no answer differed,
guesses were right, and state was restored."""
import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "e2e"))
from serve_client import SAVING, Server  # noqa: E402

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--answers", type=int, default=2000)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--model", default="models/demo")
a = p.parse_args()

CHAT = "/v1/chat/completions"
rng = random.Random(a.seed)
counts = dict.fromkeys(("answers", "differ", "guessed", "right", "restored tokens", "kills", "stops"), 0)
PARTS = ("The little bird lived in the tall green tree. ", "Every morning it sang a song for the dog. ",
         "The dog liked the song of the little bird. ", "A frog sat near the river and counted: one, two, three. ",
         "name: Rex, age: 3; name: Momo, age: 5; name: Luna, age: 7. ", "What did the bird say to the frog? ")
SCHEMA = {"type": "array", "minItems": 4, "maxItems": 9, "items": {
    "type": "object", "properties": {"name": {"enum": ["Rex", "Momo", "Luna"]}, "can_sing_a_song": {"type": "boolean"}},
    "required": ["name", "can_sing_a_song"], "additionalProperties": False}}


def text():
    return "".join(rng.choice(PARTS) * rng.choice((1, 1, 2, 4)) for _ in range(rng.randrange(1, 5)))


def options():
    o = {"temperature": rng.choice((0, 0.7, 2)), "seed": rng.randrange(1000), "max_tokens": rng.randrange(1, 90),
         "logprobs": True, "top_logprobs": rng.choice((0, 2))}
    more = rng.random()
    if more < 0.15:
        o.update(frequency_penalty=0.2, presence_penalty=0.1)
    elif more < 0.3:
        o.update(json_schema=SCHEMA, max_tokens=250)
    elif more < 0.45:
        o.update(stop=["bird", "song of"])
    elif more < 0.6:
        o.update(prediction={"type": "content", "content": text()})
    else:
        o.update(ignore_eos=rng.random() < 0.5)
    return o


def answer(server, body):
    status, _, r = server.post(CHAT, body)
    if status != 200:
        return (status, r), None
    return [(c["message"]["content"], c["finish_reason"], c["logprobs"]) for c in r["choices"]], r


def compare(guessing, plain, bodies):
    """Asks both servers for all bodies at once. Returns the answers' messages."""
    got = [None] * len(bodies)

    def ask(i):
        got[i] = answer(guessing, bodies[i])
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    out = []
    for body, (texts, r) in zip(bodies, got):
        want, _ = answer(plain, body)
        counts["answers"] += 1
        if texts != want:
            counts["differ"] += 1
            print(f"DIFFERS: {body}\n  {texts}\n  {want}", flush=True)
        if r is not None:
            counts["guessed"] += r["timings"]["guessed_tokens"]
            counts["right"] += r["timings"]["guessed_right"]
            counts["restored tokens"] += r["timings"]["restored_tokens"]
            out.append(r["choices"][0]["message"])
    return out


def run(tmp):
    store, plain = os.path.join(tmp, "store"), Server(a.model, "--speculate", "off", "--no-reuse")
    told = time.monotonic()
    while counts["answers"] < a.answers:
        guessing = Server(a.model, "--store", store, "--store-cap", "256M", "--max-sequences", "4", "--speculate",
                          rng.choice(("15", "auto")), *SAVING)
        talks = [[] for _ in range(2)]
        for _ in range(rng.randrange(4, 40)):
            i = rng.randrange(2)
            if len(talks[i]) > 8 or sum(len(m["content"] or "") for m in talks[i]) > 4000:
                talks[i] = []
            both = [i, 1 - i] if rng.random() < 0.5 else [i]
            bodies = []
            for k in both:
                talks[k].append({"role": "user", "content": text()})
                bodies.append({"messages": list(talks[k]), **options()})
            for k, message in zip(both, compare(guessing, plain, bodies)):
                talks[k].append({"role": "assistant", "content": message["content"] or "-"})
        hard = rng.random() < 0.67
        counts["kills" if hard else "stops"] += 1
        guessing.p.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
        guessing.p.wait()
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(counts, flush=True)
    plain.stop()


tmp = tempfile.mkdtemp(prefix="hcache-guesses.", dir="/var/tmp")
try:
    run(tmp)
finally:
    shutil.rmtree(tmp, ignore_errors=True)
print(f"seed {a.seed}: {counts}")
if min(counts["right"], counts["restored tokens"]) == 0:
    sys.exit("nothing was guessed or restored: the run shows nothing")
sys.exit(counts["differ"] > 0)
