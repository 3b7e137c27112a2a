#!/usr/bin/env python3
"""Servers that share a Redis behind HAProxy are killed at random under load: no answer is wrong,
and every conversation continues.

  tools/cluster_campaign.py [--minutes 10] [--seed 1] [--clients 4] [--direct]
                            [--redis plain|tls|cluster] [--server-options "--store-cap 24M"]

Clients hold conversations through the balancer and resend their history.  Meanwhile servers are
killed (kill -9), stopped (SIGTERM) or suspended, and started again with their old store; now and
then the Redis is killed, and starts empty.  A client repeats a request until it is answered; a
conversation that gets no answer for two minutes counts as lost.

Each answer, with the log-probabilities of its tokens, is compared with that of a server without
state.  A server remembers the tokens of its own answers.  Other servers encode the answers' text,
which may give other tokens, and then other answers.  So clients replace most answers by their own
words, and these conversations are compared to their end.  Other clients send the answers back; of
these only the text of the first turn is compared.

With --redis tls the servers reach the Redis over TLS; with --redis cluster it is a Redis Cluster of
three masters, of which one is killed at a time.

Then the bytes of all saved state are compared (cluster_bytes.py).  State with the same key must be
equal in all stores, in the Redis (which is also read each second, since it loses state), and on a
server that computes every chain of chunks again from its token ids.  This includes the chains of
answers that were sent back.

Needs redis-server and haproxy (tools/setup.sh --test).  HCACHE_BUILD=build/release names the
directory of the program, CLUSTER_MODEL another model.  Exit status 0: nothing was wrong, no
conversation was lost, and state came from the Redis."""
import argparse
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import cluster_bytes

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "e2e"))
from ports import free_port  # noqa: E402

HC = os.path.join(os.environ.get("HCACHE_BUILD", "build"), "hcache")
MODEL = os.environ.get("CLUSTER_MODEL", "models/demo")
N_SERVERS = 3
LEFT_S = 120
START_S = 300

p = argparse.ArgumentParser()
p.add_argument("--minutes", type=float, default=10)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--clients", type=int, default=4)
p.add_argument("--direct", action="store_true",
               help="clients ask a server at random each time: more state comes from the Redis")
p.add_argument("--redis", choices=("plain", "tls", "cluster"), default="plain")
p.add_argument("--server-options", default="", help="more options of the servers that are killed")
a = p.parse_args()

over = threading.Event()
lock = threading.Lock()
counts = dict.fromkeys(("answers", "compared", "sent again", "conversations", "restored tokens",
                        "tokens from the Redis", "kills", "stops", "suspensions",
                        "kills of the Redis"), 0)
faults = []
kept = cluster_bytes.Compare()


def count(what, n=1):
    with lock:
        counts[what] += n


def fault(text):
    with lock:
        faults.append(text)
    print(f"FAULT: {text}", flush=True)


def until(what, condition):
    stop = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > stop:
            raise RuntimeError(f"{what} does not happen")
        time.sleep(0.05)


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    except OSError:
        return False


class Child:
    """A process on its own port that can be killed and started again on that port. The process is
    up when it has printed `says` or, if `says` is None, when its port accepts connections."""

    def __init__(self, name, args, env=None, says=None):
        self.name, self.args, self.env, self.says = name, args, env or (lambda port: {}), says
        self.port, self.p, self.n_starts = free_port(), None, 0
        self.start()

    def start(self):
        for _ in range(20):  # another process may have the port
            until(f"the port of {self.name} is free", lambda: not answers(self.port))
            env = {**os.environ, **self.env(self.port)}
            self.p = subprocess.Popen(self.args(self.port), env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT)
            self.n_starts += 1
            if self.is_up():
                return
            time.sleep(0.5)
        raise RuntimeError(f"{self.name} does not start")

    def is_up(self):
        if self.says is None:
            until(self.name, lambda: self.p.poll() is not None or answers(self.port))
        elif not any(self.says in line for line in self.p.stdout):
            self.p.wait()
        threading.Thread(target=self.p.stdout.read, daemon=True).start()
        return self.p.poll() is None

    def end(self, how):
        self.p.send_signal(how)
        self.p.wait()


