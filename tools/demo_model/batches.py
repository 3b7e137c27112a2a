"""Token batches: batch(seed, step) is a pure function, so a resumed run sees the same data."""
import random

import numpy as np
from tokenizers import Tokenizer

from dialogue import Builder

BEGIN, END, USER, ASSISTANT, SYSTEM = range(5)
ROLE = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}

VALUE_WEIGHT = 4.0  # weight of the tokens of a recalled value
ECHO_WEIGHT = 2.0  # weight of the tokens of a value that is repeated right after the user stated it
USER_WEIGHT = 0.0  # a person's next words are random: nothing can be learnt from them


def load_tokenizer(path):
    return Tokenizer.from_file(f"{path}/tokenizer.json")


def tokens_of(enc, at, value):
    """Returns the indices of the tokens that overlap the value at character `at`."""
    return [i for i, (a, b) in enumerate(enc.offsets) if b > at and a < at + len(value)]


def encode(tok, turns):
    """Returns the ids, the loss weight of each id as a target, and (slot, first, last + 1,
    distance) of each recalled value. The distance is the number of tokens since the slot's value
    was last said."""
    ids, weights, recalls, seen = [BEGIN], [0.0], [], {}
    for turn, enc in zip(turns, tok.encode_batch([t.text for t in turns], add_special_tokens=False)):
        ids += [ROLE[turn.role]]
        weights += [0.0]
        base, own = len(ids), turn.role == "assistant"
        w = [1.0 if own else USER_WEIGHT] * len(enc.ids)
        if turn.value is not None:
            at = turn.text.index(turn.value)
            hit = tokens_of(enc, at, turn.value)
            for i in hit:
                w[i] = VALUE_WEIGHT
            first, last = base + hit[0], base + hit[-1] + 1
            if turn.slot in seen:
                recalls.append((turn.slot, first, last, first - seen[turn.slot]))
            seen[turn.slot] = first
        for slot, value in turn.told:
            hit = tokens_of(enc, turn.text.index(value), value)
            seen[slot] = base + hit[0]
            for i in hit if own else ():
                w[i] = ECHO_WEIGHT
        ids += enc.ids + [END]
        weights += w + [1.0 if own else 0.0]
    return ids, weights, recalls


def sequence(tok, rng, length, split="train"):
    style = "mixed" if rng.random() < 0.6 else "late"
    n_facts = rng.randint(max(2, length // 128), max(4, length // 48))
    turns = Builder(rng, int(length * 1.05) + 20, style, split=split, n_facts=n_facts).build()
    ids, weights, recalls = encode(tok, turns)
    while len(ids) < length:  # rarely needed: this dialogue's words gave few tokens
        ids, weights = ids + [END], weights + [0.0]
    return ids[:length], weights[:length], [r for r in recalls if r[2] <= length]


def batch(tok, seed, step, length, tokens):
    rng = random.Random(f"{seed}-{step}")
    rows = [sequence(tok, rng, length) for _ in range(tokens // length)]
    return np.array([r[0] for r in rows]), np.array([r[1] for r in rows], dtype=np.float32)
