#!/usr/bin/env python3
"""The delay that large bodies cause to a stream and to /health.

  bench/large_bodies.py [MODEL] [--seconds 3] [--rounds 2] [--only NAME] [--clients 2]

Starts build/hcache serve on a free port. One process streams answers and records the pauses between
events. One requests /health every 2 ms. --clients others send one kind of body after another.
Measurements with and without the bodies alternate, so that other work on the machine affects both.
`turn` is the longest processor time of an HTTP thread between two waits: the delay that the server
itself causes, however busy the machine is. `peak` is the growth of the server's memory at its peak,
and `left` the part of that growth that remains. The goals (docs/PERF.md): no pause above 50 ms that
does not also occur without the bodies; a p99 of /health at most 5 ms higher; memory of at most 4
times the bodies in flight, plus 16 MiB each."""
import argparse
import http.client
import json
import multiprocessing
import os
import re
import subprocess
import time

MIB = 1 << 20


def fill(before, piece, after, n):
    k = (n - len(before) - len(after)) // (len(piece) + 1)
    return (before + ",".join([piece] * k) + after).encode()


def bodies(n):
    """Returns {name: (path, body)}: bodies of about n bytes, and the small bodies that cost an HTTP
    thread most."""
    chat = '{"max_tokens":1,"messages":[{"role":"user","content":"Hi"}],'
    text = '"' + "x y " * ((n - 100) // 4) + '"'
    message = '{"role":"user","content":"' + "x y " * 250 + '"}'
    return {
        "ignored": ("/v1/chat/completions", fill(chat + '"user":[', "{}", "]}", n)),
        "values": ("/v1/chat/completions", fill(chat + '"tools":[', "{}", "]}", n)),
        "one-message": ("/v1/chat/completions", ('{"max_tokens":1,"messages":[{"role":"user","content":' + text + "}]}").encode()),
        "messages": ("/v1/chat/completions", fill('{"max_tokens":1,"messages":[', message, "]}", n)),
        "text": ("/v1/completions", ('{"max_tokens":1,"prompt":' + text + "}").encode()),
        "response": ("/v1/responses", ('{"max_output_tokens":1,"input":' + text + "}").encode()),
        "anthropic": ("/v1/messages", ('{"max_tokens":1,"messages":[{"role":"user","content":' + text + "}]}").encode()),
        "tokenize-1M": ("/tokenize", ('{"content":"' + "ab " * (MIB // 3 - 20) + '"}').encode()),
        "messages-4K": ("/v1/chat/completions", fill('{"max_tokens":1,"messages":[', '{"role":"user","content":"x"}', "]}", 4096)),
        "tokenize-4K": ("/tokenize", ('{"content":"' + "ab " * 1350 + '"}').encode()),
    }


def flood(port, path, body, stop, count):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    while not stop.is_set():
        c.request("POST", path, body)
        r = c.getresponse()
        r.read()
        with count.get_lock():
            count.value += 1


def ask_health(port, stop, out):
    took, c = [], http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    while not stop.is_set():
        begin = time.perf_counter()
        c.request("GET", "/health")
        c.getresponse().read()
        took.append(time.perf_counter() - begin)
        time.sleep(0.002)
    out.put(took)


def read_stream(port, stop, out):
    pauses, last = [], None
    body = json.dumps({"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True})
    while not stop.is_set():
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        c.request("POST", "/v1/completions", body)
        last = None
        for line in c.getresponse():
            now = time.perf_counter()
            if line.startswith(b"data: {"):
                if last is not None:
                    pauses.append(now - last)
                last = now
            if stop.is_set():
                break
        c.close()
    out.put(pauses)


def memory(pid):
    with open(f"/proc/{pid}/status") as f:
        return {k: int(v.split()[0]) / 1024 for k, v in (x.split(":", 1) for x in f if x.startswith(("VmRSS", "VmHWM")))}


def measure(server, port, seconds, clients, what):
    """Returns (seconds of each /health, pauses of the stream, number of bodies answered, MiB of
    peak, MiB left)."""
    stop, count = multiprocessing.Event(), multiprocessing.Value("i", 0)
    health, pauses = multiprocessing.Queue(), multiprocessing.Queue()
    with open(f"/proc/{server.pid}/clear_refs", "w") as f:
        f.write("5")
    before = memory(server.pid)["VmRSS"]
    ps = [multiprocessing.Process(target=ask_health, args=(port, stop, health)),
          multiprocessing.Process(target=read_stream, args=(port, stop, pauses))]
    if what:
        ps += [multiprocessing.Process(target=flood, args=(port, *what, stop, count)) for _ in range(clients)]
    for p in ps:
        p.start()
    time.sleep(seconds)
    stop.set()
    got = health.get(), pauses.get()
    for p in ps:
        p.join()
    peak = memory(server.pid)["VmHWM"] - before
    time.sleep(0.2)
    return *got, count.value, peak, memory(server.pid)["VmRSS"] - before


def longest_turn(port):
    """Returns the longest processor time of an HTTP thread between two waits since the server's
    start, in ms.
    """
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    c.request("GET", "/metrics")
    found = re.search(rb"hcache_http_turn_cpu_seconds_max ([0-9.e+-]+)", c.getresponse().read())
    # an older program does not report this value
    return float(found.group(1)) * 1e3 if found else float("nan")


def start(o):
    server = subprocess.Popen([o.program, "serve", o.model, "--port", "0"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        found = re.search(r"ready at http://[^ ]*:(\d+)", line)
        if found:
            return server, int(found.group(1))
    raise RuntimeError("the server did not start")


def share(v, p):
    v = sorted(v)
    return v[min(len(v) - 1, int(len(v) * p))] * 1e3 if v else float("nan")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model", nargs="?", default="models/demo")
    a.add_argument("--seconds", type=float, default=3)
    a.add_argument("--rounds", type=int, default=2)
    a.add_argument("--clients", type=int, default=2)
    a.add_argument("--bytes", type=int, default=16 * MIB - 4096)
    a.add_argument("--only")
    a.add_argument("--program", default="build/hcache")
    o = a.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}; each cell: without / with the bodies; ms, MiB")
    print(f"{'body':12} {'answered':>8} {'/health p50':>15} {'p99':>15} {'max':>15} {'pause p50':>15} {'p99':>15} {'max':>15} {'turn':>6} {'peak':>7} {'left':>6}")
    for name, what in bodies(o.bytes).items():
        if o.only and o.only not in name:
            continue
        server, port = start(o)
        try:
            off, on, peak, left, n = ([], []), ([], []), 0, 0, 0
            for _ in range(o.rounds):
                for into, w in ((off, None), (on, what)):
                    h, p, k, m, rest = measure(server, port, o.seconds, o.clients, w)
                    into[0].extend(h)
                    into[1].extend(p)
                    if w:
                        n, peak, left = n + k, max(peak, m), rest
            cells = [f"{share(off[i], q):7.2f}/{share(on[i], q):7.2f}" for i in (0, 1) for q in (0.5, 0.99, 1)]
            print(f"{name:12} {n:8} " + " ".join(cells) + f" {longest_turn(port):6.2f} {peak:7.1f} {left:6.1f}", flush=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
