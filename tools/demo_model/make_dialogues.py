"""Writes the 20 held-out dialogues that the tests replay.

  python make_dialogues.py --out ../../models/demo/dialogues.json

The file has only the user's words and, for a question, the value that its answer must contain; the
replies come from the program that replays it.  `distance` is the number of tokens between the
telling of a fact and its question if every reply is the reference one, so a replay differs a
little.  The seeds are fixed, and dialogues were not selected by whether the model answers well.
Training never sees any of the (slot, value) pairs.  Ten dialogues ask for facts told at least 600
tokens earlier."""
import argparse
import json
import random

import batches
from dialogue import Builder

COUNT = 20


class Script(Builder):
    """A dialogue with fewer, larger turns: facts, then `quiet` tokens of other talk, then
    questions."""

    def __init__(self, rng, quiet):
        super().__init__(rng, 0, "late", split="heldout", n_facts=rng.randint(4, 7), code_share=0)
        self.quiet = quiet

    def build(self):
        while self.untold:
            self.tell()
        start = self.words
        while self.words < start + self.quiet:
            self.filler()
        slots = self.rng.sample(list(self.told), min(4, len(self.told)))
        for slot in slots:
            self.ask(slot)
            if self.rng.random() < 0.4:
                self.chat()
        return self.turns


def make(seed):
    rng = random.Random(f"replay-{seed}")
    quiet = rng.randint(620, 1300) if seed % 2 else rng.randint(40, 400)
    return Script(rng, quiet).build()


def as_json(turns, recalls):
    distance = {}
    for slot, _, _, d in recalls:
        distance.setdefault(slot, d)
    out = []
    for user, reply in zip(turns[::2], turns[1::2]):
        turn = {"user": user.text}
        if reply.value is not None:
            turn["expect"] = reply.value
            if reply.slot != "story":
                turn["distance"] = distance[reply.slot]
        out.append(turn)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tokenizer", default="../../models/demo")
    ap.add_argument("--out", required=True)
    args = ap.parse_args()
    tok = batches.load_tokenizer(args.tokenizer)
    dialogues, far = [], 0
    for seed in range(COUNT):
        turns = make(seed)
        ids, _, recalls = batches.encode(tok, turns)
        dialogues.append({"seed": seed, "tokens": len(ids), "turns": as_json(turns, recalls)})
        far += any(t.get("distance", 0) >= 600 for t in dialogues[-1]["turns"])
        assert len(ids) < 1800 and len(dialogues[-1]["turns"]) >= 4
    with open(args.out, "w") as f:
        json.dump({"source": "tools/demo_model/make_dialogues.py", "dialogues": dialogues}, f, indent=1)
        f.write("\n")
    print(f"{COUNT} dialogues, {far} with a question at 600 tokens or more, "
          f"{min(d['tokens'] for d in dialogues)} to {max(d['tokens'] for d in dialogues)} tokens")


if __name__ == "__main__":
    main()
