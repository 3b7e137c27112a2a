#!/usr/bin/env python3
"""Compares every arrangement of processes with one process, for every model that can be cut:

    tools/rank_matrix.py [BUILD] [--only PATTERN] [--most 4]

Models are the golden ones of tests/model/golden/families and small random ones. Arrangements are all products of ranks and
stages that are 1, 2 or 4 processes. Each computes a prompt and saves its state; each then restores it, in new processes, by
every plan, and one process restores it, too. The logits' digests must be those of one process without a store, and plans that
restore must have restored. Prints a line for a model, with the reason where an arrangement is refused."""
import argparse
import concurrent.futures
import glob
import json
import os
import random
import re
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
p.add_argument("build", nargs="?", default=os.path.join(ROOT, "build", "release"))
p.add_argument("--only", default="", help="models whose name this regular expression finds")
p.add_argument("--most", type=int, default=4, help="processes (4)")
p.add_argument("--jobs", type=int, default=2, help="models at once (2)")
args = p.parse_args()
HC = os.path.abspath(os.path.join(args.build, "hcache"))
if not os.path.exists(os.path.join(os.path.dirname(HC), "hcache-mpi.so")):
    sys.exit(f"rank_matrix: {os.path.dirname(HC)} has no hcache-mpi.so, so nothing would be compared: run make all")
os.environ.update(HCACHE_PLUGINS=os.path.dirname(HC), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
MODELS = [*sorted(glob.glob(os.path.join(ROOT, "tests", "model", "golden", "families", "*"))),
          "synth:tiny-mha", "synth:tiny-gqa", "synth:tiny-hybrid", "synth:tiny-conv", "synth:tiny-mamba"]
ARRANGEMENTS = [(t, n // t) for n in (1, 2, 4) if n <= args.most for t in (1, 2, 4) if n % t == 0]
PLANS = "kv", "hidden", "mixed", "auto", "recompute"


def run(model, prompt, t, s, *options):
    """Returns the answer of a run in new processes, or its error as a text."""
    r = subprocess.run([HC, "run", model, "--threads", "1", "--tensor-parallel", str(t), "--pipeline-parallel", str(s),
                        "--token-ids", prompt, "--max-tokens", "4", "--ignore-eos", "--json", *options],
                       capture_output=True, text=True, timeout=600)
    return json.loads(r.stdout) if r.returncode == 0 else r.stderr.strip() or f"exit code {r.returncode}"


def check(model, tmp):
    """Returns the model's line, and how many runs were compared and were wrong."""
    name = os.path.basename(model)
    prompt = os.path.join(tmp, name + ".ids")
    with open(prompt, "w") as f:
        f.write(" ".join(map(str, random.Random(1).choices(range(4, 120), k=200))))
    one = run(model, prompt, 1, 1)
    if isinstance(one, str):
        return f"{name}: {one}", 0, 1
    info = json.loads(subprocess.run([HC, "model", "info", model, "--json"], capture_output=True, text=True).stdout)
    n_layers = info["hidden_bytes_per_token"] // info["hidden_bytes_per_token_layer"]  # some layers keep nothing
    mixed = "HK" if n_layers == 2 else ("R" + "HK" * n_layers)[:n_layers]
    n, wrong, refused = 0, [], {}
    for t, s in ARRANGEMENTS:
        kept = "--store", os.path.join(tmp, f"{name}.{t}.{s}")
        tries = [((t, s), "recompute", "both"), *(((t, s), plan, "none") for plan in PLANS), ((1, 1), "kv", "none")]
        for who, plan, save in tries:
            letters = mixed if plan == "mixed" else plan
            got = run(model, prompt, *who, *kept, "--plan", letters, "--save", save)
            if isinstance(got, str) and save == "both":
                refused[t, s] = re.sub(".*: (.*): .*", r"\1", got.splitlines()[-1])
                wrong += [f"{t}x{s}: {got}"] if t * s == 1 else []
                break
            n += 1
            restores = save == "none" and plan not in ("auto", "recompute")
            if isinstance(got, str) or got["logits_digest"] != one["logits_digest"] or restores and got["cached_tokens"] == 0:
                wrong.append(f"{t}x{s} restored by {who[0]}x{who[1]}, plan {letters}, saved {save}: {got}")
    line = f"{name}: {n} runs, {len(wrong)} wrong"
    for why in sorted(set(refused.values())):
        line += "; refused " + " ".join(f"{t}x{s}" for t, s in refused if refused[t, s] == why) + f": {why}"
    return "\n  ".join([line, *wrong]), n, len(wrong)


with tempfile.TemporaryDirectory(prefix="hcache-matrix.") as tmp, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
    results = []
    for line, *counts in pool.map(lambda m: check(m, tmp), [m for m in MODELS if re.search(args.only, m)]):
        print(line, flush=True)
        results.append(counts)
print(f"{sum(n for n, _ in results)} runs of {len(results)} models compared, {sum(w for _, w in results)} wrong")
sys.exit(not results or any(w for _, w in results))
