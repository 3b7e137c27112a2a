#!/usr/bin/env python3
"""Measures a restart as a user meets it, alternating between hcache and llama.cpp's server.

    bench/restart_figures.py F.gguf LLAMA_SERVER [--rounds 5] [--tokens 3000] [--realtime]
                             [--port 22400] [--caches 'warm,as it is,dropped'] [--image-s 20] [--json]

Both programs compute one prompt of --tokens token ids (some 2,400 words), save its state (hcache
in its store, llama-server in a slot file) and are killed with SIGKILL, hcache when it has also
written the image of its weights. Then, by turns, each is
started again, and the client measures from exec:

    health    until GET /health is 200
    token     until the first token of the same prompt has come (llama-server: slot restored first)
    alone     the difference: restoring and the first token with the server up
    peak      VmHWM after the token

with the files read into the page cache, as the programs have left them there (hcache writes and
reads its store past that cache), and dropped from it (posix_fadvise, DONTNEED). At the end, if the
model has a chat template, a chat of six turns counts the tokens of each later turn that hcache
computes: warm, after SIGTERM and after SIGKILL between the turns. A turn has to compute those
behind the prompt and answer before it. Figures are medians. --realtime starts both with chrt -f:
only for short runs on a machine with other work."""
import argparse
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
HC = os.path.join(HERE, "..", "build", "hcache")
p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
p.add_argument("model")
p.add_argument("llama_server")
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--tokens", type=int, default=3000)
p.add_argument("--realtime", action="store_true")
p.add_argument("--port", type=int, default=22400)
p.add_argument("--caches", default="warm,as it is,dropped")
p.add_argument("--image-s", type=float, default=20, help="seconds that the image of the weights may take; 0: none is waited for")
p.add_argument("--json", action="store_true")
args = p.parse_args()
tmp = tempfile.mkdtemp(prefix="restart.", dir=os.environ.get("TMPDIR", "/tmp"))
store, slots, images = os.path.join(tmp, "store"), os.path.join(tmp, "slots"), os.path.join(tmp, "cache", "hcache", "images")
os.mkdir(slots)
os.environ["XDG_CACHE_HOME"] = os.path.join(tmp, "cache")
info = json.loads(subprocess.run([HC, "model", "info", args.model, "--json"], capture_output=True, check=True).stdout)
context, vocab = info["model"]["context"], info["vocab_size"]
prompt = [(i * 7919 + 13) % (vocab - 200) + 100 for i in range(min(args.tokens, context - 64))]
first = ["chrt", "-f", "10"] if args.realtime else []
COMMAND = {
    "hcache": [HC, "serve", args.model, "--port", str(args.port), "--store", store],
    "llama": [args.llama_server, "-m", args.model, "--port", str(args.port + 1), "--host", "127.0.0.1", "-np", "1",
              "-c", str(min(context, 8192)), "--slot-save-path", slots],
}
PORT = {"hcache": args.port, "llama": args.port + 1}


