"""Prints the mean divergence KL(A || B) of two sets of logits, in nats per token, and the share of
tokens for which both have the same best token. Both files have the format that `hcache ppl
--logits-out` writes.

  kl.py A B"""
import sys

import numpy as np

a, b = (np.memmap(p, dtype=np.uint8, mode="r") for p in sys.argv[1:3])
vocab, context, windows = (int(x) for x in a[8:20].view("<u4"))
head = 24 + 4 * context * windows
if not np.array_equal(a[:head], b[:head]):
    raise SystemExit("kl: not of the same text and windows")
rows_a, rows_b = (np.asarray(x[head:]).view("<f4").reshape(-1, vocab) for x in (a, b))


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


kl, same = [], 0
for i in range(0, len(rows_a), 512):
    p, q = log_softmax(rows_a[i : i + 512]), log_softmax(rows_b[i : i + 512])
    kl.append((np.exp(p) * (p - q)).sum(axis=1))
    same += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
kl = np.concatenate(kl)
print(f"{kl.mean():.3e} +- {kl.std() / len(kl) ** 0.5:.1e}, same best {100 * same / len(kl):.2f} %, {len(kl)} positions")
