#!/usr/bin/env python3
"""Time to first token of a real model, compared with llama-server, with and without a restart; arms
take turns.

  real_model_figures.py F.gguf LLAMA_SERVER [--rounds 2] [--words 900] [--threads 2] [--csv FILE]

Arms: hcache (a store on disk), llama-server with --cache-ram, llama-server with slot files. A round
of an arm:
  cold     the first request with a long prompt
  again    the same prompt after another one was served
  restart  the same prompt after kill -9 and a new process (with slot files, the time includes
           restoring the slot)
Each time is that of a completion of one token, by this client's clock."""
import argparse
import csv
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("model")
parser.add_argument("llama_server")
parser.add_argument("--hcache", default=os.path.join(os.path.dirname(__file__), "..", "build", "hcache"))
parser.add_argument("--weights", default="q8")
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--words", type=int, default=900)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--csv")
args = parser.parse_args()
WORDS = "river stone market winter letter garden bridge candle mirror harbor window forest engine silver paper".split()


def text(seed, n):
    rng = random.Random(seed)
    return "Read this list. " + " ".join(rng.choice(WORDS) for _ in range(n)) + "\nThe last word was"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def post(url, body, timeout=600):
    ask = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(ask, timeout=timeout))


class Server:
    def __init__(self, words, port):
        self.url = f"http://127.0.0.1:{port}"
        self.p = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=2).read()
                return
            except OSError:
                if self.p.poll() is not None:
                    raise SystemExit(f"{words[0]} ended with {self.p.returncode}") from None
                time.sleep(0.1)

    def kill(self):
        self.p.send_signal(signal.SIGKILL)
        self.p.wait()

    def ttft(self, prompt, **more):
        begin = time.monotonic()
        post(self.url + "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, **more})
        return time.monotonic() - begin


def hcache(folder):
    port = free_port()
    return Server([args.hcache, "serve", args.model, "--port", str(port), "--store", folder, "--weights", args.weights,
                   "--threads", str(args.threads), "--max-context", "4096"], port)


def llama(folder):
    port = free_port()
    return Server([args.llama_server, "-m", args.model, "--port", str(port), "-t", str(args.threads), "-c", "4096", "-np", "1",
                   "--cache-ram", "1024", "--slot-save-path", folder, "--no-webui"], port)


def measure(arm, seed):
    folder = tempfile.mkdtemp(prefix="hcache-real.", dir="/var/tmp")
    prompt, other = text(seed, args.words), text(seed + 1000, 60)
    start = hcache if arm == "hcache" else llama
    more = {} if arm == "hcache" else {"cache_prompt": True}
    s = start(folder)
    s.ttft(text(seed + 2000, 5), **more)  # warms up
    cold = s.ttft(prompt, **more)
    if arm == "llama slot files":
        post(s.url + "/slots/0?action=save", {"filename": "a"})
    s.ttft(other, **more)
    again = s.ttft(prompt, **more)
    time.sleep(2)  # gives state that is being saved time to become durable
    s.kill()
    s = start(folder)
    begin = time.monotonic()
    if arm == "llama slot files":
        post(s.url + "/slots/0?action=restore", {"filename": "a"})
    restored = time.monotonic() - begin
    after = restored + s.ttft(prompt, **more)
    s.kill()
    shutil.rmtree(folder, ignore_errors=True)
    return cold, again, after


rows = []
for i in range(args.rounds):
    for arm in ("hcache", "llama --cache-ram", "llama slot files"):
        t = measure(arm, i)
        rows.append([arm, i + 1, args.threads, args.words, *(f"{x * 1e3:.0f}" for x in t), f"{os.getloadavg()[0]:.1f}"])
        print(*rows[-1], flush=True)
if args.csv:
    with open(args.csv, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["arm", "round", "threads", "words", "cold_ms", "again_ms", "restart_ms", "load"])
        w.writerows(rows)
for arm in dict.fromkeys(r[0] for r in rows):
    print(arm, *(f"{statistics.median(float(r[k]) for r in rows if r[0] == arm):.0f} ms" for k in (4, 5, 6)))
