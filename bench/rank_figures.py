#!/usr/bin/env python3
"""Measures ranks as processes of mpirun beside threads of one process, by turns.

    bench/rank_figures.py [--model synth:bench-220m] [--prompt 512] [--tokens 48] [--rounds 10] [--ranks 2]

Two servers run: one process with a thread for each rank, and a process with one thread for each rank (--tensor-parallel).
They answer the same new prompts by turns, in an order that changes by round, so that neither the first use of memory nor the
pace of the machine is measured. Rounds in which other programs had more than 0.1 of a processor are left out. On a busy machine:
chrt -f 20 bench/rank_figures.py --prompt 320 --tokens 12. Figures are medians over rounds, and medians of paired ratios;
answers that differ end the run. The goal of both ratios is 0.92."""
import argparse
import ctypes
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

HC = os.environ.get("HCACHE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "hcache"))
p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
p.add_argument("--model", default="synth:bench-220m")
p.add_argument("--prompt", type=int, default=512)
p.add_argument("--tokens", type=int, default=48)
p.add_argument("--rounds", type=int, default=10)
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--port", type=int, default=18700)
a = p.parse_args()
FLAGS = {"threads": ["--threads", str(a.ranks)], "processes": ["--threads", "1", "--tensor-parallel", str(a.ranks)]}
PORTS = {name: a.port + i for i, name in enumerate(FLAGS)}


def processor_time():
    """Returns the processor time in ticks of all programs, and of this one with its servers."""
    busy = [int(n) for n in open("/proc/stat").readline().split()[1:9]]
    ticks, children = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            f = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        ticks[int(pid)] = int(f[11]) + int(f[12])
        children.setdefault(int(f[1]), []).append(int(pid))
    own, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        own += ticks.get(pid, 0)
        todo += children.get(pid, [])
    return sum(busy) - busy[3] - busy[4], own


def ask(name, seed):
    """Returns the answer's logprobs, milliseconds of the prompt and of a token, and the share of a processor that others had."""
    ids = random.Random(seed).choices(range(1000), k=a.prompt)
    body = json.dumps({"model": "x", "prompt": ids, "max_tokens": a.tokens, "temperature": 0, "logprobs": 1}).encode()
    time.sleep(1.2)  # the kernel holds programs of real-time priority back if they run without a pause (95 % of a second)
    before, t0 = processor_time(), time.monotonic()
    r = json.load(urllib.request.urlopen(f"http://127.0.0.1:{PORTS[name]}/v1/completions", body))
    after, seconds = processor_time(), time.monotonic() - t0
    others = (after[0] - before[0] - after[1] + before[1]) / os.sysconf("SC_CLK_TCK") / seconds
    return json.dumps(r["choices"][0]["logprobs"]), r["timings"]["prefill_ms"], r["timings"]["per_token_ms"], others


def end_with_parent():
    """A server ends with this program, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def wait_for(name):
    for _ in range(600):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{PORTS[name]}/health").read()
        except OSError:
            time.sleep(0.1)
    sys.exit(f"the server of {name} does not answer")


servers, rounds = [], []
try:
    for name in FLAGS:
        command = [HC, "serve", a.model, "--port", str(PORTS[name]), "--speculate", "off", *FLAGS[name]]
        servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=end_with_parent))
    for name in FLAGS:
        wait_for(name)
    for turn in range(a.rounds + 1):
        got = {name: ask(name, turn) for name in sorted(FLAGS, reverse=turn % 2 == 0)}
        if got["threads"][0] != got["processes"][0]:
            sys.exit("the answers differ")
        if turn > 0 and max(g[3] for g in got.values()) < 0.1:  # the first round uses memory for the first time
            rounds.append(got)
finally:
    for s in servers:
        s.terminate()
    for s in servers:
        s.wait()
print(f"{len(rounds)} of {a.rounds} rounds without other programs")
for i, what in ((1, "prompt"), (2, "token")) if rounds else ():
    one, many = ([r[n][i] for r in rounds] for n in ("threads", "processes"))
    ratio = [o / m for o, m in zip(one, many)]
    print(f"{what}: threads {statistics.median(one):.1f} ms, processes {statistics.median(many):.1f} ms; threads / processes "
          f"{statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f})")
