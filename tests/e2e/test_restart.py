"""A start of `hcache run` hashes and measures nothing that an earlier one has found out, and a later turn of a chat computes
only what is new."""
import json
import os
import shutil
import signal
import subprocess
import time

from serve_client import HC, MODEL, Server, until
from tap import PATIENCE, check, end, equal, scratch

tmp = scratch("restart")
cache, model, store = (os.path.join(tmp, name) for name in ("cache", "model", "store"))
os.mkdir(cache)
shutil.copytree(MODEL, model)
env = {**os.environ, "XDG_CACHE_HOME": cache}
ids = os.path.join(tmp, "ids")
with open(ids, "w") as f:
    f.write(" ".join(str(i * 7 % 400 + 20) for i in range(300)))


def words(*more):
    return [HC, "run", model, "--token-ids", ids, "--max-tokens", "2", "--ignore-eos", "--json", *more]


def run(*more):
    p = subprocess.run(words(*more), capture_output=True, text=True, timeout=PATIENCE, env=env)
    if p.returncode != 0:
        raise RuntimeError(p.stderr[-800:])
    return json.loads(p.stdout)


def hashed(*more):
    return run(*more)["timings"]["start_hashed_bytes"]


# --- a start --------------------------------------------------------------------------------------
weights = os.path.join(model, "model.safetensors")
check("the first start hashes the file", hashed() > 1 << 20)
check("a later one, when the file has been still for two seconds, does not", until(lambda: hashed() == 0))
first = run("--store", store, "--save", "kv")
check("it runs the fingerprint's probe, and measures the machine", first["timings"]["start_passes"] > 1, first["timings"])
again = run("--store", store)
equal("the next one runs the probe alone, and hashes nothing",
      (again["timings"]["start_passes"], again["timings"]["start_hashed_bytes"]), (1, 0))
load = dict(again["timings"]["load_ms"])
total = load.pop("total")
check("the parts of the start are told, and make up the whole",
      abs(sum(load.values()) - total) < 0.2 * total and load == {s["name"]: s["ms"] for s in again["timings"]["spans"]} and
      {"weights", "store", "tokenizer", "fingerprint", "profile"} <= set(load), again["timings"])

# --- killed starts ----------------------------------------------------------------------------------
before = sorted(os.listdir(cache + "/hcache")), sorted(os.listdir(model)), sorted(os.listdir(store))
for i in range(12):
    p = subprocess.Popen(words("--store", store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    time.sleep(0.005 * i)
    p.send_signal(signal.SIGKILL)
    p.wait()
run("--store", store)  # which tidies up the log of the store's index
after = sorted(os.listdir(cache + "/hcache")), sorted(os.listdir(model)), sorted(os.listdir(store))
equal("killed starts leave nothing behind", after, before)
check("and what was remembered is still known", hashed() == 0)

# --- an edited file -----------------------------------------------------------------------------------
stat = os.stat(weights)
with open(weights, "r+b") as f:
    f.seek(stat.st_size - 1000)
    byte = f.read(1)
    f.seek(stat.st_size - 1000)
    f.write(bytes([byte[0] ^ 1]))
os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
edited = run("--store", store)
check("an edited file is hashed again, although its time of writing was set back", edited["timings"]["start_hashed_bytes"] > 1 << 20)
equal("and state of the other weights is not used", edited["cached_tokens"], 0)

# --- a chat -------------------------------------------------------------------------------------------
server = Server(MODEL, "--plain-chat", "--store", os.path.join(tmp, "chat"))
messages, known, computed = [{"role": "user", "content": "Once upon a time there was a little girl. " * 12}], 0, []
for turn in range(5):
    _, _, a = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 9, "ignore_eos": True, "temperature": 0})
    u = a["usage"]
    server.post("/v1/cache/flush", {})  # the turn's unfinished chunk is stored
    if turn > 0:
        computed.append((u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"], u["prompt_tokens"] - known + 1))
    known = u["prompt_tokens"] + u["completion_tokens"]
    messages += [a["choices"][0]["message"], {"role": "user", "content": "And then?"}]
# Without a chat template an answer's last tokens are not always those of its text.
check("a later turn computes what is behind the turn before, not an unfinished block", all(a <= b + 8 for a, b in computed), computed)
check("status 0", server.stop() == 0)
end()
