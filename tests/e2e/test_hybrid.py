"""`hcache batch` with contexts on the host: every method gives the same lines, the bytes over the
link are counted, and a killed job resumes."""
import json
import os
import random
import signal
import subprocess

from serve_client import HC, until
from tap import PATIENCE, check, end, equal, scratch

DEMO = "models/demo"
SEED = int(os.environ.get("KILL_SEED", "1"))
tmp = scratch("hybrid")
# Beside its buffers the device has room for about ten blocks. Six contexts take up to 24, and the
# rest of these is on the host.
ROOM = ["--kv-tokens", "1280", "--max-context", "256", "--max-sequences", "6"]
HOST = ["--host-memory", "32M"]


def path(name):
    return os.path.join(tmp, name)


def command(out, *options):
    return [HC, "batch", DEMO, "--in", path("in"), "--out", path(out), "--json", *ROOM, *options]


def run(out, *options):
    p = subprocess.run(command(out, *options), capture_output=True, text=True, timeout=PATIENCE)
    return p, json.loads(p.stdout) if p.stdout else {}


def lines(name):
    try:
        with open(path(name), "rb") as f:
            return sorted(f.read().split(b"\n")[:-1])
    except FileNotFoundError:
        return []


rng = random.Random(SEED)
with open(path("in"), "w") as f:
    for i in range(14):
        body = {"prompt": [rng.randrange(5, 400) for _ in range(90 + 8 * i)], "max_tokens": 24, "ignore_eos": True,
                "logprobs": 1, "temperature": i % 3 / 2}
        f.write(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")

p, got = run("off", "--method", "off")
equal("without blocks on the host: status 0, and nothing comes over the link", (p.returncode, got["link_bytes"]), (0, 0))
want = lines("off")
for method in ("kv", "act", "paper", "recompute"):
    p, got = run(method, "--method", method, *HOST, "--link", "2GB")
    equal(f"{method}: status 0", p.returncode, 0)
    equal(f"{method}: the same lines", lines(method), want)
    if method == "kv":
        check("kv: keys and values come over the link", got["link_bytes"] > 0, got)
        check("kv: it says where blocks lie", "on the host: " in p.stderr and "R2" in p.stderr, p.stderr)
    if method == "recompute":
        equal("recompute: nothing comes over the link", got["link_bytes"], 0)
p, got = run("auto", *HOST)
check("auto on a CPU says why it is off", p.returncode == 0 and got["link_bytes"] == 0 and
      "no blocks on the host: the device computes in the host's memory" in p.stderr, p.stderr)
p, _ = run("store", "--method", "act", *HOST, "--store", path("store"))
check("blocks on the host and a store exclude each other", p.returncode == 2 and "--store" in p.stderr, p.stderr)
p, _ = run("little", "--method", "kv", "--host-memory", "1K", "--kv-tokens", "640")
check("too little memory is refused, with what to do", p.returncode == 1 and "--kv-tokens" in p.stderr, p.stderr)

# Each kill comes after more lines of output than the one before.
for want_lines in (1, 5, 9):
    p = subprocess.Popen(command("killed", "--method", "kv", *HOST), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(lines("killed")) >= want_lines or p.poll() is not None)
    p.send_signal(signal.SIGKILL)
    p.wait()
p, got = run("killed", "--method", "paper", *HOST)
check("a killed job skips the lines that were there", p.returncode == 0 and got["skipped"] > 0, got)
equal("... and ends with the same lines, by another method too", lines("killed"), want)
end()
