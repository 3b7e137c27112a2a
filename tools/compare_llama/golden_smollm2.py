#!/usr/bin/env python3
"""Writes tests/e2e/golden/smollm2.json: llama.cpp's ids, 200 greedy tokens and perplexity of
SmolLM2.

  golden_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf TEXT [--llama DIR] [--threads N]

Build llama.cpp with build.sh first (DIR), and judge.cpp as build.sh builds logits.cpp.  The model
is requantised to F32, K and V are f32, and flash attention is off.  The perplexity is that of the
first 64 KiB of TEXT in windows of 512; the second half of each window is scored.  `close` lists the
steps whose two best logits lie within 1e-3: there another order of summation may choose another
token.  `first` has the five best tokens after the prompt, with the logarithms of their
probabilities."""
import argparse
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    "The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because", "1, 1, 2, 3, 5, 8, 13,", "The three laws of thermodynamics are:\n1.",
    "Der schnelle braune Fuchs", "日本の首都は", "Привет, как дела?", "E = mc², ∑ x_i ≤ 10 — “quoted” text… 🙂",
    USER.format("What is gravity?"), USER.format("Write a haiku about autumn."),
    USER.format("List five animals that live in the sea."), USER.format("Explain what a database index is."),
    USER.format("Give me a recipe for pancakes."), USER.format("Translate 'good morning' into Spanish."),
    USER.format("What is 17 + 25?"), USER.format("Why is the sky blue? Answer in one sentence."),
    USER.format("Tell me about the Roman Empire.  Be   brief.\n\n\nThanks!"),
    "<|im_start|>system\nYou answer in rhymes.<|im_end|>\n" + USER.format("Who are you?"),
]

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("model")
parser.add_argument("text")
parser.add_argument("--llama", default=str(ROOT / ".venv" / "llama"))
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()
f32 = os.path.join(args.llama, "smollm2-f32.gguf")
bin_dir = os.path.join(args.llama, "build", "bin")
if not os.path.exists(f32):
    subprocess.run([f"{bin_dir}/llama-quantize", "--allow-requantize", args.model, f32, "F32"], check=True)


def judge(*words, given):
    done = subprocess.run([os.path.join(args.llama, "judge"), *words], input=given, capture_output=True, check=True)
    return done.stdout.decode().splitlines()


ids = judge("ids", args.model, given=b"".join(p.encode() + b"\0" for p in PROMPTS))
lines = judge("greedy", f32, "200", str(args.threads), given="\n".join(ids).encode() + b"\n")
cut = os.path.join(args.llama, "text64k.txt")
open(cut, "wb").write(open(args.text, "rb").read()[:65536])


def perplexity(model, *words):
    done = subprocess.run([f"{bin_dir}/llama-perplexity", "-m", model, "-f", cut, "-c", "512", "-t", str(args.threads), *words],
                          capture_output=True, text=True, check=True)
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)[1])


prompts = []
for text, prompt, line in zip(PROMPTS, ids, lines):
    tokens, gaps, best = line.split("|")
    best = best.split()
    close = [i for i, g in enumerate(gaps.split()) if float(g) < 1e-3]
    prompts.append({"text": text, "ids": [int(i) for i in prompt.split()], "greedy": [int(i) for i in tokens.split()],
                    "close": close, "first": [[int(i), float(p)] for i, p in zip(best[::2], best[1::2])]})
out = {"oracle": "llama.cpp of llama-cpp-python 0.3.36", "perplexity_64k":
       perplexity(f32, "-b", "512", "-ctk", "f32", "-ctv", "f32", "-fa", "off"), "perplexity_64k_file": perplexity(args.model),
       "prompts": prompts}
path = ROOT / "tests" / "e2e" / "golden" / "smollm2.json"
path.parent.mkdir(exist_ok=True)
path.write_text(json.dumps(out, ensure_ascii=False).replace('{"text"', '\n{"text"') + "\n")
print(f"{path}: perplexity {out['perplexity_64k']}, close steps {sum(len(p['close']) for p in prompts)}")
