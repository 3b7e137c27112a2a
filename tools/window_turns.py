#!/usr/bin/env python3
"""A conversation takes hundreds of turns past its window, with one process for each turn. No turn
computes a token twice.

  tools/window_turns.py MODEL --dir DIR [--text FILE] [--turns 200] [--most N] [--kills 4]
                        [--context 1024] [--ratio 0.5] [--seed 1]

The first turn fills the window. Each later turn has 5 to 40 new tokens of the text (random ids
without --text) and generates 4 to 12. The tool asserts for every turn:

  - It finds all tokens of earlier turns but the last generated one, which has no state yet.
  - It computes no token a second time (`recomputed_tokens`).

Every KILLS-th turn, and every turn that moves the window, is first killed (kill -9) at a random
moment of its run. Then the store must be whole (`store verify`), and the repeated turn must find
all full chunks of the earlier turns. The unfinished chunk at their end may be gone: the killed run
may have replaced it by a longer chunk with tokens that it had generated. With --kills 0 no turn is
killed.

At the end the last turn's logits are compared with those of one prompt without a store, and with
those of a further restore. DIR keeps the store and the state of the conversation. --most N ends
after N turns; the next call goes on. HCACHE_BUILD=build/release names the directory of the program.
Exit status 0: all turns are done, or --most is reached, and nothing was wrong."""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time

HC = os.path.join(os.environ.get("HCACHE_BUILD", "build/release"), "hcache")


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--dir", required=True)
    p.add_argument("--text")
    for name, default in (("turns", 200), ("most", 1 << 30), ("kills", 4), ("context", 1024), ("seed", 1)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--ratio", type=float, default=0.5)
    return p.parse_args()


class Talk:
    """The conversation: its tokens, and the counts of its turns."""

    def __init__(self, a):
        self.a, self.path = a, os.path.join(a.dir, "turns.json")
        self.store = os.path.join(a.dir, "store")
        self.step = int(a.ratio * a.context) // 64 * 64
        if os.path.exists(self.path):
            with open(self.path) as f:
                self.s = json.load(f)
        else:
            self.s = {"tokens": [], "turn": 0, "kills": 0, "in_step": 0, "steps": 0, "seconds": 0.5}
        self.text = self.read_text()

    def read_text(self):
        if self.a.text is None:
            rng = random.Random(self.a.seed)
            return [rng.randrange(3, 480) for _ in range(self.a.context + 40 * self.a.turns)]
        with open(self.a.text, "rb") as f:
            out = subprocess.run([HC, "tokenize", self.a.model], stdin=f, capture_output=True, check=True)
        return [int(x) for x in out.stdout.split()]

    def save(self):
        with open(self.path + ".new", "w") as f:
            json.dump(self.s, f)
        os.replace(self.path + ".new", self.path)

    def stair(self, n):
        """Returns the number of the stair that token n is in."""
        return 0 if n < self.a.context else -(-(n + 1 - self.a.context) // self.step)

    def command(self, tokens, n, *more):
        ids = os.path.join(self.a.dir, "ids")
        with open(ids, "w") as f:
            f.write(" ".join(map(str, tokens)))
        return [HC, "run", self.a.model, "--ignore-eos", "--truncate", f"{self.a.ratio},context={self.a.context}",
                "--token-ids", ids, "--max-tokens", str(n), "--json", *more]

    def run(self, tokens, n, *more):
        p = subprocess.run(self.command(tokens, n, *more), capture_output=True, text=True)
        if p.returncode != 0:
            sys.exit(f"turn {self.s['turn']}: status {p.returncode}: {p.stderr[-500:]}")
        return json.loads(p.stdout)

    def kill(self, tokens, n, rng):
        """Starts the turn's run and kills it at a random moment."""
        p = subprocess.Popen(self.command(tokens, n, "--store", self.store, "--plan", "kv"),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 1.1 * self.s["seconds"]))
        p.send_signal(signal.SIGKILL)
        was_killed = p.wait() != 0
        verify = subprocess.run([HC, "store", "verify", self.store], capture_output=True, text=True)
        if verify.returncode != 0:
            sys.exit(f"turn {self.s['turn']}: the store is not whole: {verify.stdout}{verify.stderr}")
        self.s["kills"] += was_killed
        return was_killed

    def turn(self):
        s, a, i = self.s, self.a, self.s["turn"]
        rng = random.Random(f"{a.seed} {i}")
        n_before, n = len(s["tokens"]), rng.randint(4, 12)
        at = s.get("at", 0)
        n_new = a.context if i == 0 else rng.randint(5, 40)
        tokens = s["tokens"] + [self.text[(at + k) % len(self.text)] for k in range(n_new)]
        moves = self.stair(len(tokens) + n - 1) != self.stair(max(n_before - 1, 0))
        least = n_before - 1
        if a.kills > 0 and i > 0 and (i % a.kills == 0 or moves):
            s["in_step"] += self.kill(tokens, n, rng) and moves
            least = least // 64 * 64
        start = time.monotonic()
        r = self.run(tokens, n, "--store", self.store, "--plan", "kv")
        s["seconds"] = time.monotonic() - start
        if i > 0 and r["cached_tokens"] < least:
            sys.exit(f"turn {i}: {r['cached_tokens']} of {least} tokens were found: {r.get('miss')}")
        if r["recomputed_tokens"] != 0:
            sys.exit(f"turn {i}: {r['recomputed_tokens']} tokens were computed twice")
        s.update(tokens=tokens + r["token_ids"], turn=i + 1, at=at + n_new, digest=r["logits_digest"],
                 n_prompt=len(tokens), n_answer=n, steps=self.stair(len(tokens) + n - 1))
        self.save()

    def end(self):
        s = self.s
        prompt = s["tokens"][:s["n_prompt"]]
        whole, again = self.run(prompt, s["n_answer"]), self.run(prompt, s["n_answer"], "--store", self.store)
        for what, r in (("one prompt without a store", whole), ("a further restore", again)):
            if r["logits_digest"] != s["digest"] or r["token_ids"] != s["tokens"][s["n_prompt"]:]:
                sys.exit(f"the last turn has other logits than {what}")


def main():
    a = parse()
    os.makedirs(a.dir, exist_ok=True)
    t = Talk(a)
    for _ in range(min(a.most, a.turns - t.s["turn"])):
        t.turn()
    s = t.s
    print(f"{s['turn']} turns, {len(s['tokens'])} tokens, {s['steps']} steps, {s['kills']} kills, "
          f"{s['in_step']} of them in turns that moved the window: 0 tokens computed twice", flush=True)
    if s["turn"] >= a.turns:
        t.end()
        print("the last turn's logits are those of one prompt without a store, and of a further restore")


main()
