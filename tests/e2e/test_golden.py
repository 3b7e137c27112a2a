"""`hcache run` gives the ids of an independent reference: for models/demo, for models/experts (routed
text), and for the models in ../shared (grouped heads, fp64)."""
import json
import os
import subprocess
import sys

from tap import HC, PATIENCE

SHARED = os.environ.get("HCACHE_SHARED", "../shared")
MODELS = ["models/demo", "models/experts"] + [m for m in (os.path.join(SHARED, "models", n) for n in ("stories260K", "stories260K-mha"))
                            if os.path.exists(m)]

n = n_failed = 0


def check(name, good, detail=""):
    global n, n_failed
    n += 1
    n_failed += not good
    print(f"{'ok' if good else 'not ok'} {n} - {name}")
    if not good:
        print("# " + detail.replace("\n", "\n# ")[:1500])


for model in MODELS:
    for case in json.load(open(os.path.join(model, "golden.json")))["cases"]:
        want = case["greedy_ids"]
        name = f"{os.path.basename(model)} {case['prompt'][:30]!r}"
        p = subprocess.run([HC, "run", model, "--dtype", "f32", "--temperature", "0", "--raw", "--prompt", case["prompt"],
                            "--max-tokens", str(len(want)), "--ignore-eos", "--json"],
                           capture_output=True, text=True, timeout=PATIENCE)
        if p.returncode != 0:
            check(name, False, p.stderr)
            continue
        got = json.loads(p.stdout)
        check(name, got["token_ids"] == want and got["prompt_tokens"] == len(case["prompt_ids"]),
              f"got  {got['token_ids']}\nwant {want}\nprompt_tokens {got['prompt_tokens']}")
print(f"1..{n}")
sys.exit(n_failed > 0)
