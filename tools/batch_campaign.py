#!/usr/bin/env python3
"""A server with files and batches is killed at random. No finished line is lost or differs, and
nothing that was deleted comes back.

  tools/batch_campaign.py [--minutes 10] [--seed 1] [--model models/demo]

Two owners, each with a key, upload files, start batches, read outputs, cancel and delete. Meanwhile
the server is ended every few seconds (two of three times with kill -9) and started again with the
same folders. The tool asserts:

  - An acknowledged upload is there with its bytes until its owner deletes it.
  - An acknowledged batch ends, and each of its lines has one answer: the text that a server gives
    which is never killed.
  - What was deleted, acknowledged, is gone after every restart.
  - No owner sees what belongs to the other.

HCACHE_BUILD=build/release names the directory of the program. Exit status 0: nothing was wrong, and
there were kills while batches ran."""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "e2e"))
from serve_client import Server, until  # noqa: E402

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--minutes", type=float, default=10)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--model", default="models/demo")
a = p.parse_args()

CHAT = "/v1/chat/completions"
KEYS = ("first-owner", "other-owner")
ENDED = ("completed", "failed", "cancelled", "expired")
rng = random.Random(a.seed)
counts = dict.fromkeys(("uploads", "batches", "lines compared", "deletions", "cancellations",
                        "kills", "stops", "kills while a batch ran"), 0)
faults = []


def fault(text):
    faults.append(text)
    print(f"FAULT: {text}", flush=True)


def body_of(n):
    """The request of line n. Its answer is a function of n alone."""
    words = ("Biscuit", "Momo", "Bella", "Rex", "Luna")
    text = f"My dog is called {words[n % 5]}, and this is day {n}. " * (1 + n % 7)
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4 + n % 29,
            "temperature": n % 3 / 2, "seed": n}


class Judge:
    """Answers of a server without state that is never killed, remembered."""

    def __init__(self):
        self.server, self.known = Server(a.model, "--no-reuse"), {}

    def text(self, n):
        if n not in self.known:
            status, _, r = self.server.post(CHAT, body_of(n))
            assert status == 200, r
            self.known[n] = r["choices"][0]["message"]["content"]
        return self.known[n]


