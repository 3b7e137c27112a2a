"""A kept conversation moves to another server by `hcache store export` and `import`, and continues
there with equal bits. Before it has moved, the other server names the server that keeps it."""
import json
import os
import subprocess

from serve_client import HC, SAVING, Server
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
LONG = "My dog is called Biscuit, and he sleeps in the sun until noon. " * 8


def start(name, *options):
    return Server(MODEL, "--store", os.path.join(tmp, name), "--no-reuse", "--server-name", name, *SAVING, *options)


def say(s, text, headers=None, **fields):
    status, _, r = s.post("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 24,
                                            "include": ["message.output_text.logprobs"], **fields}, headers)
    if status != 200:
        raise RuntimeError(f"{status} {r}")
    return r


def said(r):
    """Returns the text, the exact log-probabilities of its tokens, and the prompt's counts."""
    part = r["output"][0]["content"][0]
    return part["text"], part["logprobs"], r["usage"]["input_tokens"]


def hcache(*words):
    return subprocess.run([HC, "store", *words], capture_output=True, text=True, timeout=PATIENCE)


def test_named(a, b):
    """The id of a conversation contains the name of the server that keeps it."""
    talk = a.post("/v1/conversations", {})[2]["id"]
    first = say(a, LONG, conversation=talk)
    for what, name in (("conversation", talk), ("response", first["id"])):
        check(f"a {what}'s name says where it is kept", name.split("_")[1].startswith("server-a-"), name)
    for method, path, body in (("GET", f"/v1/conversations/{talk}", None), ("DELETE", f"/v1/conversations/{talk}", None),
                               ("GET", f"/v1/responses/{first['id']}", None),
                               ("POST", "/v1/responses", {"input": "Go on.", "conversation": talk}),
                               ("POST", "/v1/responses", {"input": "Go on.", "previous_response_id": first["id"]})):
        status, _, r = b.request(method, path, body)
        check(f"{method} {path.split('_')[0]} at another server: it says which one keeps it", status == 503 and
              "kept by the server 'server-a'" in r["error"]["message"], (status, r))
    for name in ("conv_" + "0" * 32, "conv_server-b-" + "0" * 32, "conv_server-a-" + "0" * 31, "conv_Server-" + "0" * 32):
        equal(f"{name} is nowhere", b.request("GET", f"/v1/conversations/{name}")[0], 404)
    a.post("/v1/cache/flush", {})
    second = say(a, "What does Biscuit do?", conversation=talk)
    check("the conversation is restored where it is", second["timings"]["restored_tokens"] >= 64, second["timings"])
    return talk, second["id"]


def items(s, talk):
    return s.request("GET", f"/v1/conversations/{talk}/items?order=asc&limit=100")[2]["data"]


def test_moved(talk, last):
    """Exports a conversation and a lone response; each continues on a server that had neither."""
    a = start("server-a")
    listed = items(a, talk)
    lone = say(a, LONG)
    a.post("/v1/cache/flush", {})
    p = hcache("export", os.path.join(tmp, "server-a"), "--out", os.path.join(tmp, "x.hcb"), "--conversation", talk)
    check("beside a server a conversation is not exported", p.returncode == 1 and "in use" in p.stderr, p)
    a.stop()
    for name, out in ((talk, "talk.hcb"), (lone["id"], "lone.hcb")):
        p = hcache("export", os.path.join(tmp, "server-a"), "--out", os.path.join(tmp, out), "--conversation", name, "--json")
        r = json.loads(p.stdout or "{}")
        check(f"{out}: turns and chunks are exported", p.returncode == 0 and r["exported_turns"] == (2 if name == talk else 1)
              and r["exported_chunks"] >= 2, p)
        for n_turns in (r["exported_turns"], 0):  # the second export has nothing new
            p = hcache("import", os.path.join(tmp, "server-b"), "--in", os.path.join(tmp, out), "--json")
            check(f"{out}: imported", p.returncode == 0 and json.loads(p.stdout)["imported_turns"] == n_turns, p)
    check("an exported conversation that is not there", "there is no conversation" in hcache(
        "export", os.path.join(tmp, "server-a"), "--out", os.path.join(tmp, "y.hcb"), "--conversation", "conv_x").stderr)
    a, b = start("server-a"), start("server-b")
    equal("the other server has every item of it", items(b, talk), listed)
    equal("and the response, as it was", b.request("GET", f"/v1/responses/{last}")[2], a.request("GET", f"/v1/responses/{last}")[2])
    for what, fields in (("conversation", {"conversation": talk}), ("response", {"previous_response_id": lone["id"]})):
        here, there = say(a, "And in the afternoon?", **fields), say(b, "And in the afternoon?", **fields)
        equal(f"the {what} goes on with equal bits", said(there), said(here))
        check(f"the {what}'s state was restored, not computed", there["timings"]["restored_tokens"] ==
              here["timings"]["restored_tokens"] >= 64, (there["timings"], here["timings"]))
    a.stop()
    b.stop()
    p = hcache("import", os.path.join(tmp, "server-a"), "--in", os.path.join(tmp, "talk.hcb"))
    equal("where it is, and has gone on, an import changes nothing", (p.returncode, "0 turns" in p.stdout), (0, True))


