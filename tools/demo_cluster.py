#!/usr/bin/env python3
"""Several servers with one shared memory, in half a minute: a conversation goes through HAProxy,
the server that answers is killed in mid-sentence, the retry continues on another server from the
state in Redis, and then all servers restart.

  tools/demo_cluster.py       on loopback, on its own ports; needs redis-server and haproxy (tools/setup.sh --test)
  HCACHE_BUILD=build/release  where the program is
  DEMO_MODEL=...              another model"""
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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))
from ports import free_port  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
HC = os.path.join(os.environ.get("HCACHE_BUILD", "build"), "hcache")
MODEL = os.environ.get("DEMO_MODEL", "models/demo")
PATIENCE = 120
N = 3
children = []


def die(text):
    print(f"demo-cluster: {text}", file=sys.stderr)
    sys.exit(1)


def say(text):
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{text}{plain}", flush=True)


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            die(f"{what} does not happen")
        time.sleep(0.02)


def child(args, **kwargs):
    p = subprocess.Popen(args, **kwargs)
    children.append(p)
    return p


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


def start_on_a_port(what, args_of):
    """Starts a child process on a port of its own. Tries again if another process takes the port
    meanwhile."""
    for _ in range(5):
        port = free_port()
        args, env = args_of(port)
        p = child(args, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(f"{what} on port {port}", lambda: p.poll() is not None or answers(port))
        if p.poll() is None:
            return p, port
    die(f"{what} does not start")


class Server:
    """hcache serve with its own store, which the server's process does not remove at its end."""

    def __init__(self, name, store, remote):
        self.name, self.store, self.remote, self.port = name, store, remote, 0
        self.start()

    def start(self):
        # The port stays the same across a restart, because the balancer knows it.
        self.p = child([HC, "serve", MODEL, "--port", str(self.port), "--plan", "kv", "--no-reuse", *self.state()],
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.log = []
        ready = threading.Event()
        threading.Thread(target=self.read, args=(self.p, ready), daemon=True).start()
        ready.wait(PATIENCE)
        if self.port == 0:
            die("a server does not start: " + "".join(self.log)[-500:])

    def state(self):
        return ("--store", self.store, "--remote", self.remote, "--remote-timeout", str(PATIENCE)) if self.remote else ()

    def read(self, p, ready):
        for line in p.stderr:
            self.log.append(line.decode(errors="replace"))
            m = re.search(r"ready at http://[^ ]*:(\d+)", self.log[-1])
            if m:
                self.port = int(m.group(1))
                ready.set()
        ready.set()

    def tier(self):
        stats = request(self.port, "GET", "/v1/cache/stats")
        return next(t for t in stats["tiers"] if t["name"] == "remote")

    def shares(self):
        r = self.tier()
        return r["up"] and r["servers"] > 0

    def written(self):
        request(self.port, "POST", "/v1/cache/flush", {})
        return self.tier()["queued_chunks"] == 0


def request(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request(method, path, json.dumps(body) if body is not None else None)
    r = c.getresponse()
    text = r.read()
    if r.status != 200:
        die(f"{method} {path}: {r.status} {text.decode(errors='replace')[:300]}")
    return json.loads(text)


RULES = "You are a friendly helper who answers in short and simple words, and who is always polite. " * 8
TURNS = ["My dog is called Biscuit.", "What is my dog called?", "Thank you. Tell me a story about my dog."]


def body(messages, **fields):
    return {"messages": messages, "temperature": 0, "max_tokens": 48, "logprobs": True, "top_logprobs": 3,
            "prompt_cache_key": "the demo's conversation", **fields}


def chat(port, messages, **fields):
    """Returns the answer's text, the exact log-probabilities of its tokens, and the server's report
    of where its state came from."""
    r = request(port, "POST", "/v1/chat/completions", body(messages, **fields))
    choice = r["choices"][0]
    return choice["message"]["content"], choice["logprobs"]["content"], choice.get("timings") or r["timings"]


def answered(s):
    """Returns the number of requests that the server has answered."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=PATIENCE)
    c.request("GET", "/metrics")
    return int(re.search(r'hcache_requests_total{end="done"} (\d+)', c.getresponse().read().decode()).group(1))


def stream_and_kill(port, victim, messages):
    """Streams an answer and kills its server when the first words have arrived.  Returns the words,
    and whether the answer was complete."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    c.request("POST", "/v1/chat/completions",
              json.dumps({k: v for k, v in body(messages, stream=True, ignore_eos=True).items()
                          if k not in ("max_tokens", "logprobs", "top_logprobs")}))
    r, text, is_whole = c.getresponse(), "", False
    if r.status != 200:
        die(f"{r.status}: {r.read()[:300]}")
    try:
        for line in r:
            if line.startswith(b"data: {"):
                delta = json.loads(line[6:])["choices"]
                text += (delta[0]["delta"].get("content") or "") if delta else ""
            is_whole |= line.startswith(b"data: [DONE]")
            if len(text) > 10 and victim.p.poll() is None:
                victim.p.send_signal(signal.SIGKILL)
                victim.p.wait()
    except (http.client.HTTPException, OSError):
        pass
    if victim.p.poll() is None:
        die("another server answered than before")
    return text, is_whole


def told(t):
    return (f"{t['restored_tokens']} tokens restored ({t['remote_tokens']} of them came from Redis), "
            f"{t['prefilled_tokens']} computed, first token after {t['ttft_ms']:.0f} ms")


def equal(what, got, want):
    if got != want:
        die(f"{what} differ:\n{str(got)[:600]}\n{str(want)[:600]}")


def run(tmp):
    for program in ("redis-server", "haproxy"):
        if shutil.which(program) is None:
            die(f"{program} is missing: run tools/setup.sh --test")
    _, redis_port = start_on_a_port("redis-server", lambda port: (
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", tmp], {}))
    remote = f"redis://127.0.0.1:{redis_port}/0"
    servers = [Server(f"server {i + 1}", os.path.join(tmp, f"store{i + 1}"), remote) for i in range(N)]
    _, port = start_on_a_port("haproxy", lambda port: (
        ["haproxy", "-db", "-f", os.path.join(HERE, "..", "examples", "cluster", "haproxy.cfg")],
        {"HCACHE_LISTEN": f"127.0.0.1:{port}", **{f"HCACHE_{i + 1}": f"127.0.0.1:{s.port}" for i, s in enumerate(servers)}}))
    alone = Server("a server without any state", None, None)
    until("sharing", lambda: all(s.shares() for s in servers))
    say(f"redis-server, haproxy and {N} servers run on loopback; clients talk to http://127.0.0.1:{port}")

    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": TURNS[0]}]
    text, _, t = chat(port, messages)
    print(f"user       {TURNS[0]}\nassistant  {text}\n           {told(t)}")
    until("writing to Redis", lambda: all(s.written() for s in servers))

    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": TURNS[1]}]
    victim = next(s for s in servers if answered(s) > 0)
    begun, is_whole = stream_and_kill(port, victim, messages)
    say(f"{victim.name} was answering \"{TURNS[1]}\" and was killed (kill -9)"
        f"{' when it had just ended' if is_whole else ' in mid-sentence'}")
    print(f"assistant  {begun[:18]}...")

    text, logprobs, t = chat(port, messages)
    print(f"the same request again, at another server:\nassistant  {text}\n           {told(t)}")
    if t["remote_tokens"] < 64:
        die("nothing came from Redis")
    want, want_logprobs, _ = chat(alone.port, messages)
    equal("the retry and a server that has computed everything", (text, logprobs), (want, want_logprobs))
    print(f"           each of {len(logprobs)} tokens and every bit of their log-probabilities are those of a server "
          "that has\n           computed everything itself")

    until("writing to Redis", lambda: all(s.written() for s in servers if s is not victim))
    for s in servers:
        s.p.send_signal(signal.SIGTERM)
    for s in servers:
        s.p.wait(PATIENCE)
    for s in servers:
        s.start()
    until("sharing", lambda: all(s.shares() for s in servers))
    until("the balancer", lambda: healthy(port))
    say(f"all {N} servers were stopped and started again")
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": TURNS[2]}]
    text, logprobs, t = chat(port, messages)
    print(f"user       {TURNS[2]}\nassistant  {text}\n           {told(t)}")
    if t["restored_tokens"] < 64:
        die("nothing was restored behind the restart")
    equal("the answer behind the restart and one of a server without state", (text, logprobs),
          chat(alone.port, messages)[:2])
    print("           equal in every bit, too")


def healthy(port):
    """Waits until the balancer knows that the servers are back."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        c.request("GET", "/health")
        return c.getresponse().status == 200
    except (http.client.HTTPException, OSError):
        return False


def main():
    tmp = tempfile.mkdtemp(prefix="hcache-cluster.")
    try:
        run(tmp)
    finally:
        for p in children:
            p.kill()
            p.wait()
        shutil.rmtree(tmp, ignore_errors=True)


main()
