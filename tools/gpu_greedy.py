#!/usr/bin/env python3
"""Greedy tokens after a restore against those of the run that was never evicted, on one device.

    gpu_greedy.py PROGRAM MODEL DIALOGUES.json DEVICE N_PROMPTS N_TOKENS CSV

Every prompt is computed and saved first (its ids are the reference), then restored by each plan from the same
store, in a process of its own.  The transcript is repeated up to about 600 tokens: several chunks."""
import csv
import json
import subprocess
import sys
import tempfile

PLANS = ["hidden", "kv", "r1,h1,k2"]


def prompt_of(dialogue):
    text = "\n".join(json.dumps(turn) for turn in dialogue["turns"]) if "turns" in dialogue else json.dumps(dialogue)
    return (text + "\n") * (1 + 1500 // len(text))


def run(program, model, device, store, prompt, n_tokens, more):
    command = [program, "run", model, "--device", device, "--store", store, "--prompt-file", "-", "--ignore-eos",
               "--max-tokens", str(n_tokens), "--json", *more]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    program, model, dialogues, device, n_prompts, n_tokens, out = sys.argv[1:]
    with open(dialogues, encoding="utf-8") as f:
        prompts = [prompt_of(d)[:1500] for d in json.load(f)["dialogues"][:int(n_prompts)]]
    bad = 0
    with open(out, "w", encoding="utf-8") as f, tempfile.TemporaryDirectory() as store:
        rows = csv.writer(f)
        rows.writerow(["prompt", "plan", "restored_tokens", "compared", "first_difference"])
        for i, prompt in enumerate(prompts):
            ref = run(program, model, device, store, prompt, n_tokens, ["--save", "both"])["token_ids"]
            for plan in PLANS:
                got = run(program, model, device, store, prompt, n_tokens, ["--save", "none", "--plan", plan])
                pairs = zip(ref, got["token_ids"])
                at = next((k for k, (a, b) in enumerate(pairs) if a != b), -1)
                same = at < 0 and len(ref) == len(got["token_ids"]) and got["cached_tokens"] > 0
                bad += not same
                rows.writerow([i, plan, got["cached_tokens"], len(ref), at])
                if not same:
                    print(f"prompt {i}, plan {plan}: {got['cached_tokens']} tokens restored ({got['miss']}), "
                          f"first difference at {at}")
    print(f"{len(prompts)} prompts, {len(PLANS)} plans, {n_tokens} tokens each: {bad} differ")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
