#!/usr/bin/env python3
"""Measures guessed tokens (--speculate) by turns with the same build without them, and with llama.cpp's server.

    bench/guess_figures.py F.gguf [LLAMA_SERVER] [--rounds 5] [--tokens 300] [--realtime] [--loads copy,...]
                           [--chars 3000] [--spec none,ngram-simple,...] [--llama-options "..."]

Loads, each at temperature 0 and one client unless it says otherwise:

    copy    a source file of some 900 tokens, and the beginning of the same file again
    json    a JSON text by a schema with fixed names
    prose   three texts that do not repeat themselves, at temperature 1
    eight   the prose and the copies for eight clients at once
    forced  the file itself, which a form forces: also for models with random weights; not llama-server

The servers of a load start once, and are asked by turns, in an order that changes by round; a round has seeds of its own,
and one before them warms up. The rate is decode tokens a second as the servers report it (`timings`), for `eight` all
tokens by the client's clock. Figures are medians over rounds, with the 95 % interval of the mean of paired ratios.
llama-server runs once for each kind of speculation in --spec, with one slot per client and two threads; its best kind
counts. --realtime starts all with chrt -f: only for short runs on a machine with other work."""
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
p.add_argument("--chars", type=int, default=3000, help="of the file that is copied")
p.add_argument("--realtime", action="store_true")
p.add_argument("--loads", default="copy,json,prose,eight")
p.add_argument("--spec", default="none,ngram-simple,ngram-map-k,ngram-mod,ngram-cache", help="kinds of llama-server's --spec-type")
p.add_argument("--llama-options", default="", help="more options of llama-server, in one text")
a = p.parse_args()

with open(os.path.join(HERE, "..", "src", "engine", "sched.c")) as f:
    FILE = f.read()[:a.chars]
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
    c.request("POST", "/completion" if body.pop("llama") else "/v1/completions",
              json.dumps({**body, "max_tokens": n, "n_predict": n,
                          "ignore_eos": not body.keys() & {"json_schema", "guided_choice"}}),
              {"Content-Type": "application/json"})
    out[i] = json.loads(c.getresponse().read())


class Program:
    def __init__(self, name, command, load):
        self.name, self.port, n = name, free_port(), 8 if load == "eight" else 1
        self.is_llama = name not in ("off", "auto")
        slots = ["-np", str(n), "-c", str(2048 * n)] if self.is_llama else []
        prefix = ["chrt", "-f", "10"] if a.realtime else []
        self.child = subprocess.Popen([*prefix, *command, *slots, "--port", str(self.port)], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
        self.rates = []
        for _ in range(1200):
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.child.kill()
        sys.exit(f"{name} does not start")

    def measure(self, load, turn):
        """Returns tokens a second and the answers."""
        bodies = [{**b, "llama": self.is_llama, **({"seed": b["seed"] + 100 * turn} if "seed" in b else {})} for b in LOADS[load]]
        out = [None] * len(bodies)
        begin = time.monotonic()
        if load == "eight":
            threads = [threading.Thread(target=ask, args=(self.port, b, a.tokens // 2, out, i)) for i, b in enumerate(bodies)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            return len(bodies) * (a.tokens // 2) / (time.monotonic() - begin), out
        for i, b in enumerate(bodies):
            ask(self.port, b, a.tokens, out, i)
        return statistics.mean(self.rate(r["timings"]) for r in out), out

    def rate(self, t):
        return t["predicted_per_second"] if self.is_llama else t["decode_tokens_per_s"]


def texts(out):
    return [r["choices"][0]["text"] for r in out]


def ratios_of(one, other):
    """Returns the median of paired ratios, their mean and half of its 95 % interval."""
    r = [x / y for x, y in zip(one.rates, other.rates)]
    return statistics.median(r), statistics.mean(r), 1.96 * statistics.stdev(r) / len(r) ** 0.5 if len(r) > 1 else 0


def run(load):
    serve = [HC, "serve", a.model, "--max-sequences", "8", "--max-context", "2048"]
    commands = {"off": [*serve, "--speculate", "off"], "auto": [*serve, "--speculate", "auto"]}
    for spec in a.spec.split(",") if a.llama_server and load != "forced" else ():  # it has no such form
        commands[spec] = [a.llama_server, "-m", a.model, "-t", "2", "--host", "127.0.0.1",
                          *([] if spec == "none" else ["--spec-type", spec]), *a.llama_options.split()]
    programs = []
    try:
        for name, command in commands.items():
            programs.append(Program(name, command, load))
        guessed = right = 0
        for turn in range(a.rounds + 1):
            answers = {}
            for q in programs if turn % 2 == 0 else programs[::-1]:
                rate, answers[q.name] = q.measure(load, turn)
                q.rates += [rate] if turn > 0 else []  # the first warms up
            if texts(answers["off"]) != texts(answers["auto"]):
                sys.exit(f"{load}: the answers differ")
            guessed += sum(r["timings"]["guessed_tokens"] for r in answers["auto"])
            right += sum(r["timings"]["guessed_right"] for r in answers["auto"])
    finally:
        for q in programs:
            q.child.kill()
            q.child.wait()
    median, mean, half = ratios_of(programs[1], programs[0])
    line = ", ".join(f"{q.name} {statistics.median(q.rates):.0f}" for q in programs)
    print(f"{load}: tokens/s {line}; auto/off {median:.2f} (mean {mean:.3f} +- {half:.3f}), {right} of {guessed} guesses right",
          flush=True)
    for best in sorted(programs[2:], key=lambda q: -statistics.median(q.rates))[:1]:
        median, mean, half = ratios_of(programs[1], best)
        print(f"    auto beside llama-server with {best.name}: {median:.2f} (mean {mean:.3f} +- {half:.3f})", flush=True)


for each in a.loads.split(","):
    run(each)
