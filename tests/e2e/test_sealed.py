"""--store-key: no file of an encrypted store, and no value in its Redis, shows a text or a token. All
of it comes back with the key after kill -9, and a wrong or missing key is an error."""
import json
import os
import struct
import subprocess
import tempfile

from redis_proxy import Redis, is_installed
from serve_client import HC, SANITIZED, SAVING, Server, files_under, until
from tap import PATIENCE, check, end, equal, raises

MODEL = "models/demo"
WORDS = ("upload", "output", "response", "answer", "tool")
FORMS = (b"SQLite format", b"HCEXTENT", b"HCBUNDLE", b"CREATE TABLE")
MARKS = [f"zqx{w}w".encode() for w in (*WORDS, "line", "name")]  # so long that no random bytes equal them
TEXT = {w: f"The secret zqx{w}w of the day is a little bird in a tree, so we all say. " * 6 for w in WORDS}


def start(store, key, *options):
    env = {} if key is None else {"HCACHE_STORE_SECRET": key}
    return Server(MODEL, "--store", store, *SAVING, *([] if key is None else ["--store-key", "env"]), *options, env=env)


def tool(*args, key=None, ok=True):
    env = {**os.environ, **({} if key is None else {"HCACHE_STORE_KEY": "env", "HCACHE_STORE_SECRET": key})}
    r = subprocess.run([HC, "store", *args], capture_output=True, text=True, timeout=PATIENCE, env=env)
    check(f"store {args[0]} {'works' if ok else 'fails'}", (r.returncode == 0) == ok, r.stderr)
    return r.stdout if ok else r.stderr


def upload(server, text):
    line = json.dumps({"custom_id": "zqxlinew", "method": "POST", "url": "/v1/chat/completions", "body": {
        "messages": [{"role": "user", "content": text}], "max_tokens": 4, "seed": 1}})
    body = "\r\n".join(["--BB", 'Content-Disposition: form-data; name="purpose"', "", "batch", "--BB",
                        'Content-Disposition: form-data; name="file"; filename="zqxnamew"', "", line + "\n", "--BB--", ""])
    return server.request("POST", "/v1/files", body.encode(), {"Content-Type": "multipart/form-data; boundary=BB"})[2]["id"]


def get(server, path):
    status, _, body = server.request("GET", path)
    return body if status == 200 else status


def batch_of(server, file):
    b = server.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"})[2]
    check("a batch ends", until(lambda: get(server, "/v1/batches/" + b["id"])["status"] == "completed"))
    return get(server, "/v1/batches/" + b["id"])


def talk(server, **fields):
    return server.post("/v1/responses", {"input": TEXT["response"], "max_output_tokens": 5, **fields})[2]["status"]


def shown(needles, *folders):
    """Returns which needles the files in the folders show."""
    found = set()
    for path in (f for folder in folders for f in files_under(folder)):
        with open(path, "rb") as f:
            data = f.read()
        # the form of chunks and of their index is no secret
        own = needles if not os.path.basename(path).startswith(("seg-", "index.db")) else [n for n in needles if n not in FORMS]
        found |= {(os.path.basename(path), n[:12]) for n in own if n in data}
    return found