def goes_on(what, a, b, talk, headers=None, **fields):
    """Checks that the conversation continues alike on both servers, with its state restored on both."""
    here, there = (said_by(s, "And in the afternoon?", headers, conversation=talk, **fields) for s in (a, b))
    equal(f"{what} goes on with equal bits", there[0], here[0])
    check(f"its state was restored ({what})", there[1] == here[1] >= 64, (there, here))


def said_by(s, text, headers, **fields):
    r = say(s, text, headers, **fields)
    return said(r), r["timings"]["restored_tokens"]


def test_tenants():
    """A conversation of a client with an API key moves to the same client; so does one with its own
    salt."""
    keys = {name: os.path.join(tmp, name) for name in ("all.keys", "hers.keys", "his.keys")}
    for name, text in zip(keys, ("her-key\nhis-key\n", "her-key\n", "his-key\n")):
        with open(keys[name], "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(text)
    hers = {"Authorization": "Bearer her-key"}
    a = start("keys-a", "--api-key-file", keys["all.keys"])
    talk = a.post("/v1/conversations", {}, hers)[2]["id"]
    salted = a.post("/v1/conversations", {}, hers)[2]["id"]
    say(a, LONG, hers, conversation=talk)
    say(a, LONG, hers, conversation=salted, cache_salt="pepper")
    a.stop()
    store, out = os.path.join(tmp, "keys-a"), os.path.join(tmp, "hers.hcb")
    for what, options in (("no key", ()), ("another key", ("--api-key-file", keys["his.keys"]))):
        p = hcache("export", store, "--out", out, "--conversation", talk, *options)
        check(f"{what}: the conversation is not exported", p.returncode == 1 and "there is no conversation" in p.stderr, p)
    for name, file in ((talk, out), (salted, os.path.join(tmp, "salted.hcb"))):
        p = hcache("export", store, "--out", file, "--conversation", name, "--api-key-file", keys["all.keys"], "--json")
        check("with it, it is", p.returncode == 0 and json.loads(p.stdout)["exported_chunks"] >= 2, p)
        with open(file, "rb") as f:
            text = f.read()
        check("no API key is in the file", b"her-key" not in text and b"his-key" not in text)
        for what, options in (("no key", ()), ("another key", ("--api-key-file", keys["his.keys"]))):
            p = hcache("import", os.path.join(tmp, "keys-b"), "--in", file, *options)
            check(f"{what}: the conversation is not imported", p.returncode == 1 and "--api-key-file" in p.stderr, p)
        p = hcache("import", os.path.join(tmp, "keys-b"), "--in", file, "--api-key-file", keys["hers.keys"], "--json")
        check("with it, it is", p.returncode == 0 and json.loads(p.stdout)["imported_turns"] == 1, p)
    a, b = (start(name, "--api-key-file", keys["all.keys"]) for name in ("keys-a", "keys-b"))
    path = f"/v1/conversations/{talk}"
    status, _, r = b.request("GET", path, None, {"Authorization": "Bearer his-key"})
    check("for the other client it is not there", status == 503 and "is kept by the server 'keys-a'" in r["error"]["message"], r)
    goes_on("hers", a, b, talk, hers)
    goes_on("hers with a salt", a, b, salted, hers, cache_salt="pepper")
    a.stop()
    b.stop()


def test_damaged():
    with open(os.path.join(tmp, "talk.hcb"), "rb") as f:
        whole = bytearray(f.read())
    whole[4096 + 4096 + 300] ^= 1  # in the text of the turns
    with open(os.path.join(tmp, "bad.hcb"), "wb") as f:
        f.write(whole)
    p = hcache("import", os.path.join(tmp, "server-c"), "--in", os.path.join(tmp, "bad.hcb"))
    check("a damaged conversation is not imported", p.returncode == 1 and "checksum" in p.stderr, p)
    check("and none is made", not os.path.exists(os.path.join(tmp, "server-c", "conversations.db")))


tmp = scratch("moved")
first_server, other = start("server-a"), start("server-b")
moved = test_named(first_server, other)
first_server.post("/v1/cache/flush", {})
first_server.stop()
other.stop()
test_moved(*moved)
test_tenants()
test_damaged()
p = subprocess.run([HC, "serve", MODEL, "--port", "0", "--server-name", "Not Good"], capture_output=True, text=True,
                   timeout=PATIENCE)
check("a server's name is checked", p.returncode == 2 and "--server-name" in p.stderr, p)
end()