class Owner:
    """What one key has been told to exist, and what it has been told to be deleted."""

    def __init__(self, key):
        self.key, self.files, self.batches, self.gone = key, {}, {}, set()

    def ask(self, server, method, path, body=None, kind="application/json"):
        """Returns status and body; None where the server ended meanwhile."""
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        try:
            c.request(method, path, body, {"Authorization": f"Bearer {self.key}", "Content-Type": kind})
            r = c.getresponse()
            return r.status, r.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            c.close()

    def upload(self, server):
        first, n = rng.randrange(2000), rng.randrange(1, 30)
        lines = range(first, first + n)
        data = "".join(json.dumps({"custom_id": f"line {i}", "method": "POST", "url": CHAT,
                                   "body": body_of(i)}) + "\n" for i in lines)
        form = ("--end\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--end\r\n"
                "Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n"
                f"{data}\r\n--end--\r\n")
        got = self.ask(server, "POST", "/v1/files", form, "multipart/form-data; boundary=end")
        if got and got[0] == 200:
            self.files[json.loads(got[1])["id"]] = (data, lines)
            counts["uploads"] += 1

    def start(self, server):
        if not self.files:
            return
        file = rng.choice(sorted(self.files))
        got = self.ask(server, "POST", "/v1/batches", json.dumps(
            {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}))
        if got and got[0] == 200:
            self.batches[json.loads(got[1])["id"]] = self.files[file][1]
            counts["batches"] += 1

    def delete(self, server):
        free = [f for f, (_, lines) in self.files.items() if lines not in self.batches.values()]
        if not free:
            return
        file = rng.choice(sorted(free))
        got = self.ask(server, "DELETE", f"/v1/files/{file}")
        data = self.files.pop(file)
        if got is None:  # nobody knows whether it happened
            return
        if got[0] == 200:
            self.gone.add(file)
            counts["deletions"] += 1
        else:
            self.files[file] = data
            # a batch that is being cancelled, or whose start was not acknowledged, still reads it
            if b"file_in_use" not in got[1]:
                fault(f"deleting {file}: {got}")

    def cancel(self, server):
        if not self.batches:
            return
        batch = rng.choice(sorted(self.batches))
        del self.batches[batch]
        if self.ask(server, "POST", f"/v1/batches/{batch}/cancel", "{}"):
            counts["cancellations"] += 1

    def check(self, server, other):
        """After a start: all files are there, deleted ones are not, the other owner sees none."""
        for file, (data, _) in self.files.items():
            got = self.ask(server, "GET", f"/v1/files/{file}/content")
            if got is None or got[0] != 200 or got[1].decode() != data:
                fault(f"{file} was lost: {got and got[0]}")
            if (got := other.ask(server, "GET", f"/v1/files/{file}")) is None or got[0] != 404:
                fault(f"{file} is seen by another owner: {got}")
        for file in self.gone:
            if (got := self.ask(server, "GET", f"/v1/files/{file}")) is None or got[0] != 404:
                fault(f"{file} was deleted and is there: {got}")

    def collect(self, server, judge):
        """Compares the batches that have ended, and deletes what they left."""
        for batch in sorted(self.batches):
            got = self.ask(server, "GET", f"/v1/batches/{batch}")
            if got is None:
                return
            if got[0] != 200:
                fault(f"{batch} was lost: {got}")
                del self.batches[batch]
                continue
            b = json.loads(got[1])
            if b["status"] not in ENDED:
                continue
            if b["status"] != "completed" or b.get("error_file_id"):
                fault(f"{batch} ended as {b}")
            elif (got := self.ask(server, "GET", f"/v1/files/{b['output_file_id']}/content")) is None:
                return
            else:
                self.compare(batch, got, judge)
            del self.batches[batch]

    def compare(self, batch, got, judge):
        lines = self.batches[batch]
        texts = [json.loads(x) for x in got[1].decode().split("\n")[:-1]] if got[0] == 200 else []
        if sorted(t["custom_id"] for t in texts) != sorted(f"line {i}" for i in lines):
            fault(f"{batch}: {len(texts)} answers of {len(lines)} lines ({got[0]})")
            return
        for t in texts:
            n = int(t["custom_id"].split()[1])
            counts["lines compared"] += 1
            if (text := t["response"]["body"]["choices"][0]["message"]["content"]) != judge.text(n):
                fault(f"{batch}, line {n}: {text!r} instead of {judge.text(n)!r}")


def summary():
    return ", ".join(f"{n} {what}" for what, n in counts.items()) + f"; {len(faults)} faults"


def one_life(server, owners, judge):
    """Acts for some seconds, then ends the server."""
    for o, other in zip(owners, reversed(owners)):
        o.check(server, other)
    last = time.monotonic() + rng.uniform(0.5, 6)
    while time.monotonic() < last:
        o = rng.choice(owners)
        if len(o.files) < 12:
            o.upload(server)
        if len(o.batches) < 6:
            o.start(server)
        if rng.random() < 0.1:
            o.cancel(server)
        if rng.random() < 0.4:
            o.delete(server)
        o.collect(server, judge)
        time.sleep(rng.random() * 0.3)
    hard = rng.random() < 0.67
    counts["kills" if hard else "stops"] += 1
    counts["kills while a batch ran"] += hard and any(o.batches for o in owners)
    server.p.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
    server.p.wait()


def run(tmp):
    def start():
        return Server(a.model, "--store", os.path.join(tmp, "store"), "--files",
                      os.path.join(tmp, "files"), "--store-cap", "256M", "--dram", "16M",
                      "--api-key", ",".join(KEYS))
    judge, owners = Judge(), [Owner(k) for k in KEYS]
    stop, told = time.monotonic() + a.minutes * 60, time.monotonic()
    while time.monotonic() < stop:
        one_life(start(), owners, judge)
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(summary(), flush=True)
    server = start()

    def all_ended():
        for o in owners:
            o.collect(server, judge)
        return not any(o.batches for o in owners)
    if not until(all_ended):
        fault(f"batches do not end: {[o.batches for o in owners]}")
    server.stop()
    judge.server.stop()


tmp = tempfile.mkdtemp(prefix="hcache-batches.", dir="/var/tmp")
try:
    run(tmp)
finally:
    if not faults:
        shutil.rmtree(tmp, ignore_errors=True)
print(f"seed {a.seed}, {a.minutes:g} minutes: {summary()}")
if counts["kills while a batch ran"] == 0:
    sys.exit("no batch ran when the server was killed: the run shows nothing")
sys.exit(bool(faults))
