"""Models with windows and with latent attention: after kill -9 at random moments, in an imported copy of
the store, and from a Redis, logits are those of a run that kept its state."""
import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

from redis_proxy import Redis, is_installed
from serve_client import SAVING, Server, until
from tap import HC, check, end, equal, ok, scratch

FAMILIES = "tests/model/golden/families"
SEED = int(os.environ.get("KILL_SEED", "1"))
tmp = scratch("kept-windows")
rng = random.Random(SEED)


def longer(path):
    """Returns a copy of a model with a longer context."""
    model = os.path.join(tmp, os.path.basename(path))
    shutil.copytree(path, model)
    config = Path(model, "config.json")
    config.write_text(json.dumps(dict(json.loads(config.read_text()), max_position_embeddings=4096)))
    return model


def command(model, ids, *options):
    path = os.path.join(tmp, "ids")
    Path(path).write_text(" ".join(map(str, ids)))
    return [HC, "run", model, "--token-ids", path, "--max-tokens", "8", "--ignore-eos", "--json", *options]


def run(*args):
    return json.loads(ok(*command(*args)[1:]))


def stored(store):
    return json.loads(ok("store", "ls", store, "--json"))["chunks"]


def killed_turns(path):
    model, family = longer(path), os.path.basename(path)
    store, ids = model + ".store", [rng.randrange(3, 120) for _ in range(3000)]
    golden = Path(model, "golden.json")
    if golden.exists():  # a trained model, with text
        ids = [i for c in json.loads(golden.read_text())["cases"] for i in c["prompt_ids"] + c["greedy_ids"]] * 3
    wrong, missed, n = [], [], 1200
    for turn in range(5):
        n += rng.randrange(150, 400)
        start = time.monotonic()
        want = run(model, ids[:n])["logits_digest"]
        took = time.monotonic() - start
        p = subprocess.Popen(command(model, ids[:n], "--store", store, "--save", "both"), stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        time.sleep(took * rng.uniform(0.2, 1.2))
        p.kill()
        p.wait()
        for plan in ("auto", "kv"):
            r = run(model, ids[:n], "--store", store, "--save", "both", "--plan", plan)
            if r["logits_digest"] != want:
                wrong.append(f"turn {turn}, {plan}: {r}")
        wrong += [f"turn {turn}: damaged"] * json.loads(ok("store", "verify", store, "--json"))["bad"]
        if r["cached_tokens"] < n - 64:
            missed.append(f"turn {turn}: {r}")
    check(f"{family}: after each kill the logits are right, and the store is sound (seed {SEED})", not wrong, wrong)
    check(f"{family}: a prompt that is asked for again comes back", not missed, missed)
    whole = max(c["layers"].count("B") for c in stored(store))
    n_less = sum(c["layers"].count("B") < whole for c in stored(store))
    check(f"{family}: most chunks have lost their windows", n_less > n // 128, stored(store))
    copy, file = model + ".copy", model + ".hcb"
    ok("store", "export", store, "--out", file, "--all")
    ok("store", "import", copy, "--in", file)
    equal(f"{family}: an imported copy is sound", json.loads(ok("store", "verify", copy, "--json"))["bad"], 0)
    # how many tokens the planner itself takes depends on times
    a, b = (run(model, ids[:n], "--store", s, "--save", "none", "--plan", "kv") for s in (store, copy))
    equal(f"{family}: and comes back with the same logits", (b["cached_tokens"], b["logits_digest"]),
          (a["cached_tokens"], want))


def from_redis(family, redis):
    ids, seen = [rng.randrange(3, 120) for _ in range(200)], []
    redis.ask("FLUSHALL")
    for process in range(2):
        s = Server(os.path.join(FAMILIES, family), "--store", "memory", "--remote", redis.url(), *SAVING)
        until(lambda: s.request("GET", "/v1/cache/stats")[2]["tiers"][-1]["up"])
        r = s.post("/v1/completions", {"prompt": ids, "max_tokens": 8, "ignore_eos": True, "temperature": 0, "logprobs": 1})[2]
        seen.append((r["choices"][0]["logprobs"]["token_logprobs"], r["timings"]["remote_tokens"]))
        until(lambda: len(redis.chunks()) >= 3)
        s.kill()
    equal(f"{family}: a Redis has the state of a killed server", seen[1], (seen[0][0], 192))


for name in ("gemma3", "gemma4", "gpt-oss"):
    killed_turns(os.path.join(FAMILIES, name))
killed_turns("models/experts")
check("redis-server is installed (tools/setup.sh --test)", is_installed())
if is_installed():
    server = Redis()
    for name in ("gemma4", "deepseek-v2", "glm4-lite"):
        from_redis(name, server)
    server.stop()
end()
