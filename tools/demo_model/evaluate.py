"""Recall on held-out dialogues: greedy answers, accuracy by distance.

    python evaluate.py --checkpoint DIR/last.pt --tokenizer ../../models/demo [--questions 1200]

Weights are rounded to bf16 first. Each dialogue tells facts whose (slot, value) pairs never occur in
training, fills the context with other talk, and asks for each fact once. An answer is right when
the whole greedy turn, up to its <|end|>, equals the expected sentence (`exact`); `value` looks at
the value's own tokens only, given the words before it. Distance: tokens between the place where the
value was told and the place where the answer has to say it.
"""
import argparse
import collections
import json
import random
import time

import torch

import batches
import facts as F
from dialogue import Builder
from model import CONFIG, Llama

BUCKETS = (0, 100, 200, 400, 600, 800, 1000, 1200, 1400, 1600, 1800, 2048)
SLOTS = {f.slot: f for f in F.FACTS}


def load(path):
    state = torch.load(path, map_location="cpu")
    model = Llama(state.get("config", CONFIG))
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(state["params"][n].bfloat16().float())
    return model, state


def dialogue(tok, seed):
    """Returns a held-out dialogue of 300 to 2000 tokens in which each fact is asked for once."""
    rng = random.Random(f"evaluation-{seed}")
    target = rng.choice((300, 500, 800, 1100, 1500, 1900))
    while True:
        b = Builder(rng, int(target * 0.9), "late", split="heldout", n_facts=rng.randint(6, 14),
                    code_share=0)
        ids, _, recalls = batches.encode(tok, b.build())
        if len(ids) <= 2040:
            break
    first, out = set(), []
    for slot, at, end, distance in recalls:
        if slot in SLOTS and slot not in first:
            first.add(slot)
            out.append((slot, at, end, distance))
    return ids, out


@torch.no_grad()
def check(model, tok, seed):
    """Returns (slot, distance, exact, value) for each question. Under greedy decoding an answer is
    right exactly if, at each of its positions, the argmax after the right prefix is the next token.
    So one forward pass judges all answers of the dialogue."""
    ids, recalls = dialogue(tok, seed)
    best = model(torch.tensor([ids]))[0].argmax(-1).tolist()
    for slot, at, end, distance in recalls:
        start = max(i for i in range(at) if ids[i] == batches.ASSISTANT)
        stop = ids.index(batches.END, at)
        exact = all(best[i] == ids[i + 1] for i in range(start, stop))
        value = all(best[i] == ids[i + 1] for i in range(at - 1, end - 1))
        yield slot, distance, exact, value


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--questions", type=int, default=1200)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--json")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    tok = batches.load_tokenizer(args.tokenizer)
    model, state = load(args.checkpoint)
    print(f"step {state['step']}, {state['tokens'] / 1e6:.1f} M tokens, {state['seconds'] / 60:.0f} minutes")
    rows, seed, start = [], 0, time.time()
    while len(rows) < args.questions:
        rows += check(model, tok, seed)
        seed += 1
    report = {"dialogues": seed, "questions": len(rows), "buckets": []}
    print(f"{seed} dialogues, {len(rows)} questions, {time.time() - start:.0f} s")
    print("distance      questions  exact  value  chance")
    ranges = list(zip(BUCKETS, BUCKETS[1:])) + [(600, 2048), (0, 2048)]
    for lo, hi in ranges:
        hits = [r for r in rows if lo <= r[1] < hi]
        if not hits:
            continue
        exact, value = (sum(r[i] for r in hits) / len(hits) for i in (2, 3))
        chance = sum(F.chance(SLOTS[r[0]]) for r in hits) / len(hits)
        report["buckets"].append([lo, hi, len(hits), round(exact, 4), round(value, 4), round(chance, 4)])
        print(f"{lo:5d} - {hi:5d} {len(hits):9d}  {exact:.3f}  {value:.3f}  {chance:.3f}")
    wrong = collections.Counter(r[0].split(".")[1] for r in rows if not r[2] and r[1] >= 600)
    total = collections.Counter(r[0].split(".")[1] for r in rows if r[1] >= 600)
    print("wrong beyond 600 by relation:", ", ".join(f"{k} {n}/{total[k]}" for k, n in wrong.most_common()))
    if args.json:
        json.dump(report, open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
