#!/usr/bin/env python3
"""The time in which a server with many kept conversations lists, opens and continues them. The goal
is below 100 ms with 10^5 conversations.

  bench/conversations.py [--program build/hcache] [--conversations 100000] [--csv FILE]

One conversation of three turns is made through the API. Then its rows are copied under other names,
in one transaction, while no server runs. Each time is that of a whole HTTP request on a connection
of its own."""
import argparse
import http.client
import json
import os
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

a = argparse.ArgumentParser()
a.add_argument("--program", default="build/hcache")
a.add_argument("--model", default="models/demo")
a.add_argument("--conversations", type=int, default=100000)
a.add_argument("--samples", type=int, default=50)
a.add_argument("--csv")
a = a.parse_args()


class Server:
    def __init__(self, store):
        start = time.time()
        self.p = subprocess.Popen([a.program, "serve", a.model, "--port", "0", "--store", store],
                                  stderr=subprocess.PIPE, text=True)
        for line in self.p.stderr:
            m = re.search(r"ready at http://[^ ]*:(\d+)", line)
            if m:
                break
        else:
            sys.exit("the server did not start")
        self.port, self.start_s = int(m.group(1)), time.time() - start

    def ask(self, method, path, body=None):
        """Returns (milliseconds, answer)."""
        start = time.perf_counter()
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, json.dumps(body) if body else None)
        r = c.getresponse()
        text = r.read()
        ms = (time.perf_counter() - start) * 1e3
        c.close()
        if r.status != 200:
            sys.exit(f"{method} {path}: {r.status} {text[:300]}")
        return ms, json.loads(text)

    def stop(self):
        self.p.terminate()
        self.p.wait()


def copy(db, n):
    """Adds n copies of the existing conversation."""
    c = sqlite3.connect(db)
    columns = [r[1] for r in c.execute("PRAGMA table_info(turn)")]
    turns = c.execute("SELECT * FROM turn ORDER BY depth").fetchall()
    v = c.execute("SELECT tenant, created_s, updated_s, n_turns, title, metadata FROM conversation").fetchone()
    row = {name: i for i, name in enumerate(columns)}
    next_turn, next_conv = max(t[0] for t in turns) + 1, 2
    rows, convs = [], []
    for k in range(n):
        parent = None
        for t in turns:
            t = list(t)
            t[row["id"]], t[row["parent"]], t[row["conversation"]] = next_turn, parent, next_conv
            t[row["name"]] = f"resp_{next_turn:032x}"
            parent = next_turn
            next_turn += 1
            rows.append(t)
        convs.append((next_conv, f"conv_{next_conv:032x}", v[0], v[1] - k, v[2] - k, v[3], parent, f"{v[4]} {k}", v[5]))
        next_conv += 1
    with c:
        c.executemany(f"INSERT INTO turn VALUES({','.join('?' * len(columns))})", rows)
        c.executemany("INSERT INTO conversation(id, name, tenant, created_s, updated_s, n_turns, head, title, metadata) "
                      "VALUES(?,?,?,?,?,?,?,?,?)", convs)
        c.execute("UPDATE chunk SET n_turns = n_turns * ?", (n + 1,))
    c.close()


store = tempfile.mkdtemp(prefix="hcache-bench.")
s = Server(os.path.join(store, "s"))
name = s.ask("POST", "/v1/conversations", {"title": "birds"})[1]["id"]
for i in range(3):
    s.ask("POST", "/v1/responses", {"input": "Tell me about the little bird in the tall green tree. " * 6,
                                    "conversation": name, "max_output_tokens": 24, "temperature": 0})
s.stop()
begin = time.time()
copy(os.path.join(store, "s", "conversations.db"), a.conversations - 1)
size = os.path.getsize(os.path.join(store, "s", "conversations.db"))
print(f"{a.conversations} conversations of 3 turns: {size / 1e6:.0f} MB, made in {time.time() - begin:.0f} s")
s = Server(os.path.join(store, "s"))
print(f"the server is ready after {s.start_s:.2f} s")
rng = random.Random(1)
names = [f"conv_{rng.randrange(2, a.conversations + 1):032x}" for _ in range(a.samples)]
work = {
    "list, newest 20": lambda i: s.ask("GET", "/v1/conversations"),
    "list, 100 from the middle": lambda i: s.ask("GET", f"/v1/conversations?limit=100&after=conv_{a.conversations // 2:032x}"),
    "list, oldest 100": lambda i: s.ask("GET", "/v1/conversations?limit=100&order=asc"),
    "open: its items": lambda i: s.ask("GET", f"/v1/conversations/{names[i]}/items?limit=100&order=asc"),
    "look at it": lambda i: s.ask("GET", f"/v1/conversations/{names[i]}"),
    "make one": lambda i: s.ask("POST", "/v1/conversations", {"title": "new"}),
    "continue: one token": lambda i: s.ask("POST", "/v1/responses", {"input": "Go on.", "conversation": names[i],
                                                                     "max_output_tokens": 1}),
    "branch": lambda i: s.ask("POST", f"/v1/conversations/{names[i]}/branch", {"title": "b"}),
    "delete": lambda i: s.ask("DELETE", f"/v1/conversations/{names[i]}"),
    "statistics": lambda i: s.ask("GET", "/v1/cache/stats"),
}
lines = ["what,conversations,median_ms,p95_ms,max_ms"]
for what, run in work.items():
    done = set()
    times = sorted(run(i)[0] for i in range(a.samples)
                   if what != "delete" or not (names[i] in done or done.add(names[i])))
    row = (statistics.median(times), times[int(0.95 * (len(times) - 1))], times[-1])
    print(f"{what:28} median {row[0]:7.2f} ms, 95 % {row[1]:7.2f}, slowest {row[2]:7.2f}")
    lines.append(f'"{what}",{a.conversations},{row[0]:.3f},{row[1]:.3f},{row[2]:.3f}')
s.stop()
shutil.rmtree(store, ignore_errors=True)
if a.csv:
    with open(a.csv, "w") as f:
        f.write("\n".join(lines) + "\n")
