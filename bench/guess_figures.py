#!/usr/bin/env python3
"""Measures guessed tokens (--speculate) by turns with the same build without them, and with llama.cpp's server.

    bench/guess_figures.py F.gguf [LLAMA_SERVER] [--rounds 5] [--tokens 300] [--realtime] [--loads copy,...]
                           [--spec TYPE]

Loads, each at temperature 0 and one client unless it says otherwise:

    copy    a source file of some 900 tokens, and the beginning of the same file again
    json    a JSON text by a schema with fixed names
    prose   three texts that do not repeat themselves, at temperature 1
    eight   the prose and the copies for eight clients at once
    forced  the file itself, which a form forces: also for models with random weights; not llama-server

Each round starts each server anew and takes decode tokens a second as the servers report them (`timings`), for `eight`
all tokens by the client's clock. Figures are medians over rounds; prose has the 95 % interval of the mean of paired
ratios. --realtime starts all with chrt -f: only for short runs on a machine with other work."""
import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "e2e"))
from ports import free_port  # noqa: E402

HC = os.path.join(HERE, "..", "build", "hcache")
p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
p.add_argument("model")
p.add_argument("llama_server", nargs="?")
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--tokens", type=int, default=300)
p.add_argument("--realtime", action="store_true")
p.add_argument("--loads", default="copy,json,prose,eight")
p.add_argument("--spec", default="ngram-simple", help="llama-server's kind of speculation; it has one slot per client")
a = p.parse_args()

with open(os.path.join(HERE, "..", "src", "engine", "sched.c")) as f:
    FILE = f.read()[:3000]
with open(os.path.join(HERE, "..", "docs", "PLACEMENT.md")) as f:
    PROSE = f.read()
NAMES = ["first_name", "family_name", "street_address", "postal_code", "telephone_number", "is_registered"]
SCHEMA = {"type": "array", "minItems": 6, "maxItems": 6, "items": {
    "type": "object", "properties": {n: {"enum": ["a", "b"]} for n in NAMES}, "required": NAMES,
    "additionalProperties": False}}
COPY = {"prompt": f"A file:\n{FILE}\nThe same file again:\n{FILE[:200]}", "temperature": 0}
LOADS = {
    "copy": [COPY],
    "json": [{"prompt": "A list of people in JSON:\n", "temperature": 0, "json_schema": SCHEMA}],
    "prose": [{"prompt": PROSE[i * 2000:i * 2000 + 1500], "temperature": 1, "seed": i} for i in range(3)],
}
LOADS["forced"] = [{"prompt": COPY["prompt"], "temperature": 0, "guided_choice": [FILE[200:]]}]
LOADS["eight"] = [COPY if i % 2 else {**LOADS["prose"][i % 3], "seed": 10 + i} for i in range(8)]


def ask(port, body, n, out, i):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/completion" if body.get("llama") else "/v1/completions",
              json.dumps({**body, "max_tokens": n, "n_predict": n,
                          "ignore_eos": not body.keys() & {"json_schema", "guided_choice"}}),
              {"Content-Type": "application/json"})
    out[i] = json.loads(c.getresponse().read())


class Program:
    def __init__(self, name, command):
        self.name, self.command = name, command

    def measure(self, load):
        port = free_port()
        prefix = ["chrt", "-f", "10"] if a.realtime else []
        n_slots = 8 if load == "eight" else 1
        slots = ["-np", str(n_slots), "-c", str(2048 * n_slots)] if self.name == "llama" else []
        child = subprocess.Popen([*prefix, *self.command, *slots, "--port", str(port)], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        try:
            self.wait(port)
            bodies = LOADS[load]
            if self.name.startswith("llama"):
                bodies = [{**b, "llama": True} for b in bodies]
            ask(port, {**bodies[0], "prompt": "Hello"}, 8, [None], 0)
            out = [None] * len(bodies)
            begin = time.monotonic()
            if load == "eight":
                threads = [threading.Thread(target=ask, args=(port, b, a.tokens // 2, out, i))
                           for i, b in enumerate(bodies)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                return len(bodies) * (a.tokens // 2) / (time.monotonic() - begin), out
            for i, b in enumerate(bodies):
                ask(port, b, a.tokens, out, i)
            return statistics.mean(self.rate(r) for r in out), out
        finally:
            child.kill()
            child.wait()

    def rate(self, r):
        t = r["timings"]
        return t["decode_tokens_per_s"] if "decode_tokens_per_s" in t else t["predicted_per_second"]

    def wait(self, port):
        for _ in range(600):
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        sys.exit(f"{self.name} does not start")


def texts(out):
    return [r["choices"][0]["text"] for r in out]


serve = [HC, "serve", a.model, "--max-sequences", "8", "--max-context", "2048"]
programs = [Program("off", [*serve, "--speculate", "off"]), Program("auto", [*serve, "--speculate", "auto"])]
if a.llama_server:
    programs.append(Program("llama", [a.llama_server, "-m", a.model, "--host", "127.0.0.1", "--spec-type", a.spec]))
for load in a.loads.split(","):
    asked = programs[:2] if load == "forced" else programs  # llama-server has no such form
    rates = {q.name: [] for q in asked}
    for i in range(a.rounds):
        answers = {}
        for q in asked if i % 2 == 0 else asked[::-1]:
            rate, out = q.measure(load)
            rates[q.name].append(rate)
            answers[q.name] = out
        if texts(answers["off"]) != texts(answers["auto"]):
            sys.exit(f"{load}: the answers differ")
    guessed = sum(r["timings"]["guessed_tokens"] for r in answers["auto"])
    right = sum(r["timings"]["guessed_right"] for r in answers["auto"])
    ratios = [x / y for x, y in zip(rates["auto"], rates["off"])]
    spread = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0
    line = ", ".join(f"{n} {statistics.median(r):.0f} tokens/s" for n, r in rates.items())
    print(f"{load}: {line}; auto/off {statistics.median(ratios):.2f} (mean {statistics.mean(ratios):.3f} +- {spread:.3f}), "
          f"{right} of {guessed} guesses right", flush=True)
    if "llama" in rates:
        beside = [x / y for x, y in zip(rates["auto"], rates["llama"])]
        print(f"    auto beside llama-server with {a.spec}: {statistics.median(beside):.2f}", flush=True)
