"""Trains models/experts, a small mixture of experts with windows, and writes its folder.

    python train_experts.py --work DIR --out ../../models/experts --steps 1500

The architecture is that of gpt-oss, as transformers computes it: sinks, windows in every other layer,
eight experts of which each token takes two. The text is that of models/demo in sequences of 256 tokens,
with a smaller vocabulary. DIR/last.pt holds the state: starting again with the same DIR continues there.
At the end golden.json gets prompts with the greedy answers of transformers, in f32 over the rounded
weights, and the share of tokens that each expert of each layer gets.
"""
import argparse
import json
import os
import random
import time

import torch
import torch.nn.functional as F
from transformers import GptOssConfig, GptOssForCausalLM

import batches
from export import configs, write_json
from train import Muon

LENGTH, N_GOLDEN = 256, 8
SIZES = dict(
    vocab_size=1024, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    intermediate_size=32, num_local_experts=8, num_experts_per_tok=2, sliding_window=64, tie_word_embeddings=True,
    max_position_embeddings=2048, bos_token_id=batches.BEGIN, eos_token_id=batches.END, pad_token_id=batches.END,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0), router_aux_loss_coef=0.01, rms_norm_eps=1e-5)


def grow(model, optimizers, tok, args):
    path, step, seen = f"{args.work}/last.pt", 0, 0
    if os.path.exists(path):
        state = torch.load(path)
        step, seen = state["step"], state["tokens"]
        model.load_state_dict(state["model"])
        for (o, _), s in zip(optimizers, state["optimizers"]):
            o.load_state_dict(s)
    log, start, mean = open(f"{args.work}/train.log", "a"), time.process_time(), []
    while step < args.steps:
        ids, weights = map(torch.from_numpy, batches.batch(tok, args.seed, step, LENGTH, args.tokens))
        out = model(input_ids=ids, output_router_logits=True)
        w = weights[:, 1:].reshape(-1)
        losses = F.cross_entropy(out.logits[:, :-1].reshape(-1, SIZES["vocab_size"]), ids[:, 1:].reshape(-1), reduction="none")
        at = w >= batches.VALUE_WEIGHT
        right = (out.logits[:, :-1].argmax(-1).reshape(-1) == ids[:, 1:].reshape(-1))[at].float().mean()
        w = torch.where(w > 0, w, 0.1)  # the user's words teach the language, too
        loss = (losses * w).sum() / w.sum()
        (loss + SIZES["router_aux_loss_coef"] * out.aux_loss).backward()
        scale = min(1, (step + 1) / 50, (args.steps - step) / args.decay)
        for o, lr in optimizers:
            for g in o.param_groups:
                g["lr"] = lr * scale
            o.step()
            o.zero_grad()
        step, seen = step + 1, seen + ids.numel()
        mean.append((loss.item(), right.item(), out.aux_loss.item()))
        if step % 20 == 0:
            values = " ".join(f"{n} {sum(v) / len(v):.3f}" for n, v in zip(("loss", "right", "aux"), zip(*mean)))
            print(f"step {step} tokens {seen / 1e6:.2f}M seconds {time.process_time() - start:.0f} {values}", file=log, flush=True)
            mean = []
        if step % 100 == 0 or step == args.steps:
            torch.save({"step": step, "tokens": seen, "model": model.state_dict(),
                        "optimizers": [o.state_dict() for o, _ in optimizers]}, path + ".tmp")
            os.replace(path + ".tmp", path)
    return seen


@torch.no_grad()
def write(model, tok, out):
    model = model.to(torch.bfloat16)
    model.save_pretrained(out)
    with open(f"{out}/config.json") as f:
        configs(out, json.load(f))
    model, cases = model.float(), []
    n_taken = torch.zeros(SIZES["num_hidden_layers"], SIZES["num_local_experts"])
    for i in range(1000):
        if len(cases) == N_GOLDEN:
            break
        ids, _, recalls = batches.sequence(tok, random.Random(f"golden-{i}"), LENGTH, split="evaluation")
        if not recalls:
            continue
        start = max(k for k in range(recalls[-1][1]) if ids[k] == batches.ASSISTANT)
        prompt = ids[:start + 1]
        answer = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False,
                                attention_mask=torch.ones(1, len(prompt)))[0, len(prompt):].tolist()
        seen = model(input_ids=torch.tensor([prompt + answer]), output_router_logits=True)
        two = seen.logits[0, len(prompt) - 1:-1].topk(2).values
        margin = (two[:, 0] - two[:, 1]).min().item()
        if margin < 0.02:  # another order of the sums may give another token
            continue
        for l, logits in enumerate(seen.router_logits):
            n_taken[l] += torch.bincount(logits.topk(SIZES["num_experts_per_tok"]).indices.reshape(-1),
                                         minlength=SIZES["num_local_experts"])
        text = tok.decode(prompt, skip_special_tokens=False)
        assert tok.encode(text, add_special_tokens=False).ids == prompt
        cases.append({"prompt": text, "prompt_ids": prompt, "greedy_ids": answer, "text": tok.decode(answer),
                      "wanted": tok.decode(ids[start + 1:LENGTH]).split("  ")[0][:80], "min_top2_margin": round(margin, 4)})
    shares = [[round(x, 3) for x in (r / r.sum()).tolist()] for r in n_taken]
    write_json(f"{out}/golden.json", {"source": "tools/demo_model/train_experts.py: transformers, f32 over the bf16 weights, "
                                      "greedy", "shares": shares, "cases": cases}, indent=None)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", required=True)
    ap.add_argument("--out", required=True, help="folder of the model; it has tokenizer.json (train_tokenizer.py --vocab 1024)")
    ap.add_argument("--steps", type=int, required=True)
    ap.add_argument("--decay", type=int, default=400)
    ap.add_argument("--tokens", type=int, default=4096, help="tokens of a step")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=1)
    args = ap.parse_args()
    os.makedirs(args.work, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tok = batches.load_tokenizer(args.out)
    model = GptOssForCausalLM(GptOssConfig(**SIZES))
    matrices = [p for n, p in model.named_parameters() if "layers." in n and p.dim() >= 2 and "bias" not in n and "router" not in n]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    optimizers = [(Muon(matrices, 0.02), 0.02), (torch.optim.Adam(rest, 0.003, betas=(0.9, 0.98)), 0.003)]
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    grow(model, optimizers, tok, args)
    write(model, tok, args.out)


if __name__ == "__main__":
    main()
