"""Shared by measurements of several servers: redis-server, hcache servers and a proxy as children
on loopback."""
import atexit
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))
from ports import free_port  # noqa: E402

PROGRAM = os.environ.get("HCACHE", "build/hcache")
PATIENCE = 600
children, folders = [], []


@atexit.register
def end():
    for p in children:
        p.kill()
        p.wait()
    for f in folders:
        shutil.rmtree(f, ignore_errors=True)


def folder():
    folders.append(tempfile.mkdtemp(prefix="hcache-cluster.", dir=os.environ.get("TMPDIR", "/var/tmp")))
    return folders[-1]


def until(what, condition):
    stop = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > stop:
            raise RuntimeError(f"{what} does not happen")
        time.sleep(0.01)


def request(port, method, path, body=None, headers=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request(method, path, json.dumps(body) if body is not None else None, headers or {})
    r = c.getresponse()
    text = r.read()
    c.close()
    if r.status != 200:
        raise RuntimeError(f"{method} {path}: {r.status} {text[:300]!r}")
    return json.loads(text)


class Redis:
    def __init__(self, *options):
        for _ in range(5):  # another process may take the port meanwhile
            self.port = free_port()
            self.p = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                                       "--appendonly", "no", "--dir", folder(), *options], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT)
            children.append(self.p)
            for line in self.p.stdout:
                if b"Ready to accept connections" in line:
                    threading.Thread(target=self.p.stdout.read, daemon=True).start()
                    return
        raise RuntimeError("redis-server does not start")

    def url(self, port=None):
        return f"redis://127.0.0.1:{port or self.port}/0"

    def ask(self, *words):
        with socket.create_connection(("127.0.0.1", self.port)) as s:
            s.sendall(command(*words))
            return answer(s.makefile("rb"))


def command(*words):
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def answer(f):
    line = f.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"$":
        return None if int(rest) < 0 else f.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [answer(f) for _ in range(int(rest))]
    return int(rest) if kind == b":" else line[:-2]


class Server:
    """Runs hcache serve on a port of its own. .log is the server's log."""

    def __init__(self, model, *options, store=None):
        self.store = store or folder()
        self.model, self.options, self.port, self.log = model, options, 0, []
        self.start()

    def start(self):
        place = () if self.store == "none" else ("--store", self.store)
        self.p = subprocess.Popen([PROGRAM, "serve", self.model, "--port", str(self.port), *place, *self.options],
                                  stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        children.append(self.p)
        ready = threading.Event()
        threading.Thread(target=self.read, args=(self.p, ready), daemon=True).start()
        ready.wait(PATIENCE)
        if self.p.poll() is not None:
            raise RuntimeError("a server does not start: " + "".join(self.log)[-500:])

    def read(self, p, ready):
        for line in p.stderr:
            self.log.append(line.decode(errors="replace"))
            m = re.search(r"ready at http://[^ ]*:(\d+)", self.log[-1])
            if m:
                self.port = int(m.group(1))
                ready.set()
        ready.set()

    def post(self, path, body):
        return request(self.port, "POST", path, body)

    def ask(self, prompt, n=1, **fields):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                             "seed": 1, **fields})

    def tier(self, name="remote"):
        tiers = request(self.port, "GET", "/v1/cache/stats")["tiers"]
        return next(t for t in tiers if t["name"] == name)

    def shares(self):
        """Waits until the server reaches the Redis and knows the erasures of others."""
        until("sharing", lambda: self.tier()["up"] and self.tier()["servers"] > 0)

    def written(self):
        self.post("/v1/cache/flush", {})
        until("writing", lambda: self.tier()["queued_chunks"] == 0)

    def stop(self):
        self.p.terminate()
        self.p.wait(PATIENCE)

    def kill(self):
        self.p.kill()
        self.p.wait()


class Hanging:
    """A proxy in front of a Redis.  While .hangs is set, answers stop and connections stay open."""

    def __init__(self, to):
        self.to, self.hangs = to, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            a, _ = self.listener.accept()
            b = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self.pass_on, args=(a, b, False), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(b, a, True), daemon=True).start()

    def pass_on(self, a, b, is_answer):
        try:
            while piece := a.recv(1 << 20):
                while is_answer and self.hangs:
                    time.sleep(0.01)
                b.sendall(piece)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def words(seed, n):
    """Returns a text whose beginning differs from that of every other seed's text."""
    import random
    rng = random.Random(seed)
    return " ".join(rng.choice("bird tree river stone cloud apple horse garden winter music".split()) + str(rng.randrange(100))
                    for _ in range(n))


def fill(redis, model, prompts):
    """Writes the state of prompts to the Redis, by a server that ends afterwards."""
    writer = Server(model, "--remote", redis.url(), "--plan", "kv", "--no-reuse")
    writer.shares()
    for prompt in prompts:
        writer.ask(prompt)
    writer.written()
    writer.stop()
