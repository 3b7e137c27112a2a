"""Several models in one server over one store: loaded on demand, unloaded when idle, their state found again, bit for
bit. Judge of an answer: a server of that model alone, without a store."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading

from plain_model import exchanged
from serve_client import HC, SAVING, Server, Stream, until
from tap import PATIENCE, check, end, equal

PROMPT = "Tell me about the little bird who lived in the tall green tree. " * 20
NAMES = ("red", "blue", "green")


def make(tmp):
    """red is given by its path; the others lie below a folder, as `hcache pull` leaves them. bad has no weights."""
    shutil.copytree("models/demo", os.path.join(tmp, "red"))
    exchanged(os.path.join(tmp, "m", "one", "blue"), 0, 1)
    exchanged(os.path.join(tmp, "m", "one", "green"), 1, 2)
    shutil.copytree("models/demo", os.path.join(tmp, "m", "two", "bad"))
    with open(os.path.join(tmp, "m", "two", "bad", "model.safetensors"), "r+b") as f:
        f.truncate(5000)


def body(model, **fields):
    return {"model": model, "prompt": PROMPT, "max_tokens": 6, "temperature": 0, "logprobs": 2, "ignore_eos": True, **fields}


def ask(server, model, path="/v1/completions", **fields):
    status, _, r = server.post(path, body(model, **fields))
    if status != 200:
        raise RuntimeError(f"{model}: {status}: {r}")
    return r


def bits(r):
    return r["choices"][0]["text"], r["choices"][0]["logprobs"]


def states(server):
    return {m["id"]: m["state"] for m in server.request("GET", "/v1/models")[2]["data"]}


def start(tmp, store, *options):
    return Server(os.path.join(tmp, "red"), "--models", os.path.join(tmp, "m"), "--store", os.path.join(tmp, store), *SAVING,
                  "--no-reuse", "--no-any-model", *options)


def alone(tmp):
    """Returns the answers of servers of one model each."""
    out = {}
    for name in NAMES:
        path = os.path.join(tmp, "red") if name == "red" else os.path.join(tmp, "m", "one", name)
        one = Server(path)
        out[name] = bits(ask(one, name))
        one.stop()
    return out


def on_demand(tmp, want):
    """All fit: a model is loaded when it is named, and stays. Returns the planned bytes of one."""
    server = start(tmp, "s")
    n_bytes = server.metric("hcache_models_bytes")
    equal("one model is loaded at first", states(server), dict(red="loaded", blue="unloaded", green="unloaded", bad="unloaded"))
    equal("each answers as if it were alone", {n: bits(ask(server, n)) for n in NAMES}, want)
    equal("loaded models stay", states(server), dict(red="loaded", blue="loaded", green="loaded", bad="unloaded"))
    equal("tags has all, ps the loaded ones", [len(server.request("GET", f"/api/{r}")[2]["models"]) for r in ("tags", "ps")], [4, 3])
    equal("/props is of the model that it names", server.request("GET", "/props?model=blue")[2]["model_alias"], "blue")
    server.post("/v1/cache/flush", {})
    check("/metrics shows the store of all", server.metric("hcache_store_bytes") > 0 and server.metric("hcache_store_saves") == 1)
    equal("without a name the first one answers", ask(server, None)["model"], "red")
    equal("a name may have Ollama's tag", ask(server, "blue:latest")["model"], "blue")
    status, _, r = server.post("/v1/completions", body("nix"))
    check("an unknown name is 404, with the names there are", status == 404 and "'red', 'blue', 'green'" in
          r["error"]["message"], r)
    status, _, r = server.post("/v1/completions", body("bad"))
    check("a model that cannot be loaded is an error of its request, without its path", status == 500 and
          r["error"]["code"] == "model_not_loaded" and "'bad'" in r["error"]["message"] and tmp not in r["error"]["message"], r)
    equal("the others answer on", bits(ask(server, "green")), want["green"])
    erasing(server, want)
    batches(server)
    server.post("/api/generate", {"model": "blue", "keep_alive": 0})
    check("keep_alive 0 unloads", until(lambda: states(server)["blue"] == "unloaded"), states(server))
    equal("it ends well", server.stop(), 0)
    return n_bytes


def erasing(server, want):
    chunks = lambda: server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"]  # noqa: E731
    for name in NAMES:
        ask(server, name, cache_salt="me")
    server.post("/v1/cache/flush", {})
    server.post("/api/generate", {"model": "green", "keep_alive": 0})
    until(lambda: states(server)["green"] == "unloaded")
    before, mine = chunks(), server.post("/v1/cache/quota", {"cache_salt": "me", "bytes": 0})[2]["chunks"]
    check("a salt's state is that of all models", mine > 0 and mine % 3 == 0, mine)
    gone = server.post("/v1/cache/clear", {"cache_salt": "me"})[2]
    check("clearing a salt erases the state of all models, also of an unloaded one",
          gone["erased_chunks"] == mine and chunks() == before - mine, (gone, mine))
    equal("nothing of it is found", [ask(server, n, cache_salt="me")["timings"]["restored_tokens"] for n in NAMES], [0] * 3)
    equal("what others saved is found", [ask(server, n)["timings"]["restored_tokens"] > 0 for n in NAMES], [True] * 3)
    server.post("/v1/cache/flush", {})
    kept = server.post("/v1/conversations", {})[2]["id"]
    before = chunks()
    for name in NAMES:
        status, _, r = server.post("/v1/responses", {"model": name, "conversation": kept, "input": "Who is Lily? " * 20,
                                                     "max_output_tokens": 8, "temperature": 0})
        check(f"{name} continues the conversation", status == 200 and r["model"] == name, r)
    server.post("/v1/cache/flush", {})
    made = chunks() - before
    server.post("/api/generate", {"model": "red", "keep_alive": 0})
    gone = server.request("DELETE", f"/v1/conversations/{kept}")[2]
    check("a deleted conversation leaves no state of any model", made > 0 and chunks() == before and gone["pending_chunks"] == 0,
          (made, before, chunks(), gone))


def batches(server):
    line = lambda i, model: json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",  # noqa: E731
                                        "body": {"model": model, "prompt": "Once", "max_tokens": 4, "temperature": 0}})
    lines = "\n".join(line(i, m) for i, m in enumerate(["blue", "green"]))
    form = ("--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: form-data; "
            "name=\"file\"; filename=\"a\"\r\n\r\n%s\r\n--edge--\r\n" % lines)
    file = server.request("POST", "/v1/files", form, {"Content-Type": "multipart/form-data; boundary=edge"})[2]
    made = server.post("/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"})[2]
    look = lambda: server.request("GET", f"/v1/batches/{made['id']}")[2]  # noqa: E731
    until(lambda: look()["status"] in ("completed", "failed"))
    done = look()
    out = server.request("GET", f"/v1/files/{done['output_file_id']}/content")[2]
    bad = server.request("GET", f"/v1/files/{done['error_file_id']}/content")[2]
    check("a batch is answered by the model that its first line names", out["response"]["body"]["model"] == "blue", out)
    check("a line that names another model says so", "batch of their own" in json.dumps(bad), bad)


def switching(tmp, want, n_bytes):
    """Room for one: each request for another model unloads the one before, and its state comes back."""
    server = start(tmp, "s", "--models-memory", str(int(n_bytes * 1.5)), "--max-queue", "2")
    for name in NAMES:
        r = ask(server, name)
        check(f"{name}: state of an earlier process is found, with the bits of a model alone",
              bits(r) == want[name] and r["timings"]["restored_tokens"] > 200, r)
        equal(f"{name} alone is loaded", [n for n, s in states(server).items() if s == "loaded"], [name])
    # an answer that is not read stays in the server: its text exceeds the sockets' buffers
    long = Stream(server, "/v1/completions", body("green", max_tokens=1500, logprobs=5, prompt="One day"))
    next(long.events)
    got = []
    waiting = [threading.Thread(target=lambda n=n: got.append((n, bits(ask(server, n))))) for n in ("blue", "red")]
    for t in waiting:
        t.start()
    check("requests for other models wait", until(lambda: server.request("GET", "/health")[2].get("waiting") == 2))
    status, headers, r = server.post("/v1/completions", body("red"))
    check("one more than --max-queue is 503 with Retry-After", status == 503 and int(headers["Retry-After"]) > 0, r)
    equal("no model is unloaded in the middle of an answer", (states(server)["green"], got), ("loaded", []))
    n = sum(1 for e in long.events if e and e["choices"][0]["finish_reason"] is None)
    check("the answer ends whole", n > 10, n)
    long.close()
    for t in waiting:
        t.join(PATIENCE)
    equal("then those that waited are answered", sorted(got), sorted((n, want[n]) for n in ("red", "blue")))
    counted = server.metric("hcache_model_unloads_total")
    check("counts stay when models leave", counted >= 4 and server.metric("hcache_models_loaded") == 1
          and server.metric("hcache_models_bytes") < n_bytes * 1.5 and server.metric("hcache_generated_tokens_total") > 1500, counted)
    equal("it ends well", server.stop(), 0)
    p = subprocess.run([HC, "serve", os.path.join(tmp, "red"), "--models", os.path.join(tmp, "m"), "--port", "0",
                        "--models-memory", "1M"], capture_output=True, text=True, timeout=PATIENCE)
    check("a bound below one model is refused with both figures", p.returncode == 1 and "--models-memory is 0.00 GB" in p.stderr, p)


def killed(tmp, want, n_bytes):
    """A process that is killed while models come and go loses nothing that was committed."""
    for i in range(3):
        server = start(tmp, "k", "--models-memory", str(int(n_bytes * 1.5)))
        done = []

        def talk():
            try:
                for name in NAMES * 3:
                    done.append(name if bits(ask(server, name)) == want[name] else f"wrong {name}")
            except (OSError, RuntimeError):
                pass
        t = threading.Thread(target=talk)
        t.start()
        until(lambda: len(done) >= 1 + 2 * i)
        server.p.send_signal(signal.SIGKILL)
        server.p.wait()
        t.join(PATIENCE)
        check(f"kill {i}: every answer before it was right", done and all(d in NAMES for d in done), done)
    server = start(tmp, "k", "--models-memory", str(int(n_bytes * 1.5)))
    answers = {n: ask(server, n) for n in NAMES}
    equal("after the kills each answers as if it were alone", {n: bits(r) for n, r in answers.items()}, want)
    check("from state that was saved before", all(r["timings"]["restored_tokens"] > 200 for r in answers.values()),
          {n: r["timings"] for n, r in answers.items()})
    server.stop()
    p = subprocess.run([HC, "store", "verify", os.path.join(tmp, "k")], capture_output=True, text=True, timeout=PATIENCE)
    check("nothing is damaged", p.returncode == 0 and "0 damaged" in p.stdout, p)


def refused(tmp):
    def says(*words):
        return subprocess.run([HC, "serve", *words, "--port", "0"], capture_output=True, text=True, timeout=PATIENCE).stderr
    red = os.path.join(tmp, "red")
    check("two models of one name are refused", "two models have the name red" in says(red, red))
    check("a folder without models is refused", "no model lies below it" in says("--models", os.path.join(tmp, "s")))
    check("no model at all is refused", "no model is given" in says())
    blue = os.path.join(tmp, "m", "one", "blue")
    for names, why in (("x", "give MODEL=NAME"), ("grey=x", "give MODEL=NAME"), ("red=", "give MODEL=NAME"), ("red=x,blue=y,blue=x", "two models have")):
        check(f"--served-name {names} is refused", why in says(red, blue, "--served-name", names))
    server = Server(red, blue, "--served-name", "red=small,red=fast", "--no-any-model")
    equal("the first of other names is shown, and its file's name is gone", [states(server), ask(server, "fast", max_tokens=1)["model"],
          server.post("/v1/completions", body("red"))[0]], [{"small": "loaded", "blue": "unloaded"}, "small", 404])
    server.stop()


with tempfile.TemporaryDirectory() as tmp:
    make(tmp)
    want = alone(tmp)
    check("the three models are different", len({json.dumps(w) for w in want.values()}) == 3)
    n_bytes = on_demand(tmp, want)
    switching(tmp, want, n_bytes)
    killed(tmp, want, n_bytes)
    refused(tmp)
end()
