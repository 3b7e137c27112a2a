#!/usr/bin/env python3
"""Measures decoding of a model larger than its memory in one memory cgroup, alternating between
hcache with streamed weights and transformers with accelerate's disk offload.

    bench/accelerate_figures.py PYTHON [--limit 2000] [--budget 1850] [--cpu 1300,1000]
                                [--batches 1,8] [--tokens 4] [--rounds 2] [--keep DIR]

PYTHON is an interpreter that has torch, transformers and accelerate (a virtual environment; a CPU
build of torch will do). The script makes a Llama of 1.26 thousand million parameters in bf16 (2.5
GB) with random weights. Three options are in megabytes: --limit is the cgroup's, --budget is
`--weights-memory`, and --cpu lists values of accelerate's max_memory["cpu"]. The script uses the
first of these with which accelerate survives in the cgroup. Needs root and a cgroup. The page cache
of the model's files is dropped before each run. Only decode steps are timed."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from memory_group import Group, drop_cache

HERE = os.path.dirname(os.path.abspath(__file__))
HC = os.path.join(HERE, "..", "build", "hcache")
DEMO = os.path.join(HERE, "..", "models", "demo")

# Runs in PYTHON.  Weights are drawn layer by layer, so that making them needs little memory.
MAKE = """
import json, sys, torch
from safetensors.torch import save_file
out, n_layers = sys.argv[1], int(sys.argv[2])
d, ffn, vocab = 2048, 5632, 32000
torch.manual_seed(1)
index = {}
def draw(*shape):
    return (torch.randn(*shape) * 0.02).to(torch.bfloat16)
def ones():
    return torch.ones(d, dtype=torch.bfloat16)
def save(name, tensors):
    save_file(tensors, f"{out}/{name}", metadata={"format": "pt"})
    index.update({k: name for k in tensors})
save("head.safetensors", {"model.embed_tokens.weight": draw(vocab, d),
                          "lm_head.weight": draw(vocab, d), "model.norm.weight": ones()})
for i in range(n_layers):
    p = f"model.layers.{i}."
    layer = {p + f"self_attn.{n}_proj.weight": draw(d, d) for n in "qkvo"}
    layer |= {p + f"mlp.{n}_proj.weight": draw(ffn, d) for n in ("gate", "up")}
    layer |= {p + "mlp.down_proj.weight": draw(d, ffn)}
    layer |= {p + f"{n}_layernorm.weight": ones() for n in ("input", "post_attention")}
    save(f"layer{i}.safetensors", layer)
with open(f"{out}/model.safetensors.index.json", "w") as f:
    json.dump({"metadata": {}, "weight_map": index}, f)
config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": d,
          "head_dim": 64, "intermediate_size": ffn, "num_hidden_layers": n_layers,
          "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": vocab,
          "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
          "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
          "torch_dtype": "bfloat16"}
with open(f"{out}/config.json", "w") as f:
    json.dump(config, f)
"""

# Runs in PYTHON, in the cgroup.  Layers that max_memory does not hold are read in each step.
OFFLOADED = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM
path, cpu_mb, n_prompt, n_tokens, folder, batches = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(
    path, dtype=torch.bfloat16, device_map="auto", offload_folder=folder,
    max_memory={"cpu": int(cpu_mb) * 1000000})
n_disk = sum(v == "disk" for v in model.hf_device_map.values())
n_prompt, n_tokens, rows = int(n_prompt), int(n_tokens), []
with torch.inference_mode():
    for b in map(int, batches.split(",")):
        ids = (torch.arange(b * n_prompt).reshape(b, n_prompt) * 7919 + 13) % 3000
        out = model(input_ids=ids, use_cache=True)
        t0 = time.perf_counter()
        for _ in range(n_tokens):
            ids = out.logits[:, -1:].argmax(-1)
            out = model(input_ids=ids, past_key_values=out.past_key_values, use_cache=True)
        seconds = time.perf_counter() - t0
        rows.append({"batch": b, "tokens_per_s": b * n_tokens / seconds})
print(json.dumps({"disk_modules": n_disk, "rows": rows}))
"""


