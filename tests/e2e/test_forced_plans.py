"""A forced plan whose records the store lacks: `run` and `serve` use the records that exist, give
the same answer, and report the methods that ran."""
import json
import os
import subprocess
import sys

from serve_client import HC, MODEL, Server
from tap import check, end, equal, scratch

if not os.path.exists(os.path.join(MODEL, "model.safetensors")):
    print("1..0 # SKIP ../shared/models/stories260K is not there")
    sys.exit(0)

tmp = scratch("plans")
store = os.path.join(tmp, "s")
LONG = "Once upon a time, there was a little girl named Lily. " * 8


def run(*options):
    return subprocess.run([HC, "run", MODEL, "--store", store, "--raw", "--prompt", LONG, "--max-tokens", "8", "--json", *options],
                          capture_output=True, text=True)


def answer(*options):
    p = run(*options)
    return json.loads(p.stdout) if p.returncode == 0 else p.stderr


first = answer("--save", "hidden", "--plan", "kv")
equal("nothing is stored: nothing is restored", first["plan"]["layers"], "")
kept = answer("--save", "hidden", "--plan", "hidden")
equal("the plan is carried out", set(kept["plan"]["layers"]), {"H"})
other = answer("--save", "none", "--plan", "kv")
equal("kv of hidden states: they are used", set(other["plan"]["layers"]), {"H"})
equal("the same logits", (first["logits_digest"], kept["logits_digest"]), (other["logits_digest"],) * 2)
check("as much is restored", 64 <= kept["cached_tokens"] <= other["cached_tokens"], (kept, other))

server = Server(MODEL, "--store", store, "--plan", "kv", "--no-reuse", "--plain-chat")
r = server.complete(LONG, max_tokens=8)
plan = r["timings"]["restore_plan"]
check("serve: restore_plan tells the methods", plan and set(plan["layers"]) == {"H"}, r["timings"])
equal("serve: the same text", r["choices"][0]["text"], first["text"])
server.post("/v1/cache/flush", {})
r = server.complete(LONG, max_tokens=8)
check("another request restores it again", r["timings"]["restore_plan"], r["timings"])
equal("serve ends with status 0", server.stop(), 0)

end()
