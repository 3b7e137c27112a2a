"""The configurations of examples/cluster for HAProxy and nginx. Requests of one conversation go to
one server, and others are spread. A server that is killed or stopped costs no request. Running
answers are finished."""
import http.client
import json
import os
import shutil
import signal
import subprocess
import threading

from ports import free_port
from serve_client import Server, until
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
NAMES = ("one", "two", "three")
N = len(NAMES)


def answers(port):
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        c.request("GET", "/health")
        return c.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


class Balancer:
    def __init__(self, kind, servers):
        self.kind = kind
        for _ in range(5):  # another process may have taken the port
            self.port = free_port()
            self.p = getattr(self, kind)(servers)
            until(lambda: self.p.poll() is not None or answers(self.port))
            if self.p.poll() is None:
                return
        raise RuntimeError(f"{kind} does not start: {self.p.stderr.read().decode()}")

    def haproxy(self, servers):
        env = {"HCACHE_LISTEN": f"127.0.0.1:{self.port}",
               **{f"HCACHE_{i + 1}": f"127.0.0.1:{s.port}" for i, s in enumerate(servers)}}
        return subprocess.Popen(["haproxy", "-db", "-f", "examples/cluster/haproxy.cfg"], env={**os.environ, **env},
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def nginx(self, servers):
        with open("examples/cluster/nginx.conf") as f:
            text = f.read().replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        for i, s in enumerate(servers):
            text = text.replace(f"127.0.0.1:{8081 + i} ", f"127.0.0.1:{s.port} ")
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        text = text.replace("http {", "http {\n    access_log off;\n" +
                            "".join(f"    {k}_temp_path {tmp}/{k};\n" for k in kinds), 1)
        config = os.path.join(tmp, "nginx.conf")
        with open(config, "w") as f:
            f.write(text)
        return subprocess.Popen(["nginx", "-c", config, "-p", tmp, "-e", "stderr", "-g",
                                 f"daemon off; pid {tmp}/nginx.pid;"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def request(self, method, path, body=None, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        c.request(method, path, json.dumps(body) if body is not None else None, headers or {})
        r = c.getresponse()
        return r.status, r.read()

    def chat(self, text, headers=None, **fields):
        return self.request("POST", "/v1/chat/completions",
                            {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "seed": 1, **fields},
                            headers)[0]

    def stop(self):
        self.p.terminate()
        self.p.wait()


def done(servers):
    """Returns the number of finished answers of each server; 0 for a server that has ended."""
    return [s.metric('hcache_requests_total{end="done"}') if s.p.poll() is None else 0 for s in servers]


def who(servers, before):
    return [i for i, (a, b) in enumerate(zip(before, done(servers))) if b > a]


def test_affinity(b, servers):
    before = done(servers)
    statuses = [b.chat(f"text {i}", prompt_cache_key="one", user=str(i)) for i in range(6)]
    met = who(servers, before)
    equal(f"{b.kind}: requests with one prompt_cache_key are answered", set(statuses), {200})
    equal(f"{b.kind}: by one server", len(met), 1)
    before = done(servers)
    for i in range(48):
        b.chat("text", prompt_cache_key=f"key {i}")
    equal(f"{b.kind}: other keys meet all servers", len(who(servers, before)), N)
    before = done(servers)
    for i in range(6):
        b.chat(f"text {i}", headers={"X-Conversation": "a header"}, prompt_cache_key=f"key {i}")
    equal(f"{b.kind}: a header goes before the body", len(who(servers, before)), 1)
    before = done(servers)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "My dog is called Biscuit."}]
    for i in range(4):
        b.request("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1, "seed": i})
        messages += [{"role": "assistant", "content": f"Answer {i}."}, {"role": "user", "content": f"Question {i}."}]
    # nginx hashes the beginning of the messages, which changes in the course of a short chat
    if b.kind == "haproxy":
        equal(f"{b.kind}: so do chats by their first messages", len(who(servers, before)), 1)


def test_drain(b, servers):
    """On SIGTERM a server finishes its running answer, and new requests go to another server."""
    before = done(servers)
    b.chat("text", prompt_cache_key="one")
    at = who(servers, before)[0]
    chunks, started = [], threading.Event()

    def stream():
        c = http.client.HTTPConnection("127.0.0.1", b.port, timeout=PATIENCE)
        c.request("POST", "/v1/chat/completions", json.dumps(
            {"messages": [{"role": "user", "content": "x"}], "stream": True, "ignore_eos": True, "seed": 1,
             "max_tokens": 200, "prompt_cache_key": "one"}))
        for line in c.getresponse():
            chunks.append(line)
            started.set()
    t = threading.Thread(target=stream)
    t.start()
    started.wait(PATIENCE)
    servers[at].p.send_signal(signal.SIGTERM)
    statuses = [b.chat("text", prompt_cache_key="one") for _ in range(3)]
    equal(f"{b.kind}: while a server stops, its conversations go on elsewhere", statuses, [200] * 3)
    t.join(PATIENCE)
    check(f"{b.kind}: and its running answer ends as it should", any(b"[DONE]" in c for c in chunks), chunks[-3:])
    equal(f"{b.kind}: the server ends well", servers[at].p.wait(PATIENCE), 0)


def test_kept(b, servers):
    """A kept conversation lives on one server. Requests with its id, or with the id of one of its
    responses, go there. While that server is down, another server says so."""
    def ask(method, path, body=None):
        status, text = b.request(method, path, body)
        return status, json.loads(text)
    talks = [ask("POST", "/v1/conversations", {"metadata": {"n": str(i)}})[1]["id"] for i in range(12)]
    homes = {t.split("_")[1].rsplit("-", 1)[0] for t in talks}
    check(f"{b.kind}: conversations are kept on several servers", len(homes) > 1 and homes <= set(NAMES), talks)
    found = [ask("GET", f"/v1/conversations/{t}")[0] for t in talks]
    equal(f"{b.kind}: each is found by its id", set(found), {200})
    said = [ask("POST", "/v1/responses", {"input": f"Hello {i}.", "conversation": t, "max_output_tokens": 1, "seed": 1})
            for i, t in enumerate(talks)]
    equal(f"{b.kind}: each goes on", {s for s, _ in said}, {200})
    ids = [r["id"] for _, r in said]
    equal(f"{b.kind}: where it is kept", [i.split("_")[1].rsplit("-", 1)[0] for i in ids],
          [t.split("_")[1].rsplit("-", 1)[0] for t in talks])
    for body in ({"previous_response_id": i} for i in ids):
        said = ask("POST", "/v1/responses", {"input": "Go on.", "max_output_tokens": 1, "seed": 1, **body})
        if said[0] != 200:
            break
    equal(f"{b.kind}: and from each response", said[0], 200)
    equal(f"{b.kind}: responses are shown", {ask("GET", f"/v1/responses/{i}")[0] for i in ids}, {200})
    home = talks[0].split("_")[1].rsplit("-", 1)[0]
    servers[NAMES.index(home)].kill()

    def says_so():
        status, r = ask("GET", f"/v1/conversations/{talks[0]}")
        return status == 503 and f"kept by the server '{home}'" in r["error"]["message"]
    check(f"{b.kind}: while it is down, another server says so", until(says_so))


def test_kill(b, servers):
    before = done(servers)
    b.chat("text", prompt_cache_key="two")
    at = who(servers, before)[0]
    servers[at].kill()
    statuses = [b.chat(f"text {i}", prompt_cache_key="two") for i in range(4)]
    equal(f"{b.kind}: a killed server costs no request", statuses, [200] * 4)


def fleet(kind, *tests):
    """Runs each test with servers of its own, because a balancer takes a while to notice that a
    server is gone."""
    servers = [Server(MODEL, "--server-name", name) for name in NAMES]
    b = Balancer(kind, servers)
    for test in tests:
        test(b, servers)
    b.stop()
    for s in servers:
        s.kill()


tmp = scratch("routing")
for program in ("haproxy", "nginx"):
    check(f"{program} is installed (tools/setup.sh --test)", shutil.which(program) is not None)
    if shutil.which(program) is not None:
        fleet(program, test_affinity, test_drain)
        fleet(program, test_kill)
        fleet(program, test_kept)
end()