def call(who, path, body=None):
    r = urllib.request.Request(f"http://127.0.0.1:{PORT[who]}{path}", None if body is None else json.dumps(body).encode(),
                               {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=600) as f:
        return f.read()


class Run:
    """A program from exec on."""

    def __init__(self, who):
        self.who, self.began = who, time.monotonic()
        self.p = subprocess.Popen(first + COMMAND[who], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                call(who, "/health")
                break
            except (urllib.error.URLError, ConnectionError, OSError):
                if self.p.poll() is not None:
                    sys.exit(f"{who} did not start: {' '.join(COMMAND[who])}")
                time.sleep(0.001)
        self.health = time.monotonic() - self.began

    def complete(self, ids):
        """Asks for one token. Returns how many tokens of the prompt were computed."""
        if self.who == "llama":
            return json.loads(call("llama", "/completion", {"prompt": ids, "n_predict": 1, "temperature": 0,
                                                           "cache_prompt": True}))["timings"]["prompt_n"]
        u = json.loads(call("hcache", "/v1/completions", {"prompt": ids, "max_tokens": 1, "temperature": 0}))["usage"]
        return u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"]

    def peak_mb(self):
        with open(f"/proc/{self.p.pid}/status") as f:
            return next(int(line.split()[1]) / 1e3 for line in f if line.startswith("VmHWM"))

    def end(self, how=signal.SIGKILL):
        self.p.send_signal(how)
        self.p.wait()


def saved():
    """Waits until the store does not grow any more."""
    before = None
    while True:
        now = json.loads(call("hcache", "/v1/cache/stats"))
        if now == before:
            return
        before = now
        time.sleep(1)


def prepare(who):
    r = Run(who)
    r.complete(prompt)
    if who == "llama":
        call("llama", "/slots/0?action=save", {"filename": "slot"})
    else:
        saved()
        deadline = time.monotonic() + args.image_s
        while not (os.path.isdir(images) and os.listdir(images)) and time.monotonic() < deadline:
            time.sleep(0.1)
    r.end()


def cache_files(keeps):
    """Reads the files of both programs into the page cache, or drops them from it."""
    os.sync()
    for path in [args.model] + [f for d in (store, slots, images) for f in glob.glob(d + "/**", recursive=True) if os.path.isfile(f)]:
        with open(path, "rb") as f:
            if keeps:
                while f.read(1 << 22):
                    pass
            else:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def restart(who):
    r = Run(who)
    if who == "llama":
        call("llama", "/slots/0?action=restore", {"filename": "slot"})
    computed = r.complete(prompt)
    token = time.monotonic() - r.began
    row = {"health": 1e3 * r.health, "token": 1e3 * token, "alone": 1e3 * (token - r.health), "peak": r.peak_mb(),
           "computed": computed}
    r.end()
    return row


def chat(between):
    """Six turns. Returns for the later ones the tokens that were computed, and those behind the prompt and answer
    before."""
    shutil.rmtree(store, ignore_errors=True)
    r, rows, known = Run("hcache"), [], 0
    messages = [{"role": "user", "content": " ".join(f"Box {i} holds {i * 7} coins." for i in range(30))}]
    for turn in range(6):
        a = json.loads(call("hcache", "/v1/chat/completions", {"messages": messages, "max_tokens": 37, "temperature": 0}))
        u = a["usage"]
        if turn > 0:
            rows.append((u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"], u["prompt_tokens"] - known))
        known = u["prompt_tokens"] + u["completion_tokens"]
        messages += [a["choices"][0]["message"], {"role": "user", "content": f"And what is in box {turn + 3}?"}]
        if between is not None and turn < 5:
            if between == signal.SIGKILL:
                saved()
            r.end(between)
            r = Run("hcache")
    r.end()
    return rows


for who in COMMAND:
    prepare(who)
    restart(who)  # what an earlier start found out is remembered
figures = {}
for cache in args.caches.split(","):
    rows = {who: [] for who in COMMAND}
    for _ in range(args.rounds):
        for who in COMMAND:
            if cache != "as it is":
                cache_files(cache == "warm")
            rows[who].append(restart(who))
    figures[cache] = {who: {k: round(statistics.median(r[k] for r in rows[who]), 1) for k in rows[who][0]} for who in rows}
figures["chat"] = {}
if info["model"]["template"]:
    for name, how in ("warm", None), ("SIGTERM", signal.SIGTERM), ("SIGKILL", signal.SIGKILL):
        figures["chat"][name] = chat(how)
shutil.rmtree(tmp)
if args.json:
    print(json.dumps(figures))
    sys.exit()
print(f"{os.path.basename(args.model)}: a prompt of {len(prompt)} tokens; medians of {args.rounds} rounds by turns")
for cache in args.caches.split(","):
    for what in ("health", "token", "alone", "peak"):
        a, b = figures[cache]["hcache"][what], figures[cache]["llama"][what]
        unit = "MB" if what == "peak" else "ms"
        print(f"{cache:8} {what:7} hcache {a:8.0f} {unit}   llama-server {b:8.0f} {unit}   {a / b:.2f}")
for name, rows in figures["chat"].items():
    print(f"chat, {name}: computed, and behind the common prefix: " + ", ".join(f"{a} {b}" for a, b in rows))
