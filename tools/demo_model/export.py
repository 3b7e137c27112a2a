"""Writes the model folder from a checkpoint, and replays the dialogues for golden.json.

  python export.py --checkpoint DIR/last.pt --out ../../models/demo

The folder already has the tokenizer (train_tokenizer.py), dialogues.json (make_dialogues.py) and
the model card, which is written by hand.  Every output is a pure function of the checkpoint."""
import argparse
import json
import os

import jinja2
import torch
from safetensors.torch import save_file

import batches
from evaluate import load
from train_tokenizer import SPECIAL

TEMPLATE = ("{{ bos_token }}{% for message in messages %}"
            "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
MAX_REPLY = 160          # in tokens; the longest story has about 100
GOLDEN = (1, 3, 5, 8, 10)  # dialogues whose last question becomes a golden case
LOGITS = (1, 8)  # golden cases that also have logits


def write_json(path, value, indent=1):
    with open(path, "w") as f:
        json.dump(value, f, indent=indent)
        f.write("\n")


def configs(out, c):
    write_json(f"{out}/config.json", c)
    write_json(f"{out}/generation_config.json",
               {"bos_token_id": batches.BEGIN, "eos_token_id": [batches.END], "do_sample": False})
    write_json(f"{out}/tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[1],
        "add_bos_token": False, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "model_max_length": c["max_position_embeddings"], "chat_template": TEMPLATE})


@torch.no_grad()
def greedy(model, past, ids, limit=MAX_REPLY):
    """Returns the continuation of ids up to and including <|end|>, the f32 logits of the prompt's
    last position, and the smallest gap between the best two logits. `past` has keys and values of
    the first tokens of ids. It is extended here, and afterwards contains all tokens but the last
    returned one."""
    done = past[0][0].shape[2] if past[0] else 0
    new, out, first, margin = ids[done:], [], None, float("inf")
    while len(out) < limit and len(ids) + len(out) < model.c["max_position_embeddings"]:
        logits = model.hidden(torch.tensor([new]), past)[0, -1] @ model.model.embed_tokens.weight.T
        first = logits if first is None else first
        best = logits.topk(2).values
        margin = min(margin, (best[0] - best[1]).item())
        new = [logits.argmax().item()]
        out += new
        if new[0] == batches.END:
            break
    return out, first, margin


def replay(model, tok, turns):
    """Holds the chat with the model's own replies. Yields a record for each turn."""
    template = jinja2.Environment().from_string(TEMPLATE)
    messages, past, before = [], [[] for _ in model.model.layers], []
    for turn in turns:
        messages.append({"role": "user", "content": turn["user"]})
        prompt = template.render(messages=messages, bos_token=SPECIAL[0], add_generation_prompt=True)
        ids = tok.encode(prompt, add_special_tokens=False).ids
        if ids[:len(before)] != before:  # encoding the reply's text did not give the reply's tokens
            past = [[] for _ in model.model.layers]
        out, logits, margin = greedy(model, past, ids)
        before = ids + out[:-1]
        reply = tok.decode(out[:-1] if out[-1] == batches.END else out)
        messages.append({"role": "assistant", "content": reply})
        yield turn, prompt, ids, out, reply, logits, margin


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--replay", choices=("all", "golden"), default="all")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    model, state = load(args.checkpoint)
    tok = batches.load_tokenizer(args.out)
    configs(args.out, model.c)
    save_file({n: p.detach().bfloat16().contiguous() for n, p in model.named_parameters()},
              f"{args.out}/model.safetensors", metadata={"format": "pt"})
    os.chmod(f"{args.out}/model.safetensors", 0o644)
    cases, right, asked, far_right, far = [], 0, 0, 0, 0
    for d in json.load(open(f"{args.out}/dialogues.json"))["dialogues"]:
        if args.replay == "golden" and d["seed"] not in GOLDEN:
            continue
        last = None
        for record in replay(model, tok, d["turns"]):
            turn, _, _, _, reply, _, _ = record
            if "expect" in turn:
                ok = turn["expect"] in reply
                right, asked, last = right + ok, asked + 1, record
                if turn.get("distance", 0) >= 600:
                    far_right, far = far_right + ok, far + 1
                if not ok:
                    print(f"dialogue {d['seed']}: {turn['user']} -> {reply} (expected {turn['expect']})")
        if d["seed"] in GOLDEN:
            _, prompt, ids, out, reply, logits, margin = last
            case = {"dialogue": d["seed"], "prompt": prompt, "prompt_ids": ids, "greedy_ids": out,
                    "text": reply, "min_top2_margin": round(margin, 4)}
            if d["seed"] in LOGITS:
                case["last_prompt_logits_f32"] = [float(f"{x:.6g}") for x in logits.tolist()]
            cases.append(case)
    write_json(f"{args.out}/golden.json", {
        "source": "tools/demo_model/export.py: f32 PyTorch forward pass of the bf16 weights, greedy",
        "replay": {"questions": asked, "right": right, "questions_600": far, "right_600": far_right},
        "cases": cases}, indent=None)
    size = sum(os.path.getsize(os.path.join(args.out, f)) for f in os.listdir(args.out))
    print(f"step {state['step']}: replayed {asked} questions, {right} right; "
          f"{far} from 600 tokens or more, {far_right} right; folder {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
