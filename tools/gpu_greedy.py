#!/usr/bin/env python3
"""Compares greedy tokens after a restore with those of a run that was never evicted, on one device.

  gpu_greedy.py PROGRAM MODEL DIALOGUES.json DEVICE N_PROMPTS N_TOKENS N_CHARACTERS CSV

Every prompt is computed and saved first (its ids are the reference), then restored by each plan
from the same store, each time in its own process.  The transcript is repeated up to N_CHARACTERS:
1500 are several chunks.  Prompts run side by side, each with its own store.  With
HCACHE_CUDA_MATH=exact or fixed the digest of all logits must be equal, too."""
import concurrent.futures
import csv
import json
import os
import subprocess
import sys
import tempfile

EXACT = os.environ.get("HCACHE_CUDA_MATH") in ("exact", "fixed")
PLANS = ["hidden", "kv", "RHKK"]


def prompt_of(dialogue, n_characters):
    text = "\n".join(json.dumps(turn) for turn in dialogue["turns"]) if "turns" in dialogue else json.dumps(dialogue)
    return ((text + "\n") * (1 + n_characters // len(text)))[:n_characters]


def run(program, model, device, store, prompt, n_tokens, more):
    command = [program, "run", model, "--device", device, "--store", store, "--raw", "--prompt-file", "-", "--ignore-eos",
               "--max-tokens", str(n_tokens), "--json", *more]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Failed(Exception):
    pass


def check(program, model, device, n_tokens, i, prompt):
    """Returns the rows of one prompt, and a message about it."""
    rows, said = [], []
    with tempfile.TemporaryDirectory() as store:
        first = run(program, model, device, store, prompt, n_tokens, ["--save", "both"])
        ref = first["token_ids"]
        for plan in PLANS:
            got = run(program, model, device, store, prompt, n_tokens, ["--save", "none", "--plan", plan])
            at = next((k for k, (a, b) in enumerate(zip(ref, got["token_ids"])) if a != b), -1)
            same = at < 0 and len(ref) == len(got["token_ids"]) and got["cached_tokens"] > 0
            logits = got["logits_digest"] == first["logits_digest"]
            same = same and (logits or not EXACT)
            rows.append([i, plan, got["cached_tokens"], len(ref), at, int(logits)])
            if not same:
                said.append(f"prompt {i}, plan {plan}: {got['cached_tokens']} tokens restored ({got['miss']}), "
                            f"first difference at {at}, logits {'equal' if logits else 'differ'}")
    return rows, said


def main():
    program, model, dialogues, device, n_prompts, n_tokens, n_characters, out = sys.argv[1:]
    with open(dialogues, encoding="utf-8") as f:
        prompts = [prompt_of(d, int(n_characters)) for d in json.load(f)["dialogues"][:int(n_prompts)]]
    bad = 0
    jobs = max(1, min(8, (os.cpu_count() or 2) // 2))
    with open(out, "w", encoding="utf-8") as f, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        rows = csv.writer(f)
        rows.writerow(["prompt", "plan", "restored_tokens", "compared", "first_difference", "same_logits"])
        ways = [pool.submit(check, program, model, device, n_tokens, i, p) for i, p in enumerate(prompts)]
        for way in ways:
            try:
                mine, said = way.result()
            except Failed as e:
                pool.shutdown(cancel_futures=True)
                sys.exit(str(e))
            rows.writerows(mine)
            f.flush()
            bad += len(said)
            print("\n".join(said), end="\n" if said else "", flush=True)
    print(f"{len(prompts)} prompts, {len(PLANS)} plans, {n_tokens} tokens each: {bad} differ")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
