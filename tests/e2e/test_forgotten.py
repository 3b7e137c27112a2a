"""Deleted conversations leave no traces.  After every kind of deletion, kill -9 included, no file
of the store or of the conversations contains their text, their stored token ids or a byte of their
state.

KILL_CYCLES (3) is the number of kills during a DELETE, and KILL_SEED (1) the seed of their moments.
Arguments pick tests by name ("kills")."""
import os
import random
import threading
import time

from serve_client import SAVING, Server, Stream, files_under, until
from tap import check, run_each

MODEL = "models/demo"
CYCLES = int(os.environ.get("KILL_CYCLES", "3"))
SEED = int(os.environ.get("KILL_SEED", "1"))
SECRET = "The little bird hid a golden acorn under the seventh stone of the old garden wall. "
IDS = []


def respond(server, text, **fields):
    status, _, r = server.post("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 12, **fields})
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    return r


def talk(server, n_turns=3):
    """Holds a conversation in which every turn supersedes the unfinished chunk of the turn before.
    Returns its name."""
    name = server.post("/v1/conversations", {})[2]["id"]
    for i in range(n_turns):
        respond(server, SECRET + "Go on." * (i + 1), conversation=name)
        server.post("/v1/cache/flush", {})
    if not IDS:
        ids = [int(t) for t in server.post("/tokenize", {"content": SECRET})[2]["tokens"]]
        IDS.append(b"".join(t.to_bytes(4, "little") for t in ids[4:-4]))
    return name


def files_of(store):
    return {os.path.relpath(f, store): open(f, "rb").read() for f in files_under(store)}


def remains(store, text=True):
    """Returns the remains: files with the text or token ids, and segments with a byte that is not
    zero."""
    found = []
    for name, data in files_of(store).items():
        if text and SECRET[12:40].encode() in data:
            found.append(f"{name}: text")
        if IDS[0] in data and (text or name.startswith("seg-")):
            found.append(f"{name}: token ids")
        if name.startswith("seg-") and data.count(0) != len(data):
            found.append(f"{name}: {len(data) - data.count(0)} bytes of state")
    return found


def erased(server):
    """Returns whether no erasure is pending any more."""
    stats = server.request("GET", "/v1/cache/stats")[2]
    return stats["conversations"]["chunks_to_erase"] == 0 and stats["tiers"][0]["chunks"] == 0


def serve(store, *options):
    return Server(MODEL, *SAVING, "--store", store, *options)


def test_kinds(tmp):
    store = os.path.join(tmp, "s")
    server = serve(store)
    name = talk(server)
    before = remains(store)
    check("the search can find text, token ids and state", len(before) >= 3, before)
    server.request("DELETE", "/v1/conversations/" + name)
    check("a deleted conversation leaves nothing", remains(store) == [], remains(store))
    last, names = None, []
    for i in range(3):
        last = respond(server, SECRET + "And then? " * (i + 1), **({"previous_response_id": last} if last else {}))["id"]
        names.append(last)
        server.post("/v1/cache/flush", {})
    for name in names:
        server.request("DELETE", "/v1/responses/" + name)
    check("neither do deleted responses", remains(store) == [], remains(store))
    name = talk(server)
    server.post("/v1/cache/clear", {})
    check("a cleared cache leaves no state", remains(store, text=False) == [], remains(store, text=False))
    server.stop()
    server = serve(store)
    talk(server)
    server.kill()
    server = serve(store, "--conversation-ttl", "1")
    until(lambda: erased(server) and not server.request("GET", "/v1/conversations")[2]["data"])
    until(lambda: remains(store) == [])
    check("nor does one whose time is over, after a kill", remains(store) == [], remains(store))
    server.stop()
    check("nor after the server has stopped", remains(store) == [], remains(store))


def delete_killed(server, name, delay):
    t = threading.Thread(target=lambda: quietly(lambda: server.request("DELETE", "/v1/conversations/" + name)))
    t.start()
    time.sleep(delay)
    server.kill()
    t.join()


def quietly(call):
    try:
        call()
    except Exception:  # noqa: BLE001
        pass


def test_kills(tmp):
    """A server is killed during a DELETE. The next server either shows the whole conversation or
    has erased it."""
    rng, store, bad, n_gone = random.Random(SEED), os.path.join(tmp, "s"), [], 0
    # The latest moment of a kill in seconds. The test adapts it, so that on a quick machine, too,
    # some kills come before the DELETE ends.
    latest = 0.02
    server = serve(store)
    for cycle in range(CYCLES):
        name = talk(server)
        delete_killed(server, name, rng.uniform(0, latest))
        server = serve(store)
        if server.request("GET", "/v1/conversations/" + name)[0] == 404:
            n_gone += 1
            latest *= 0.6
            text = [f for f in remains(store) if ": text" in f]
            bad += [(cycle, "text while the next server runs", text)] if text else []
        server.request("DELETE", "/v1/conversations/" + name)
        until(lambda: erased(server))
        until(lambda: remains(store) == [])
        bad += [(cycle, f) for f in remains(store)]
    check(f"{CYCLES} times killed inside a DELETE, {n_gone} of them after it had happened (seed {SEED})", not bad, bad)
    server.stop()


def test_interrupted(tmp):
    """A server is killed during an answer, after some of the answer's chunks were saved. These
    chunks begin with the end of the previous turn, and no turn refers to them. Deleting the
    conversation erases them, too. A conversation that only shares its beginning stays."""
    store = os.path.join(tmp, "s")
    # one with full chunks, and one shorter than a chunk
    for text in (SECRET * 3, "Remember 4711."):
        n_before = 4 if text[0] == "T" else 2
        # repeated if the answer ended before the kill: the machine may have paused this test
        # meanwhile
        for _ in range(20):
            server = serve(store, "--speculate", "off")  # guessed tokens would end the answer too soon
            name = talk(server, 1) if text[0] == "T" else server.post("/v1/conversations", {})[2]["id"]
            respond(server, text, conversation=name)
            s = Stream(server, "/v1/responses", {"input": text, "conversation": name, "temperature": 0, "stream": True,
                                                 "ignore_eos": True, "max_output_tokens": 1500})
            n = 0
            for e in s.events:
                n += e["type"] == "response.output_text.delta"
                if n == 90:
                    break
            # the writer commits many chunks at once, and the answer would end first
            server.post("/v1/cache/flush", {})
            server.kill()
            s.close()
            server = serve(store)
            chunks = server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"]
            items = server.request("GET", f"/v1/conversations/{name}/items")[2]["data"]
            if len(items) == n_before:
                break
            server.request("DELETE", "/v1/conversations/" + name)
            server.stop()
        check("the answer was interrupted", len(items) == n_before, len(items))
        server.request("DELETE", "/v1/conversations/" + name)
        until(lambda: erased(server))
        check("what an interrupted answer saved goes with its conversation", chunks >= 3 and remains(store) == [],
              (chunks, remains(store)))
        server.stop()
    server = serve(store)
    respond(server, SECRET * 3 + "Who else?", store=False)
    name = server.post("/v1/conversations", {})[2]["id"]
    respond(server, SECRET * 3 + "What now?", conversation=name)
    server.post("/v1/cache/flush", {})
    before = server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"]
    server.request("DELETE", "/v1/conversations/" + name)
    left = server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"]
    check("what shares only the beginning stays", 0 < left < before, (before, left))
    server.stop()


run_each([test_kinds, test_kills, test_interrupted], "forgotten")
