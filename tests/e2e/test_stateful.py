"""Conversations that the server keeps: continued with exact tokens, branched, erased, across kill -9.

KILL_CYCLES (12) and KILL_SEED (1) say how much is killed in mid-turn; `make kill-turns` does it 100 times.
Arguments pick tests by name ("kill")."""
import json
import os
import random
import shutil
import sqlite3
import stat
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(__file__))
from serve_client import Server, Stream  # noqa: E402

MODEL = "models/demo"
CYCLES = int(os.environ.get("KILL_CYCLES", "12"))
SEED = int(os.environ.get("KILL_SEED", "1"))
n_results = n_failed = 0
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 4


def check(name, ok, why=""):
    global n_results, n_failed
    n_results += 1
    n_failed += not ok
    print(f"{'ok' if ok else 'not ok'} {n_results} - {name}", flush=True)
    if not ok:
        print("# " + str(why).replace("\n", "\n# ")[:1500])


def respond(server, text, headers=None, **fields):
    status, _, r = server.post("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 24, **fields},
                               headers)
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    return r


def text_of(r):
    return "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])


def code(server, method, path, body=None, headers=None):
    return server.request(method, path, body, headers)[0]


def error(server, body, path="/v1/responses", headers=None):
    status, _, r = server.post(path, body, headers)
    return status, r.get("error", {}) if isinstance(r, dict) else {}


def tokens_in(db, name):
    """(tokens kept of the parent, the others) of a turn; the server must not run."""
    c = sqlite3.connect(db)
    kept, blob = c.execute("SELECT n_kept, tokens FROM turn WHERE name = ?", (name,)).fetchone()
    c.close()
    return kept, [int.from_bytes(blob[i:i + 4], "little") for i in range(0, len(blob), 4)]


def test_continue(tmp):
    store = os.path.join(tmp, "s")
    server = Server(MODEL, "--store", store)
    first = respond(server, LONG)
    check("a response is an object of the API", first["object"] == "response" and first["id"].startswith("resp_") and
          first["status"] in ("completed", "incomplete") and first["usage"]["input_tokens"] > 64, first)
    check("it can be looked at", server.request("GET", "/v1/responses/" + first["id"])[2] == first)
    time.sleep(0.3)  # its state is committed in the background
    second = respond(server, "And then?", previous_response_id=first["id"])
    check("a continued response restores its state", second["usage"]["input_tokens_details"]["cached_tokens"] >= 64 and
          second["timings"]["miss"] is None, second)
    tell = server.request("GET", f"/v1/responses/{second['id']}/restoration")[2]
    parts = tell["prefix"]
    check("and says how", tell["cached_tokens"] >= 64 and parts[0]["from"] == 0 and
          parts[-1]["to"] == tell["prompt_tokens"] and
          all(a["to"] == b["from"] for a, b in zip(parts, parts[1:])) and tell["plan"]["layers"], tell)
    twin = respond(server, "And then?", previous_response_id=first["id"])
    check("a retry makes a branch with the same answer", twin["id"] != second["id"] and text_of(twin) == text_of(second))
    branches, threads = [], []
    for i in range(2):
        def go(i=i):
            branches.append(respond(server, f"Once more, number {i}.", previous_response_id=second["id"]))
        threads.append(threading.Thread(target=go))
        threads[-1].start()
    for t in threads:
        t.join()
    check("two clients continue one response at once", len({b["id"] for b in branches}) == 2 and
          all(b["previous_response_id"] == second["id"] for b in branches), branches)
    items = server.request("GET", f"/v1/responses/{second['id']}/input_items")[2]
    check("input items are those of the turn", [i["content"][0]["text"] for i in items["data"]] == ["And then?"], items)
    mode = stat.S_IMODE(os.stat(os.path.join(store, "conversations.db")).st_mode)
    check("the file is private", mode == 0o600, oct(mode))
    server.kill()

    db = os.path.join(store, "conversations.db")
    kept, rest = tokens_in(db, second["id"])
    before_kept, before = tokens_in(db, first["id"])
    check("a turn keeps all tokens of the turn before it", kept == before_kept + len(before) and
          before_kept == 0 and len(rest) > 0, (kept, len(before)))
    server = Server(MODEL, "--store", store)
    check("after kill -9 the response is as it was", server.request("GET", "/v1/responses/" + second["id"])[2] == second)
    third = respond(server, "And then?", previous_response_id=second["id"])
    check("and its state is restored", third["usage"]["input_tokens_details"]["cached_tokens"] >= 64 and
          third["timings"]["miss"] is None, third)
    other = respond(server, "And then?", previous_response_id=second["id"], instructions="Answer like a pirate.")
    check("other instructions are another text, and it says so",
          "retokenised" in (other["timings"]["miss"] or ""), other["timings"])
    check("a server that stops says so", server.stop() == 0)
    server = Server(MODEL, "--store", store, "--dtype", "f32")
    moved = respond(server, "And then?", previous_response_id=second["id"])
    check("for another model the text stays, and the reason is said",
          "another model or build" in (moved["timings"]["miss"] or "") and
          moved["usage"]["input_tokens"] == third["usage"]["input_tokens"], moved["timings"])
    server.stop()


