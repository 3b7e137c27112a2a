"""Trains the demo model on a CPU (or on a GPU with --device cuda). Seeded and resumable.

    python train.py --work DIR --tokenizer ../../models/demo --steps 12000

DIR/last.pt holds the parameters in f32, the optimizers' state and the step; starting again with the
same DIR continues there. The learning rate is flat and falls to zero over the last --decay steps,
so a run may be prolonged or shortened by giving another --steps.
"""
import argparse
import os
import random
import sys
import time

# Large tensors are freed and allocated again in every step; returning them to the kernel costs a
# third of the time in page faults.  A worker that waits must sleep: if it spins on one core, it
# slows down the other worker, whose own core is busy with other processes.  Both settings must be
# in the environment before libc starts.
SETTINGS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
            "MALLOC_TOP_PAD_": str(1 << 28), "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
if any(k not in os.environ for k in SETTINGS):
    os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, **SETTINGS})

import torch
import torch.nn.functional as F

import batches
from model import Llama

# (first step, {sequence length: share of the steps}).  Short dialogues teach the language; then the
# memory is extended.
CURRICULUM = [(0, {256: 1.0}), (100, {256: 0.4, 1024: 0.3, 2048: 0.3})]


def length_at(seed, step, curriculum=CURRICULUM):
    shares = [s for first, s in curriculum if step >= first][-1]
    return random.Random(f"length-{seed}-{step}").choices(list(shares), list(shares.values()))[0]


def orthogonal(g, rounds=5):
    """Newton-Schulz iteration of Muon (Jordan et al. 2024): returns approximately the nearest
    orthogonal matrix, of the last two dimensions."""
    x = g.bfloat16()
    if g.shape[-2] > g.shape[-1]:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.mT if g.shape[-2] > g.shape[-1] else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95, decay=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - g["momentum"])
                update = orthogonal(p.grad.lerp(m, g["momentum"]))
                p.mul_(1 - g["lr"] * g["decay"])
                p.add_(update, alpha=-g["lr"] * max(1, p.shape[-2] / p.shape[-1]) ** 0.5)


class Masters:
    """f32 copies of bf16 parameters; the optimizers see only the copies."""

    def __init__(self, model):
        self.model = model
        self.params = {n: p.detach().float().clone() for n, p in model.named_parameters()}
        for p in model.parameters():
            p.data = p.data.bfloat16()

    @torch.no_grad()
    def take_grads(self):
        for n, p in self.model.named_parameters():
            self.params[n].grad = p.grad.float()
            p.grad = None

    @torch.no_grad()
    def publish(self):
        for n, p in self.model.named_parameters():
            p.copy_(self.params[n])


def loss_of(model, hidden, ids, weights):
    """Weighted cross entropy; the head runs only where a target has a weight."""
    x, y = hidden(ids)[:, :-1], ids[:, 1:]
    at = weights[:, 1:].reshape(-1).nonzero()[:, 0]
    w = weights[:, 1:].reshape(-1)[at]
    logits = x.reshape(-1, x.shape[-1])[at] @ model.model.embed_tokens.weight.T
    losses = F.cross_entropy(logits.float(), y.reshape(-1)[at], reduction="none")
    value = w >= batches.VALUE_WEIGHT
    right = (logits[value].argmax(-1) == y.reshape(-1)[at][value]).float().mean()
    return (losses * w).sum() / w.sum(), losses[value].mean().detach(), right


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--work", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--steps", type=int, required=True)
    ap.add_argument("--decay", type=int, default=1500)
    ap.add_argument("--tokens", type=int, default=8192, help="tokens of a step")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--lr", type=float, default=0.02, help="learning rate of Muon, for the matrices of the layers")
    ap.add_argument("--lr-rest", type=float, default=0.003, help="learning rate of Adam, for embedding and norms")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--save-every", type=int, default=50)
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--stretch", type=float, default=1.0, help="scales the curriculum's steps")
    args = ap.parse_args()
    curriculum = [(int(s * args.stretch), shares) for s, shares in CURRICULUM]
    os.makedirs(args.work, exist_ok=True)
    with open(f"{args.work}/train.pid", "w") as f:
        f.write(str(os.getpid()))
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tok = batches.load_tokenizer(args.tokenizer)
    model = Llama().to(args.device)
    masters = Masters(model)
    layers = [p for n, p in masters.params.items() if "layers." in n and p.dim() == 2]
    rest = [p for n, p in masters.params.items() if not ("layers." in n and p.dim() == 2)]
    optimizers = [(Muon(layers, args.lr), args.lr),
                  (torch.optim.Adam(rest, args.lr_rest, betas=(0.9, 0.98), fused=True), args.lr_rest)]
    step, seen, spent = 0, 0, 0.0
    last = f"{args.work}/last.pt"
    if os.path.exists(last):
        state = torch.load(last, map_location=args.device)
        step, seen, spent = state["step"], state["tokens"], state["seconds"]
        for n, p in masters.params.items():
            p.copy_(state["params"][n])
        for (o, _), s in zip(optimizers, state["optimizers"]):
            o.load_state_dict(s)
    masters.publish()
    hidden = torch.compile(model.hidden, dynamic=False)
    log = open(f"{args.work}/train.log", "a")

    def save():
        torch.save({"step": step, "tokens": seen, "seconds": spent, "params": masters.params,
                    "config": model.c, "optimizers": [o.state_dict() for o, _ in optimizers]}, last + ".tmp")
        os.replace(last + ".tmp", last)

    mean = {}
    while step < args.steps:
        start = time.time()
        length = length_at(args.seed, step, curriculum)
        ids, weights = (torch.from_numpy(a).to(args.device)
                        for a in batches.batch(tok, args.seed, step, length, args.tokens))
        loss, value_loss, right = loss_of(model, hidden, ids, weights)
        loss.backward()
        masters.take_grads()
        scale = min(1, (step + 1) / 100, (args.steps - step) / args.decay)
        for o, lr in optimizers:
            for g in o.param_groups:
                g["lr"] = lr * scale
            o.step()
        masters.publish()
        step, seen, spent = step + 1, seen + ids.numel(), spent + time.time() - start
        for k, v in (("loss", loss.item()), (f"right@{length}", right.item()), (f"vloss@{length}", value_loss.item())):
            mean.setdefault(k, []).append(v)
        if step % 25 == 0:
            line = " ".join(f"{k} {sum(v) / len(v):.3f}" for k, v in sorted(mean.items()))
            print(f"step {step} tokens {seen / 1e6:.2f}M seconds {spent:.0f} {line}", file=log, flush=True)
            mean = {}
        if step % args.save_every == 0 or step == args.steps:
            save()


if __name__ == "__main__":
    main()
