"""Trains the byte-level BPE tokenizer on generated text and writes tokenizer.json.

    python train_tokenizer.py --out ../../models/demo [--vocab 1536]
"""
import argparse
import random
import re

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import facts
from dialogue import Builder

# The first ids, in this order. <|begin|> opens a prompt, <|end|> closes every turn.
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]


def texts(n):
    """Yields turns without digits and made-up names, which should both be split into small pieces.
    Then yields every word of every list of values often enough to become one token."""
    facts.made_up_name = lambda rng: rng.choice(facts.VALUES["person"])
    for seed in range(n):
        rng = random.Random(f"tokenizer-{seed}")
        for turn in Builder(rng, 600, "mixed", split="any").build():
            yield re.sub(r"[0-9]+", "", turn.text)
    for values in facts.VALUES.values():
        if not callable(values):
            for value in values:
                yield from (f" {value}",) * 200


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True)
    ap.add_argument("--vocab", type=int, default=1536)
    args = ap.parse_args()
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=args.vocab, show_progress=False, min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tok.train_from_iterator(texts(3000), trainer)
    tok.save(f"{args.out}/tokenizer.json")
    sample = list(texts(20))
    words = sum(len(t.split()) for t in sample)
    tokens = sum(len(e.ids) for e in tok.encode_batch(sample))
    print(f"{tok.get_vocab_size()} entries, {tokens / words:.3f} tokens a word")


if __name__ == "__main__":
    main()