def ask(port, messages, key, timeout):
    """Returns the status and the answer. Raises OSError or HTTPException if there is no answer."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    body = {"messages": messages, "temperature": 0, "seed": 1, "max_tokens": 24, "logprobs": True,
            "top_logprobs": 2, "prompt_cache_key": key}
    try:
        c.request("POST", "/v1/chat/completions", json.dumps(body))
        r = c.getresponse()
        return r.status, r.read()
    finally:
        c.close()


def answer_of(text):
    r = json.loads(text)
    c = r["choices"][0]
    return c["message"]["content"], c["logprobs"]["content"], r["timings"]


def goes_on(ports, messages, key):
    """Returns the first answer that a server gives, or None."""
    last, why = time.monotonic() + LEFT_S, ""
    while time.monotonic() < last:
        try:
            status, text = ask(random.choice(ports), messages, key, LEFT_S)
            if status == 200:
                return answer_of(text)
            why = f"{status} {text[:200]!r}"
            if 400 <= status < 500 and status != 429:
                break
        except (OSError, http.client.HTTPException) as e:
            why = repr(e)
        count("sent again")
        time.sleep(0.1)
    fault(f"conversation {key} with {len(messages)} messages cannot go on: {why}")
    return None


def client(i, ports, alone):
    rng = random.Random(a.seed * 1000 + i)
    n = 0
    while not over.is_set():
        n += 1
        key = f"conversation {i}.{n}"
        rules = (f"You are friendly helper number {rng.randrange(3)}, who answers in short and "
                 "simple words. ") * 6
        messages = [{"role": "system", "content": rules}]
        keeps_answers = rng.random() < 0.25
        count("conversations")
        for _ in range(rng.randrange(2, 7)):
            if over.is_set():
                return
            name = rng.choice(("Biscuit", "Momo", "Bella", "Rex", "Luna"))
            asked = f"My dog is called {name}. Tell me about {name}'s day. " * 2
            messages.append({"role": "user", "content": asked})
            got = goes_on(ports, messages, key)
            if got is None:
                break
            text, logprobs, t = got
            if len(messages) == 2 or not keeps_answers:
                want = answer_of(ask(alone.port, messages, key, START_S)[1])
                if (text, logprobs) != want[:2]:
                    fault(f"{key}, {len(messages)} messages, {t}: wrong text\n"
                          f"  {text!r}\n  {want[0]!r}")
                count("compared")
            count("answers")
            count("restored tokens", t["restored_tokens"])
            count("tokens from the Redis", t["remote_tokens"])
            own = f"{name} slept in the sun until noon, and then we went to the river. "
            own *= rng.randrange(1, 4)
            messages.append({"role": "assistant", "content": text if keeps_answers else own})
            time.sleep(rng.random() * 0.3)


def harm(servers, redises):
    """Harms one server at a time, so that another server can answer."""
    rng = random.Random(a.seed)
    while not over.wait(rng.uniform(0.5, 4)):
        s, how = rng.choice(servers), rng.random()
        if how < 0.1:
            redis = rng.choice(redises)
            redis.end(signal.SIGKILL)
            count("kills of the Redis")
            over.wait(rng.uniform(0, 3))
            redis.start()
            continue
        if how < 0.25:
            s.p.send_signal(signal.SIGSTOP)
            count("suspensions")
            over.wait(rng.uniform(0, 3))
            s.p.send_signal(signal.SIGCONT)
            continue
        s.end(signal.SIGKILL if how < 0.8 else signal.SIGTERM)
        count("kills" if how < 0.8 else "stops")
        over.wait(rng.uniform(0, 2))
        s.start()


def guarded(fn, *args):
    def run():
        try:
            fn(*args)
        except Exception as e:
            fault(f"{fn.__name__}: {e!r}")
            over.set()
    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


def watch(redises):
    """Adds the chunks of each Redis to the comparison every second, because its kill loses them."""
    known = {}
    while not over.wait(1):
        for redis in redises:
            start = redis.n_starts
            seen = known.setdefault((redis.name, start), set())
            try:
                chunks = list(cluster_bytes.of_redis(redis.port, seen))
            except (OSError, ValueError, IndexError):  # the Redis was killed meanwhile
                continue
            seen.update(b"hcache:1:chunk:" + c.key.hex().encode() for c in chunks)
            kept.add(f"{redis.name}, start {start}", chunks)


def tell():
    """Prints the counts every minute, so that a run that is cut off shows them, too."""
    begin = time.monotonic()
    while not over.wait(60):
        print(f"after {(time.monotonic() - begin) / 60:.0f} minutes: {summary()}", flush=True)


def summary():
    with lock:
        wrong = sum("wrong text" in f for f in faults)
        left = sum("cannot go on" in f for f in faults)
        return ", ".join(f"{n} {what}" for what, n in counts.items()) + (
            f"; {wrong} wrong texts, {left} conversations that cannot go on, {len(faults) - wrong - left} other faults")


def compare_bytes(servers, redises, tmp):
    for s in servers:
        kept.add(s.name, cluster_bytes.of_store(s.store))
    for redis in redises:
        kept.add(redis.name, cluster_bytes.of_redis(redis.port))
    n = cluster_bytes.compute(kept, MODEL)
    for text in kept.differences[:20]:
        print(text, flush=True)
    print(f"{n} chains computed again; {kept.text()}")
    if kept.differences:
        fault(f"{len(kept.differences)} records differ; the stores stay in {tmp}")


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def make_certificate(tmp):
    """Makes an authority, and a key and a certificate for 127.0.0.1."""
    ca, key, pem, names = (os.path.join(tmp, n) for n in ("ca", "redis.key", "redis.pem", "names"))
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=any")
    openssl("req", "-x509", *new, "-days", "2", "-keyout", ca + ".key", "-out", ca + ".pem")
    with open(names, "w") as f:
        f.write("subjectAltName=IP:127.0.0.1\n")
    openssl("req", *new, "-keyout", key, "-out", pem + ".request")
    openssl("x509", "-req", "-in", pem + ".request", "-CA", ca + ".pem", "-CAkey", ca + ".key",
            "-CAcreateserial", "-days", "2", "-extfile", names, "-out", pem)


def redis_cli(redis, *words):
    r = subprocess.run(["redis-cli", "-p", str(redis.port), *map(str, words)], check=True,
                       capture_output=True, text=True)
    return r.stdout.strip()


def join_cluster(masters):
    """Gives each master its share of the 16,384 slots."""
    for i, m in enumerate(masters):
        redis_cli(m, "cluster", "set-config-epoch", i + 1)
        redis_cli(m, "cluster", "addslotsrange", i * 16384 // len(masters),
                  (i + 1) * 16384 // len(masters) - 1)
    for m in masters[1:]:
        redis_cli(masters[0], "cluster", "meet", "127.0.0.1", m.port, m.bus)
    until("the cluster is whole", lambda: all(
        "cluster_state:ok" in redis_cli(m, "cluster", "info") for m in masters))


def start_redis(child, tmp):
    """Starts --redis. Returns its processes, and the options by which a server reaches it. The
    comparison reads each process without TLS."""
    def start(name, *options):
        folder = os.path.join(tmp, name)
        os.mkdir(folder)
        return child(name, lambda port: [
            "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--dir", folder, *options], says=b"Ready to accept connections")
    if a.redis == "plain":
        redis = start("redis")
        return [redis], ["--remote", f"redis://127.0.0.1:{redis.port}/0"]
    if a.redis == "tls":
        make_certificate(tmp)
        tls = free_port()
        redis = start("redis", "--tls-port", str(tls), "--tls-auth-clients", "no", *(
            w for option, file in (("cert", "redis.pem"), ("key", "redis.key"), ("ca-cert", "ca.pem"))
            for w in (f"--tls-{option}-file", os.path.join(tmp, file))))
        return [redis], ["--remote", f"rediss://127.0.0.1:{tls}/0", "--remote-ca",
                         os.path.join(tmp, "ca.pem")]
    masters = []
    for i in range(3):
        bus = free_port()
        masters.append(start(f"redis{i + 1}", "--cluster-enabled", "yes", "--cluster-port", str(bus),
                             "--cluster-node-timeout", "600000",
                             "--cluster-require-full-coverage", "no"))
        masters[-1].bus = bus
    join_cluster(masters)
    return masters, ["--remote", f"redis://127.0.0.1:{masters[0].port}/0"]


def run(tmp, children):
    def child(*args, **more):
        children.append(Child(*args, **more))
        return children[-1]

    def server(i, remote):
        store = os.path.join(tmp, f"store{i}")
        c = child(f"server {i}", lambda port: [
            HC, "serve", MODEL, "--port", str(port), "--plan", "kv", "--no-reuse", "--store", store,
            *remote, *a.server_options.split()], says=b"ready at http")
        c.store = store
        return c
    redises, remote = start_redis(child, tmp)
    servers = [server(i + 1, remote) for i in range(N_SERVERS)]
    proxy = child("haproxy", lambda port: ["haproxy", "-db", "-f", os.path.join(
        HERE, "..", "examples", "cluster", "haproxy.cfg")], lambda port: {
            "HCACHE_LISTEN": f"127.0.0.1:{port}",
            **{f"HCACHE_{i + 1}": f"127.0.0.1:{s.port}" for i, s in enumerate(servers)}})
    alone = child("a server without state", lambda port: [
        HC, "serve", MODEL, "--port", str(port), "--no-reuse"], says=b"ready at http")
    ports = [s.port for s in servers] if a.direct else [proxy.port]
    clients = [guarded(client, i, ports, alone) for i in range(a.clients)]
    others = [guarded(harm, servers, redises), guarded(watch, redises), guarded(tell)]
    over.wait(a.minutes * 60)
    over.set()
    for t in others + clients:
        t.join(START_S)
        if t.is_alive():
            fault("a client, the harm or the watch does not end")
    compare_bytes(servers, redises, tmp)


def main():
    for program in ("redis-server", "haproxy"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: run tools/setup.sh --test")
    tmp, children = tempfile.mkdtemp(prefix="hcache-campaign.", dir="/var/tmp"), []
    try:
        run(tmp, children)
    finally:
        over.set()
        for c in children:
            c.p.kill()
            c.p.wait()
        if not kept.differences:
            shutil.rmtree(tmp, ignore_errors=True)
    print(f"seed {a.seed}, {a.minutes:g} minutes: {summary()}")
    if counts["tokens from the Redis"] == 0:
        sys.exit("nothing came from the Redis: the run shows nothing")
    sys.exit(bool(faults))


main()