def test(folder):
    key, other = os.urandom(32).hex(), os.urandom(32).hex()
    store, plain = os.path.join(folder, "store"), os.path.join(folder, "plain")
    redis = Redis() if is_installed() else None
    remote = ["--remote", redis.url(), "--remote-write", "always"] if redis else []
    needles = [*MARKS, *FORMS]
    for at, k in ((plain, None), (store, key)):
        s = start(at, k, *remote)
        needles += [struct.pack("<10i", *s.post("/tokenize", {"content": t})[2]["tokens"][20:30]) for t in TEXT.values()]
        file = upload(s, TEXT["upload"])
        batch = batch_of(s, file)
        chat = s.post("/v1/conversations", {})[2]["id"]
        talk(s, conversation=chat)
        s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT["answer"]}], "max_tokens": 5})
        s.post("/v1/cache/flush", {})
        check("the Redis has the chunks", redis is None or until(lambda: next(
            t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"] if t["name"] == "remote")["queued_chunks"] == 0))
        seen = {p: get(s, p) for p in (f"/v1/conversations/{chat}/items", f"/v1/files/{file}/content", f"/v1/files/{batch['output_file_id']}/content",
                                       "/v1/files/" + file, "/v1/batches/" + batch["id"])}
        check("what was uploaded and answered can be read", "zqxuploadw" in str(seen) and "zqxlinew" in str(seen), seen)
        if k is None:
            found = shown(needles, plain)
            check("without a key the texts can be found", {b"zqxlinew", b"SQLite forma"} <= {n for _, n in found}, found)
            equal("the server ends", s.stop(), 0)
            if redis:
                equal("and its chunks in the Redis show tokens", any(
                    n in redis.ask("GET", c) for c in redis.chunks() for n in needles[len(MARKS) + len(FORMS):]), True)
                redis.ask("FLUSHALL")
        else:
            s.kill()
    equal("with a key no file shows a text, a token or a name", shown(needles, store), set())
    if redis:
        names = redis.ask("KEYS", "*")
        values = [redis.ask("GET", n) for n in names if b":chunk:" in n]
        check("nor a value in the Redis", values and not any(n in v for v in values for n in needles), len(values))
        check("whose names are of this key", {n for n in names if not n.startswith(b"hcache:2:")} == {b"hcache:1:servers"}, names)

    s = start(store, key)
    equal("after kill -9 all is there", {p: get(s, p) for p in seen}, seen)
    check("a conversation goes on", talk(s, conversation=chat, input="And then?") in ("completed", "incomplete"))
    check("answers are remembered", s.metric("hcache_answers_kept") > 0)
    equal("and a new output is read", batch_of(s, file)["request_counts"]["completed"], 1)
    equal("the server ends", s.stop(), 0)
    equal("still nothing shows", shown(needles, store), set())
    open(os.path.join(folder, "more"), "w").write(key + "\0x")
    for k, o, why in ((None, [], "is encrypted: give its key"), (other, [], "with another key"),
                      *((None, ["--store-key", os.path.join(folder, "more")], w) for w in ("and nothing else", "other users can read"))):
        check(f"a start is refused: {why}", why in str(raises(RuntimeError, lambda: start(store, k, *o))))
    check("a key for plain files is refused", "is not encrypted" in str(raises(RuntimeError, lambda: start(plain, key))))
    for option, name in (("--files", "files"), ("--conversations", "conversations.db")):
        for at, k, why in ((plain, key, "is not encrypted"), (store, None, "is encrypted: give"), (store, other, "another key")):
            new, of = os.path.join(folder, f"new{k}"), os.path.join(at, name)
            check(f"{option}: {why}", why in str(raises(RuntimeError, lambda: start(new, k, option, of))))

    if redis:
        for k, n in ((other, 0), (None, 0), (key, 1)):
            s = start(os.path.join(folder, f"of{k}"), k, *remote)
            check("a server reaches the Redis", until(lambda: next(
                t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"] if t["name"] == "remote")["up"]))
            t = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT["answer"]}], "max_tokens": 5})[2]
            equal(f"it finds chunks of its own key alone ({n})", t["timings"]["remote_tokens"] > 0, n > 0)
            if k == key:
                equal("an erasure reaches the Redis", s.post("/v1/cache/clear", {})[0], 200)
                check("and empties it", until(lambda: not [c for c in redis.ask("KEYS", "*chunk*") if c in names]))
            s.kill()
        redis.stop()

    out, bare, new = (os.path.join(folder, name) for name in ("x.hcb", "plain.hcb", "import"))
    chunks = json.loads(tool("export", store, "--out", out, "--all", "--conversation", chat, "--json", key=key))["exported_chunks"]
    tool("export", store, "--out", bare, "--all", "--plain", key=key)
    check("an export is encrypted, one with --plain is not", not shown(needles, folder) & {("x.hcb", n[:12]) for n in needles} and
          ("plain.hcb", b"HCBUNDLE") in shown(needles, folder))
    n = json.loads(tool("import", new, "--in", out, "--json", key=key))
    equal("it is imported with its key", (n["imported_chunks"], n["imported_turns"]), (chunks, 2))
    check("not without", "is encrypted: give its key" in tool("import", new + "2", "--in", out, ok=False))
    check("nor with another", "with another key" in tool("import", new + "3", "--in", out, key=other, ok=False))
    equal("a plain export is imported into an encrypted store",
          json.loads(tool("import", new + "4", "--in", bare, "--json", key=other))["imported_chunks"], chunks)
    os.truncate(out, os.path.getsize(out) - 100)
    check("a cut export is told", "cut or damaged" in tool("import", new + "5", "--in", out, key=key, ok=False))
    tool("gc", store, key=key)
    check("titles are shown with the key", "zqxresponsew" in tool("ls", store, key=key))


with tempfile.TemporaryDirectory(prefix="hcache-sealed.") as tmp:
    test(tmp)
r = SANITIZED or subprocess.run(["python3", "tools/key_remains.py", os.environ["HCACHE_BUILD"]], capture_output=True, text=True)
check("no key stays in the memory of a program that ends", SANITIZED or r.returncode == 0, r)
end()
