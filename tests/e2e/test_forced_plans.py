"""A forced plan whose records the store lacks: `run` and `serve` use the records that exist, give
the same answer, and report the difference in plan.deviation.  With --plan-strict the request fails.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from serve_client import HC, MODEL, Server  # noqa: E402
from tap import check, end, equal  # noqa: E402

if not os.path.exists(os.path.join(MODEL, "model.safetensors")):
    print("1..0 # SKIP ../shared/models/stories260K is not there")
    sys.exit(0)

tmp = tempfile.mkdtemp(prefix="hcache-plans.")
store = os.path.join(tmp, "s")
LONG = "Once upon a time, there was a little girl named Lily. " * 8


def run(*options):
    return subprocess.run([HC, "run", MODEL, "--store", store, "--raw", "--prompt", LONG, "--max-tokens", "8", "--json", *options],
                          capture_output=True, text=True)


def answer(*options):
    p = run(*options)
    return json.loads(p.stdout) if p.returncode == 0 else p.stderr


first = answer("--save", "hidden", "--plan", "kv")
check("nothing is stored: nothing is restored, and no plan deviates",
      first["plan"]["layers"] == "" and first["plan"]["deviation"] is None, first["plan"])
kept = answer("--save", "hidden", "--plan", "hidden")
check("the plan is carried out: no deviation",
      set(kept["plan"]["layers"]) == {"H"} and kept["plan"]["deviation"] is None, kept["plan"])
other = answer("--save", "none", "--plan", "kv")
check("kv of hidden states: they are used, and the plan says so",
      set(other["plan"]["layers"]) == {"H"} and "without KV" in other["plan"]["deviation"], other["plan"])
equal("the same logits", (first["logits_digest"], kept["logits_digest"]), (other["logits_digest"],) * 2)
check("as much is restored", 64 <= kept["cached_tokens"] <= other["cached_tokens"], (kept, other))
strict = run("--save", "none", "--plan", "kv", "--plan-strict")
check("--plan-strict: exit 1, with the reason", strict.returncode == 1 and "has no KV" in strict.stderr, strict)
ok = answer("--save", "none", "--plan", "hidden", "--plan-strict")
check("--plan-strict where the records are there", ok["plan"]["deviation"] is None, ok)
p = subprocess.run([HC, "run", MODEL, "--store", store, "--raw", "--prompt", LONG, "--max-tokens", "8", "--save", "none",
                    "--plan", "kv", "--verbose"], capture_output=True, text=True)
check("--verbose says it, too", "without KV" in p.stderr, p.stderr)

server = Server(MODEL, "--store", store, "--plan", "kv", "--no-reuse", "--plain-chat")
r = server.complete(LONG, max_tokens=8)
plan = r["timings"]["restore_plan"]
check("serve: 200, and restore_plan tells the deviation",
      plan and set(plan["layers"]) == {"H"} and "without KV" in plan["deviation"], r["timings"])
equal("serve: the same text", r["choices"][0]["text"], first["text"])
server.post("/v1/cache/flush", {})
r = server.complete(LONG, max_tokens=8)
check("another request restores it again", r["timings"]["restore_plan"]["deviation"], r["timings"])
equal("serve ends with status 0", server.stop(), 0)

server = Server(MODEL, "--store", store, "--plan", "kv", "--plan-strict", "--no-reuse")
status, _, body = server.post("/v1/completions", {"prompt": LONG, "max_tokens": 8})
check("serve --plan-strict: the request fails with the reason",
      status == 500 and "has no KV" in body["error"]["message"], (status, body))
equal("and the server goes on", server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})[0], 200)
equal("serve --plan-strict ends with status 0", server.stop(), 0)

shutil.rmtree(tmp, ignore_errors=True)
end()
