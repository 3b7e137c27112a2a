"""Shared by measurements of one server: `hcache serve` as a child process, token ids, and arms that
take turns."""
import json
import os
import random
import re
import statistics
import subprocess
import threading
import urllib.request


class Server:
    """Runs hcache serve on a free port."""

    def __init__(self, program, model, *options):
        self.p = subprocess.Popen([program, "serve", model, "--port", "0", *options], stderr=subprocess.PIPE, text=True)
        self.url = None
        for line in self.p.stderr:
            m = re.search(r"ready at (http://\S+)", line)
            if m:
                self.url = m.group(1).rstrip("/")
                break
        if self.url is None:
            raise SystemExit(f"the server did not start: {' '.join(options)}")
        threading.Thread(target=lambda: [None for _ in self.p.stderr], daemon=True).start()

    def post(self, path, body):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=600) as f:
            return json.load(f)

    def complete(self, prompt, n):
        """Returns the whole answer to a prompt of token ids: n tokens, greedy."""
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True})

    def ask(self, prompt, n):
        """Returns the answer's timings."""
        return self.complete(prompt, n)["timings"]

    def flush(self):
        self.post("/v1/cache/flush", {})

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as f:
            m = re.search(r"^hcache_" + re.escape(name) + r" (\S+)", f.read().decode(), re.M)
        return float(m.group(1)) if m else 0

    def processor_s(self):
        """Returns the processor time that the program has used so far: its own, and the system's on
        its behalf."""
        with open(f"/proc/{self.p.pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return tuple(int(x) / os.sysconf("SC_CLK_TCK") for x in fields[11:13])

    def stop(self):
        self.p.terminate()
        self.p.wait(60)

    def kill(self):
        self.p.kill()
        self.p.wait()


def tokens(seed, n, vocabulary):
    r = random.Random(seed)
    return [r.randrange(10, vocabulary) for _ in range(n)]


def by_turns(arms, rounds, run):
    """Calls run(arg, round) for each arm in each round. Each round begins with another arm. Returns
    {arm: [result, ...]}."""
    out = {arm: [] for arm in arms}
    for i in range(rounds):
        for k in range(len(arms)):
            arm = arms[(i + k) % len(arms)]
            out[arm].append(run(arm, i))
    return out


def median(rows, key):
    return statistics.median(r[key] for r in rows)