def accelerate(group, args, folder, cpu_mb):
    """Returns (result, process). The result is None if the process was killed."""
    drop_cache(folder)
    p = group.run([args.python, os.path.join(folder, "offloaded.py"),
                   os.path.join(folder, "model"), str(cpu_mb), str(args.prompt),
                   str(args.tokens), os.path.join(folder, "offload"), args.batches])
    return (json.loads(p.stdout.splitlines()[-1]) if p.returncode == 0 else None), p


def hcache(group, args, folder):
    drop_cache(folder)
    p = group.run([HC, "bench", "stream", os.path.join(folder, "packed"), "--weights-memory",
                   f"{args.budget}MB", "--batches", args.batches, "--prefill", "64", "--prompt",
                   str(args.prompt), "--tokens", str(args.tokens), "--json"])
    if p.returncode != 0:
        sys.exit(p.stderr[-2000:])
    return [r for r in json.loads(p.stdout)["rows"] if r["phase"] == "decode"]


def make(args, folder):
    model = os.path.join(folder, "model")
    os.makedirs(model)
    os.makedirs(os.path.join(folder, "offload"))
    for name, text in (("make.py", MAKE), ("offloaded.py", OFFLOADED)):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    subprocess.run([args.python, os.path.join(folder, "make.py"), model, str(args.layers)],
                   check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(DEMO, name), model)
    subprocess.run([HC, "model", "pack", model, "--out", os.path.join(folder, "packed")],
                   check=True, stdout=subprocess.DEVNULL)


def find_cpu(group, args, folder):
    """Returns the first value of --cpu with which accelerate survives, and the result of that run."""
    last = None
    for cpu_mb in map(int, args.cpu.split(",")):
        got, last = accelerate(group, args, folder, cpu_mb)
        said = f"{got['disk_modules']} modules on disk" if got else f"status {last.returncode}"
        print(f"accelerate with max_memory {cpu_mb} MB: {said}", flush=True)
        if got and got["disk_modules"] > 0:
            return cpu_mb, got
    sys.exit("accelerate does not survive in this cgroup, or offloads nothing\n" +
             last.stderr[-2000:])


def measure(group, args, folder):
    cpu_mb, got = find_cpu(group, args, folder)
    ours, theirs = {}, {}
    for n in range(args.rounds):
        for r in hcache(group, args, folder):
            ours.setdefault(r["batch"], []).append(r["tokens_per_s"])
            print(f"round {n}: hcache, {r['batch']} requests: {r['tokens_per_s']:.3f} tokens/s, "
                  f"peak {r['peak_rss'] / 1e6:.0f} MB", flush=True)
        if n > 0:
            got, p = accelerate(group, args, folder, cpu_mb)
            if got is None:
                sys.exit(p.stderr[-2000:])
        for r in got["rows"]:
            theirs.setdefault(r["batch"], []).append(r["tokens_per_s"])
            print(f"round {n}: accelerate, {r['batch']} requests: {r['tokens_per_s']:.3f} "
                  "tokens/s", flush=True)
    print(f"\ncgroup of {args.limit} MB; medians of {args.rounds}, tokens/s\n"
          "requests  hcache  accelerate  times")
    for b in ours:
        a, c = statistics.median(ours[b]), statistics.median(theirs[b])
        print(f"{b:8} {a:7.2f} {c:11.3f} {a / c:6.1f}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("python")
    p.add_argument("--limit", type=int, default=2000)
    p.add_argument("--budget", type=int, default=1850)
    p.add_argument("--cpu", default="1300,1000")
    p.add_argument("--batches", default="1,8")
    p.add_argument("--tokens", type=int, default=4)
    p.add_argument("--prompt", type=int, default=16)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--layers", type=int, default=22)
    p.add_argument("--keep", help="folder for the made files, which later runs use again")
    args = p.parse_args()
    folder = args.keep or tempfile.mkdtemp(prefix="hcache-accelerate.", dir="/var/tmp")
    group = Group(args.limit)
    try:
        if not os.path.exists(os.path.join(folder, "packed")):
            make(args, folder)
        measure(group, args, folder)
    finally:
        group.close()
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