def test_stream(tmp):
    server = Server(MODEL, "--store", os.path.join(tmp, "s"))
    s = Stream(server, "/v1/responses", {"input": "What is your name?", "temperature": 0, "max_output_tokens": 24})
    events = list(s.events)
    s.close()
    kinds = [e["type"] for e in events]
    check("a stream's events come in order", kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"] and
        kinds[-1] in ("response.completed", "response.incomplete") and kinds[-4:-1] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done"], kinds)
    check("with ascending numbers", [e["sequence_number"] for e in events] == list(range(len(events))), events)
    said = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    last = events[-1]["response"]
    check("and their text is the response's", said == text_of(last) and len(said) > 0, events)
    kept = server.request("GET", "/v1/responses/" + last["id"])[2]
    check("which is kept", kept == last, kept)
    s = Stream(server, "/v1/responses", {"input": LONG, "ignore_eos": True, "max_output_tokens": 400})
    name = next(s.events)["response"]["id"]
    s.close()
    time.sleep(0.5)
    check("a response whose client has gone is not kept", code(server, "GET", "/v1/responses/" + name) == 404)
    server.stop()


def test_conversations(tmp):
    server = Server(MODEL, "--store", os.path.join(tmp, "s"))
    _, _, v = server.post("/v1/conversations", {"metadata": {"topic": "birds"}, "items": [
        {"type": "message", "role": "user", "content": "My name is Bob."}]})
    check("a conversation is made", v["object"] == "conversation" and v["metadata"] == {"topic": "birds"} and
          v["turns"] == 1 and v["title"] == "My name is Bob.", v)
    path = "/v1/conversations/" + v["id"]
    a = respond(server, "What is my name?", conversation=v["id"])
    b = respond(server, "Tell me more.", conversation={"id": v["id"]})
    check("it goes on", b["conversation"] == {"id": v["id"]} and a["usage"]["input_tokens"] < b["usage"]["input_tokens"])
    items = server.request("GET", path + "/items?order=asc")[2]["data"]
    check("its items are all that was said, with their responses", [i["role"] for i in items] == [
        "user", "user", "assistant", "user", "assistant"] and [i["response_id"] for i in items] == [
        None, a["id"], a["id"], b["id"], b["id"]], items)
    page = server.request("GET", path + "/items?limit=2")[2]
    rest = server.request("GET", path + "/items?limit=100&after=" + page["last_id"])[2]
    check("in pages, newest first", page["has_more"] and not rest["has_more"] and
          [i["id"] for i in page["data"] + rest["data"]] == [i["id"] for i in items[::-1]], (page, rest))
    _, _, w = server.post(path + "/branch", {"at": a["id"], "title": "another way"})
    c = respond(server, "And what is yours?", conversation=w["id"])
    n = len(server.request("GET", f"/v1/conversations/{w['id']}/items")[2]["data"])
    check("a branch begins in the middle", w["turns"] == 2 and w["title"] == "another way" and n == 5, (w, n))
    listed = server.request("GET", "/v1/conversations")[2]["data"]
    check("both are listed, the last used first", [x["id"] for x in listed] == [w["id"], v["id"]], listed)
    check("an item is looked at", server.request("GET", f"{path}/items/{items[1]['id']}")[2]["content"][0]["text"] ==
          "What is my name?")
    _, _, v2 = server.request("DELETE", f"{path}/items/{items[1]['id']}")
    left = server.request("GET", path + "/items?order=asc")[2]["data"]
    check("an item is taken out, and what was made with it is gone", v2["id"] == v["id"] and
          [i["id"] for i in left] == [items[0]["id"]] + [i["id"] for i in items[2:]] and
          code(server, "GET", "/v1/responses/" + b["id"]) == 404, left)
    d = respond(server, "Go on.", conversation=v["id"])
    _, _, gone = server.request("DELETE", path)
    check("a conversation is erased with its responses", gone["deleted"] and gone["erased_turns"] >= 2 and
          code(server, "GET", path) == 404 and code(server, "GET", "/v1/responses/" + d["id"]) == 404, gone)
    check("its branch is whole", len(server.request("GET", f"/v1/conversations/{w['id']}/items")[2]["data"]) == 5 and
          code(server, "GET", "/v1/responses/" + c["id"]) == 200)
    _, _, gone = server.request("DELETE", "/v1/responses/" + c["id"])
    check("a response in a conversation stays there without its name", gone["shared_turns"] == 1 and
          respond(server, "Go on.", conversation=w["id"])["status"] in ("completed", "incomplete"), gone)
    threads, both = [], []
    for i in range(2):
        def go(i=i):
            both.append(respond(server, f"At once {i}.", conversation=w["id"], ignore_eos=True))
        threads.append(threading.Thread(target=go))
        threads[-1].start()
    for t in threads:
        t.join()
    heads = [r for r in both if r["conversation"]]
    branched = [r for r in both if r.get("branched_from") == w["id"]]
    check("two answers at once: one moves the head, the other is a branch", len(heads) == 1 and len(branched) == 1 and
          code(server, "GET", "/v1/responses/" + branched[0]["id"]) == 200, both)
    server.stop()


def test_bad_input(tmp):
    server = Server(MODEL, "--store", os.path.join(tmp, "s"), "--api-key", "alice,bob", "--max-turns", "3")
    alice, bob = ({"Authorization": "Bearer " + k} for k in ("alice", "bob"))
    r = respond(server, "Hello.", alice)
    v = server.post("/v1/conversations", {}, alice)[2]
    for name, path in (("response", "/v1/responses/" + r["id"]), ("conversation", "/v1/conversations/" + v["id"])):
        check(f"a foreign {name} is not found", code(server, "GET", path, None, bob) == 404 and
              code(server, "DELETE", path, None, bob) == 404 and code(server, "GET", path, None, alice) == 200)
    check("nor continued", error(server, {"input": "x", "previous_response_id": r["id"]}, headers=bob)[0] == 404 and
          error(server, {"input": "x", "conversation": v["id"]}, headers=bob)[0] == 404)
    check("nor listed", server.request("GET", "/v1/conversations", None, bob)[2]["data"] == [])
    check("x-api-key is a key, too", code(server, "GET", "/v1/responses/" + r["id"], None, {"x-api-key": "alice"}) == 200)
    rows = [
        ({}, 400, "input"), ({"input": 5}, 400, "input"), ({"input": []}, 400, "input"),
        ({"input": "x", "temprature": 1}, 400, "temprature"), ({"input": "x", "max_output_tokens": 0}, 400, None),
        ({"input": "x", "temperature": -1}, 400, "temperature"), ({"input": "x", "background": True}, 400, "background"),
        ({"input": "x", "truncation": "auto"}, 400, "truncation"),
        ({"input": "x", "text": {"format": {"type": "json_object"}}}, 400, "text"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, 400, "tools"),
        ({"input": "x", "metadata": {"a": 1}}, 400, "metadata"),
        ({"input": "x", "metadata": {str(i): "" for i in range(17)}}, 400, "metadata"),
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400,
         "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, 400, "input"),
        ({"input": "x", "previous_response_id": r["id"], "conversation": v["id"]}, 400, "conversation"),
        ({"input": "x", "conversation": v["id"], "store": False}, 400, "store"),
        ({"input": "x", "conversation": 7}, 400, "conversation"),
        ({"input": "x", "previous_response_id": "resp_" + "0" * 32}, 404, None),
        ({"input": "x", "conversation": "conv_" + "0" * 32}, 404, None),
        ({"input": "x", "model": "gpt"}, 404, "model"),
        ({"input": "word " * 20000}, 400, "input"),
    ]
    for body, status, param in rows:
        got, e = error(server, body, headers=alice)
        check(f"refused: {json.dumps(body)[:70]}", got == status and (param is None or e.get("param") == param) and
              e.get("message"), (got, e))
    for query in ("limit=0", "limit=101", "limit=x", "order=up"):
        check(f"refused: ?{query}", code(server, "GET", "/v1/conversations?" + query, None, alice) == 400)
    check("a deleted response is not continued", code(server, "DELETE", "/v1/responses/" + r["id"], None, alice) == 200 and
          error(server, {"input": "x", "previous_response_id": r["id"]}, headers=alice)[0] == 404)
    for _ in range(3):
        respond(server, "Hello.", alice)
    got, e = error(server, {"input": "x"}, headers=alice)
    check("a full archive refuses, and says what to do", got == 400 and e["code"] == "storage_full" and
          "delete" in e["message"], e)
    check("what is not to be kept is answered", respond(server, "Hello.", alice, store=False)["store"] is False)
    server.stop()
    server = Server(MODEL, "--conversations", "none")
    got, e = error(server, {"input": "x"})
    check("a server that keeps none says so", got == 400 and e["code"] == "not_kept", e)
    check("and answers all the same", respond(server, "x", store=False)["status"] in ("completed", "incomplete"))
    server.stop()


def test_kill(tmp):
    """kill -9 in the middle of a turn: the conversation is at the turn before, or at the new one."""
    rng = random.Random(SEED)
    store = os.path.join(tmp, "s")
    server, name, said, n_mid, bad = Server(MODEL, "--store", store), None, [], 0, []
    name = server.post("/v1/conversations", {})[2]["id"]
    for cycle in range(CYCLES):
        words = f"Turn {cycle}: " + rng.choice(["tell me about birds.", LONG, "go on."])
        s = Stream(server, "/v1/responses", {"input": words, "conversation": name, "temperature": 0,
                                             "ignore_eos": True, "max_output_tokens": rng.randrange(1, 60)})
        done, stop = None, time.time() + rng.uniform(0, 0.25)
        try:
            for e in s.events:
                if e["type"] in ("response.completed", "response.incomplete"):
                    done = e["response"]
                if done or time.time() > stop:
                    break
        except OSError:
            pass
        server.kill()
        s.close()
        n_mid += done is None
        server = Server(MODEL, "--store", store)
        items = server.request("GET", f"/v1/conversations/{name}/items?limit=100")[2]["data"][::-1]
        while server.request("GET", f"/v1/conversations/{name}/items?limit=100&after={items[0]['id']}")[2]["data"] \
                if items else False:
            older = server.request("GET", f"/v1/conversations/{name}/items?limit=100&after={items[0]['id']}")[2]["data"]
            items = older[::-1] + items
        now = [(i["role"], i["content"][0]["text"]) for i in items]
        old, new = said, said + [("user", words)]
        is_old, is_new = now == old, now[:-1] == new and now[-1][0] == "assistant"
        if done is not None and not (is_new and now[-1][1] == text_of(done)) or not (is_old or is_new):
            bad.append((cycle, done is not None, now[-3:]))
        said = now
        if sum(len(t) for _, t in said) > 2000:  # the context is short
            name, said = server.post("/v1/conversations", {})[2]["id"], []
    check(f"{CYCLES} times killed, {n_mid} of them in mid-turn: always at the old or the new turn (seed {SEED})",
          not bad and n_mid >= CYCLES // 4, bad)
    r = respond(server, "Are you still there?", conversation=name)
    check("and it goes on", r["status"] in ("completed", "incomplete"), r)
    check("the server stops with status 0", server.stop() == 0)


tests = [test_continue, test_stream, test_conversations, test_bad_input, test_kill]
for test in [t for t in tests if not sys.argv[1:] or t.__name__[5:] in sys.argv[1:]]:
    folder = tempfile.mkdtemp(prefix="hcache-stateful.")
    try:
        test(folder)
    except Exception as e:  # noqa: BLE001
        check(f"{test.__name__} ended with {e!r}", False)
    shutil.rmtree(folder, ignore_errors=True)
print(f"1..{n_results}")
sys.exit(bool(n_failed))
