"""Shared by the tests of `hcache serve`: a server as a child process, and raw HTTP over sockets."""
import atexit
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
from plain_model import write_plain_model  # noqa: E402
from tap import HC, PATIENCE  # noqa: E402

# Time limits are not checked under a sanitizer, which slows the program down.
SANITIZED = os.path.basename(os.environ["HCACHE_BUILD"].rstrip("/")) in ("asan", "tsan")
# Ranks are processes of Open MPI, which leaks.
HAS_RANKS = not SANITIZED and shutil.which("mpirun") is not None and os.path.exists(os.path.join(os.path.dirname(HC), "hcache-mpi.so"))
models = tempfile.mkdtemp(prefix="hcache-models.")
atexit.register(shutil.rmtree, models, ignore_errors=True)
MODEL = write_plain_model(os.path.join(models, "plain"))  # without a chat template: see plain_model.py


# Options for tests that look for state in the store. `auto` saves and restores nothing if it
# measures that computing is faster; with such small models that depends on the load of the machine.
# So the plan is forced. A forced plan ignores state that is still on the device, so these tests
# wait until the state is committed (/v1/cache/flush).
SAVING = ("--plan", "kv")


def until(condition):
    """Returns whether the condition becomes true. The time limit is a number of checks that take
    PATIENCE seconds in all. So time during which this test is stopped does not count."""
    for _ in range(PATIENCE * 50):
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def threads_of(p):
    """Returns the kernel function and the system call in which each thread of a process waits."""
    out = []
    for tid in sorted(os.listdir(f"/proc/{p.pid}/task")):
        words = []
        for name in ("comm", "wchan", "syscall"):
            try:
                with open(f"/proc/{p.pid}/task/{tid}/{name}") as f:
                    words.append(f.read().strip())
            except OSError as e:
                words.append(e.strerror)
        out.append(f"# thread {tid}: " + " | ".join(words))
    return "\n".join(out)


def seeded(path, body):
    """Returns the body with a seed if the route takes one. Otherwise the server would pick a random
    seed, and an answer that ends at once, like one in 20 of the demo model's, would fail a test now
    and then. {"seed": None} asks for a random seed."""
    if path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages") and isinstance(body, dict):
        return {"seed": 1, **body}
    return body


class Server:
    """Runs hcache serve on a free port and collects its stderr in .log. `prefix` is a command that
    runs the server (setpriv)."""

    def __init__(self, model, *options, env=None, prefix=()):
        self.p = subprocess.Popen([*prefix, HC, "serve", model, "--port", "0", *options], stderr=subprocess.PIPE,
                                  stdout=subprocess.DEVNULL,
                                  # whether copies in DRAM pay depends on the machine's load
                                  env={**os.environ, "HCACHE_DRAM": "0", **(env or {})})
        owner = os.getpid()
        # kills the server if the test ends early
        atexit.register(lambda: os.getpid() == owner and self.p.kill())
        self.log, self.port = [], None
        ready = threading.Event()

        def read():
            for line in self.p.stderr:
                self.log.append(line.decode(errors="replace"))
                m = re.search(r"ready at http://[^ ]*:(\d+)", self.log[-1])
                if m:
                    self.port = int(m.group(1))
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        if not ready.wait(PATIENCE):
            print(threads_of(self.p), flush=True)
        if self.port is None:
            self.kill()
            raise RuntimeError(f"the server did not start (status {self.p.returncode}): " + "".join(self.log)[-500:])

    def kill(self):
        self.p.kill()
        self.p.wait()

    def memory(self, name):
        """Returns the bytes of a row of the process's status: VmRSS, VmHWM."""
        with open(f"/proc/{self.p.pid}/status") as f:
            return next(int(x.split()[1]) * 1024 for x in f if x.startswith(name))

    def stop(self):
        """Sends SIGTERM and returns the exit status."""
        self.p.send_signal(signal.SIGTERM)
        try:
            return self.p.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            print(threads_of(self.p), flush=True)
            self.kill()
            return "timeout"

    def request(self, method, path, body=None, headers=None):
        """Returns (status, headers, body); the body is parsed if it is JSON."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        body = seeded(path, body)
        data = json.dumps(body) if body is not None and not isinstance(body, (bytes, str)) else body
        c.request(method, path, data, headers or {})
        r = c.getresponse()
        text = r.read()
        c.close()
        try:
            return r.status, r.headers, json.loads(text)
        except ValueError:
            return r.status, r.headers, text.decode(errors="replace")

    def post(self, path, body, headers=None):
        return self.request("POST", path, body, headers)

    def streamed(self, path, body):
        """Returns the events of a stream, without [DONE]."""
        s = Stream(self, path, body)
        got = [e for e in s.events if e is not None]
        s.close()
        return got

    def complete(self, prompt, **fields):
        status, _, r = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        if status != 200:
            raise RuntimeError(f"{status}: {r}")
        return r

    def metric(self, name):
        for line in self.request("GET", "/metrics")[2].split("\n"):
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise KeyError(name)

    def open(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def raw(self, data):
        """Returns all bytes until the server closes the connection. If the server does not close it,
        "<timeout>" stands at their end.
        """
        with self.open() as s:
            out = b""
            try:
                s.sendall(data)
            # the server has closed its receiving side; its answer can still be read
            except ConnectionError:
                pass
            try:
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        break
                    out += piece
            except ConnectionError:
                pass
            except socket.timeout:
                out += b"<timeout>"
        return out


def post_bytes(path, body, extra=b""):
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s" % (path, extra, len(body), body)


def events(sock_file):
    """Yields the JSON objects of an event stream.  Stops at [DONE], which it yields as None."""
    for line in sock_file:
        if line.startswith(b"data: "):
            if line.strip() == b"data: [DONE]":
                yield None
                return
            yield json.loads(line[6:])


class Stream:
    """A streamed completion whose events the test reads when it wants."""

    def __init__(self, server, path, body, headers=None):
        self.c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.c.request("POST", path, json.dumps({**seeded(path, body), "stream": True}), headers or {})
        self.r = self.c.getresponse()
        self.events = events(self.r)

    def close(self):
        self.r.close()
        self.c.close()


def files_under(folder):
    """Returns every file in the folder and below it."""
    return [os.path.join(at, f) for at, _, files in os.walk(folder) for f in sorted(files)]
