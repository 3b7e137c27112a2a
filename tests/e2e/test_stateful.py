"""Conversations that the server keeps: they continue with exact tokens, branch and are erased, also
across kill -9.

KILL_CYCLES (12) and KILL_SEED (1) control the kills in the middle of a turn; `make kill-turns` does
100. Arguments pick tests by name ("kill")."""
import json
import os
import random
import sqlite3
import stat
import subprocess
import threading
import time

import scripted_model
from serve_client import HC, SAVING, Server, Stream, files_under, until
from tap import PATIENCE, check, equal, run_each

MODEL = "models/demo"
CYCLES = int(os.environ.get("KILL_CYCLES", "12"))
SEED = int(os.environ.get("KILL_SEED", "1"))
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 4


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
    """Returns (number of tokens kept of the parent, the turn's other tokens). The server must not
    run meanwhile."""
    c = sqlite3.connect(db)
    kept, blob = c.execute("SELECT n_kept, tokens FROM turn WHERE name = ?", (name,)).fetchone()
    c.close()
    return kept, [int.from_bytes(blob[i:i + 4], "little") for i in range(0, len(blob), 4)]


def test_continue(tmp):
    store = os.path.join(tmp, "s")
    server = Server(MODEL, *SAVING, "--store", store, "--no-reuse")
    first = respond(server, LONG)
    check("a response is an object of the API", first["object"] == "response" and first["id"].startswith("resp_") and
          first["status"] in ("completed", "incomplete") and first["usage"]["input_tokens"] > 64, first)
    check("it can be looked at", server.request("GET", "/v1/responses/" + first["id"])[2] == first)
    server.post("/v1/cache/flush", {})
    second = respond(server, "And then?", previous_response_id=first["id"])
    check("a continued response restores its state", second["usage"]["input_tokens_details"]["cached_tokens"] >= 64 and
          second["timings"]["miss"] is None, second)
    tell = server.request("GET", f"/v1/responses/{second['id']}/restoration")[2]
    parts = tell["prefix"]
    check("and says how", tell["cached_tokens"] >= 64 and parts[0]["from"] == 0 and
          parts[-1]["to"] == tell["prompt_tokens"] and
          all(a["to"] == b["from"] for a, b in zip(parts, parts[1:])) and tell["plan"]["layers"], tell)
    for lanes in (tell["predicted"], tell["measured"]):
        spans = lanes["spans"]
        by_lane = {n: [x for x in spans if x["lane"] == n] for n in ("io", "compute")}
        check("with both lanes, span by span", {x["layer"] for x in by_lane["compute"]} == set(range(4)) and
              all(x["end_ms"] <= y["start_ms"] + 1e-3 for l in by_lane.values() for x, y in zip(l, l[1:])) and
              max(x["end_ms"] for x in spans) <= lanes["ms"] + 0.01, lanes)
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
    server.post("/v1/cache/flush", {})
    server.kill()

    db = os.path.join(store, "conversations.db")
    kept, rest = tokens_in(db, second["id"])
    before_kept, before = tokens_in(db, first["id"])
    check("a turn keeps all tokens of the turn before it", kept == before_kept + len(before) and
          before_kept == 0 and len(rest) > 0, (kept, len(before)))
    server = Server(MODEL, *SAVING, "--store", store)
    check("after kill -9 the response is as it was", server.request("GET", "/v1/responses/" + second["id"])[2] == second)
    third = respond(server, "And then?", previous_response_id=second["id"])
    check("and its state is restored", third["usage"]["input_tokens_details"]["cached_tokens"] >= 64 and
          third["timings"]["miss"] is None, third)
    other = respond(server, "And then?", previous_response_id=second["id"], instructions="Answer like a pirate.")
    check("other instructions are another text, and it says so",
          "retokenised" in (other["timings"]["miss"] or ""), other["timings"])
    check("a server that stops says so", server.stop() == 0)
    server = Server(MODEL, *SAVING, "--store", store, "--dtype", "f32")
    moved = respond(server, "And then?", previous_response_id=second["id"])
    check("for another model the text stays, and the reason is said",
          "another model or build" in (moved["timings"]["miss"] or "") and
          moved["usage"]["input_tokens"] == third["usage"]["input_tokens"], moved["timings"])
    server.stop()


def test_stream(tmp):
    server = Server(MODEL, "--store", os.path.join(tmp, "s"))
    events = server.streamed("/v1/responses", {"input": "What is your name?", "temperature": 0, "max_output_tokens": 24})
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
    # The request's last token is far away. If the request ended all the same, because this test was
    # stopped meanwhile, it is repeated.
    cancelled = 'hcache_requests_total{end="cancelled"}'
    for _ in range(20):
        before = server.metric(cancelled)
        talk = server.post("/v1/conversations", {})[2]["id"]
        s = Stream(server, "/v1/responses", {"input": LONG, "ignore_eos": True, "max_output_tokens": 1800,
                                             "conversation": talk})
        name, heard = None, ""
        for e in s.events:
            name = name or e["response"]["id"]
            heard += e["delta"] if e["type"] == "response.output_text.delta" else ""
            if len(heard) > 20:
                break
        s.close()
        idle = until(lambda: server.metric("hcache_requests_running") + server.metric("hcache_requests_waiting") == 0)
        if server.metric(cancelled) > before:
            break
    path = "/v1/responses/" + name
    kept = idle and server.metric(cancelled) > before and until(lambda: code(server, "GET", path) == 200)
    r = server.request("GET", path)[2]
    check("an answer whose client has gone is kept as far as it was there",
          kept and r["status"] == "incomplete" and r["incomplete_details"] == {"reason": "cancelled"} and
          text_of(r).startswith(heard), r)
    items = server.request("GET", f"/v1/conversations/{talk}/items?order=asc")[2]["data"]
    check("its conversation has the question and the beginning of the answer",
          [i["role"] for i in items] == ["user", "assistant"] and items[1]["status"] == "incomplete", items)
    r = server.post("/v1/responses", {"input": "What is your name?", "conversation": talk, "max_output_tokens": 8})[2]
    check("and goes on", r["status"] in ("completed", "incomplete") and
          r["usage"]["input_tokens"] > len(server.post("/tokenize", {"content": LONG})[2]["tokens"]), r)
    again = server.post(f"/v1/conversations/{talk}/branch", {"at": name})
    check("or is branched from it", again[0] == 200, again)
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
    # if the machine pauses this test meanwhile, the long request may end before the short one
    # begins
    for _ in range(20):
        w = server.post("/v1/conversations", {})[2]
        s = Stream(server, "/v1/responses", {"input": "At once 0.", "conversation": w["id"], "ignore_eos": True,
                                             "max_output_tokens": 1500, "temperature": 0})
        next(s.events)
        both = [respond(server, "At once 1.", conversation=w["id"], max_output_tokens=2)]
        both.append(list(s.events)[-1]["response"])
        s.close()
        heads = [r for r in both if r["conversation"]]
        branched = [r for r in both if r.get("branched_from") == w["id"]]
        if branched:
            break
    check("two answers at once: one moves the head, the other is a branch", len(heads) == 1 and len(branched) == 1 and
          code(server, "GET", "/v1/responses/" + branched[0]["id"]) == 200, both)
    server.stop()


def test_bad_input(tmp):
    server = Server(MODEL, "--store", os.path.join(tmp, "s"), "--api-key", "alice,bob", "--max-turns", "6",
                    "--no-any-model")
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
        ({"input": "x", "truncation": "often"}, 400, "truncation"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, 400, "text"),
        ({"input": "x", "tools": [{"type": "quantum"}]}, 400, "tools"),
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
    equal("another key keeps its own turns", [error(server, {"input": "x", "max_output_tokens": 1}, headers=bob)[0]
                                              for _ in range(4)], [200, 200, 200, 400])
    check("what is not to be kept is answered", respond(server, "Hello.", alice, store=False)["store"] is False)
    server.stop()
    server = Server(MODEL, "--conversations", "none")
    got, e = error(server, {"input": "x"})
    check("a server that keeps none says so", got == 400 and e["code"] == "not_kept", e)
    check("and answers all the same", respond(server, "x", store=False)["status"] in ("completed", "incomplete"))
    server.stop()


def test_erased_state(tmp):
    """Chunks are erased with the last turn that uses them, pinned or not, and stay while another
    turn uses them."""
    server = Server(MODEL, *SAVING, "--store", os.path.join(tmp, "s"))

    def stored(name):
        return server.post("/v1/cache/lookup", {"response_id": name})[2]["stored_tokens"]
    a = respond(server, LONG)
    b = respond(server, LONG, previous_response_id=a["id"])
    c = respond(server, LONG + "Or not?", previous_response_id=a["id"])
    server.post("/v1/cache/flush", {})
    whole = {r["id"]: stored(r["id"]) for r in (a, b, c)}
    check("state of all branches is stored", 64 <= whole[a["id"]] < whole[b["id"]], whole)
    gone = server.request("DELETE", "/v1/responses/" + b["id"])[2]
    check("a branch takes its own chunks with it", gone["erased_turns"] == 1 and gone["erased_chunks"] >= 1, gone)
    check("and leaves what others have", stored(a["id"]) == whole[a["id"]] and stored(c["id"]) == whole[c["id"]])
    again = respond(server, LONG, store=False)
    check("a prompt that nobody keeps shares them", again["usage"]["input_tokens_details"]["cached_tokens"] >= 64, again)
    server.post("/v1/cache/flush", {})  # chunks that are being written cannot be erased yet
    server.post("/v1/cache/pin", {"response_id": c["id"], "ttl": 1000})
    server.request("DELETE", "/v1/responses/" + a["id"])
    gone = server.request("DELETE", "/v1/responses/" + c["id"])[2]
    stats = server.request("GET", "/v1/cache/stats")[2]
    check("the last one takes all", gone["erased_turns"] == 2 and stats["tiers"][0]["chunks"] == 0 and
          stats["tiers"][0]["pins"] == 0 and stats["conversations"]["chunks_to_erase"] == 0, (gone, stats))
    tokens = [int(x) for x in server.post("/tokenize", {"content": LONG})[2]["tokens"]][:64]
    needle = b"".join(t.to_bytes(4, "little") for t in tokens[8:40])
    server.stop()
    left = [f for f in files_under(os.path.join(tmp, "s")) if needle in open(f, "rb").read()]
    check("no file has its tokens any more", not left, left)
    server = Server(MODEL, *SAVING, "--store", os.path.join(tmp, "s"), "--conversation-ttl", "1")
    a = respond(server, LONG)
    v = server.post("/v1/conversations", {"items": [{"role": "user", "content": "x"}]})[2]

    def all_gone():  # the conversation is younger than the response, so it expires later
        stats = server.request("GET", "/v1/cache/stats")[2]
        return code(server, "GET", "/v1/responses/" + a["id"]) == code(server, "GET", "/v1/conversations/" + v["id"]) == 404 \
            and stats["tiers"][0]["chunks"] == stats["conversations"]["turns"] == 0
    until(all_gone)
    stats = server.request("GET", "/v1/cache/stats")[2]
    check("what is too old is erased with its state", code(server, "GET", "/v1/conversations/" + v["id"]) == 404 and
          stats["tiers"][0]["chunks"] == 0 and stats["conversations"]["turns"] == 0, stats)
    server.stop()


def test_idle(tmp):
    """Unused chunks are evicted after --idle-ttl; a pin keeps them; `store gc` evicts them without
    a server."""
    store, kept = os.path.join(tmp, "s"), "Keep this one. " + LONG
    server = Server(MODEL, *SAVING, "--store", store)

    def ask(what, **body):
        return server.post("/v1/cache/" + what, body)[2]

    def chunks():  # a look-up would be a use
        return server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"]
    ask("prefetch", prompt=kept)
    # the unfinished chunk is not kept
    n_kept = ask("pin", prompt=kept, ttl=100000)["pinned_tokens"] // 64
    ask("prefetch", prompt=LONG)
    server.stop()
    server = Server(MODEL, *SAVING, "--store", store, "--idle-ttl", "1", "--policy", "fifo")
    check("what is idle goes", until(lambda: chunks() == n_kept))
    check("it is counted", server.metric('hcache_evictions_total{reason="idle"}') > 0)
    tier = server.request("GET", "/v1/cache/stats")[2]["tiers"][0]
    equal("stats and metrics name the idle time, the policy and the pins",
          [tier[k] for k in ("idle_ttl_s", "policy", "pins")] + [server.metric("hcache_idle_ttl_seconds"), server.metric("hcache_pins")],
          [1, "fifo", 1, 1, 1])
    advice = server.request("GET", "/v1/cache/stats?advise=true")[2]["advice"]
    check("stats advise on a size, on request", "advice" not in server.request("GET", "/v1/cache/stats")[2] and
          [r["used_within"] for r in advice] == ["hour", "day", "week", "30 days", "all time"] and
          all(r["contexts"] == 1 and r["bytes"] == tier["used_bytes"] for r in advice), advice)
    check("so do the metrics", until(lambda: server.metric('hcache_used_within_bytes{time="all time"}') == tier["used_bytes"]) and
          server.metric('hcache_used_within_contexts{time="hour"}') == 1)
    check("what is pinned stays", ask("lookup", prompt=kept)["stored_tokens"] >= 64)
    ask("pin", prompt=kept, ttl=0)
    server.stop()
    gc = [HC, "store", "gc", store, "--json", "--idle-ttl"]
    p = subprocess.run(gc + ["100000"], stdout=subprocess.PIPE)
    check("store gc leaves what is younger", p.returncode == 0 and json.loads(p.stdout)["evicted_chunks"] == 0, p.stdout)

    def evicted():
        return json.loads(subprocess.run(gc + ["1"], stdout=subprocess.PIPE).stdout)["evicted_chunks"]
    check("and evicts what is idle", until(lambda: evicted() > 0))


def test_cache(tmp):
    server = Server(MODEL, *SAVING, "--store", os.path.join(tmp, "s"), "--api-key", "alice,bob", "--salt-quota", "4M")
    alice, bob = ({"Authorization": "Bearer " + k} for k in ("alice", "bob"))

    def ask(what, headers=alice, **body):
        status, _, r = server.post("/v1/cache/" + what, body, headers)
        return r if status == 200 else (status, r["error"])
    r = ask("lookup", prompt=LONG)
    check("lookup: nothing yet, and why", r["stored_tokens"] == r["restorable_tokens"] == 0 and r["wanted_tokens"] >= 64 and r["why"], r)
    p = ask("prefetch", prompt=LONG)
    check("prefetch computes and keeps", p["computed_tokens"] == p["prompt_tokens"] and
          p["committed_tokens"] == p["prompt_tokens"], p)
    r = ask("lookup", prompt=LONG)
    check("lookup: all of it, where, and which kinds", r["stored_tokens"] == r["restorable_tokens"] == r["wanted_tokens"] and
          r["tier"] == "disk" and len(r["layers"]) == 4 and r["why"] is None, r)
    ids = server.post("/tokenize", {"content": LONG}, alice)[2]["tokens"]
    check("lookup of token ids", ask("lookup", prompt=ids)["stored_tokens"] == r["stored_tokens"])
    more = ask("lookup", prompt=LONG + LONG)
    check("lookup of a longer prompt says why not more", more["stored_tokens"] >= 64 and more["why"], more)
    check("another salt has nothing", ask("lookup", prompt=LONG, cache_salt="x")["stored_tokens"] == 0)
    check("another key has nothing", ask("lookup", bob, prompt=LONG)["stored_tokens"] == 0)
    done = server.post("/v1/completions", {"prompt": LONG, "max_tokens": 2, "cache_salt": "x"}, alice)[2]
    check("a request's cache_salt divides the state", done["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, done)
    done = server.post("/v1/completions", {"prompt": LONG, "max_tokens": 2, "ignore_eos": True}, alice)[2]
    check("without it, it is found", done["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64, done)
    messages = [{"role": "user", "content": LONG}]
    m = ask("prefetch", messages=messages)
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2}, alice)[2]
    check("prefetch of messages is what a chat restores", m["prompt_tokens"] == chat["usage"]["prompt_tokens"] and
          chat["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64, (m, chat))
    before = time.time()
    pin = ask("pin", prompt=LONG, ttl=60)
    check("pin", pin["pinned_tokens"] >= 64 and before + 60 <= pin["until"] <= time.time() + 61, pin)
    check("unpin", ask("pin", prompt=LONG, ttl=0)["pinned_tokens"] == 0)
    q = ask("quota", bytes=500000, cache_salt="small")
    check("quota", q["quota_bytes"] == 500000, q)
    for i in range(6):
        ask("prefetch", prompt=f"{i} is a number. " + LONG, cache_salt="small")
    use = server.request("GET", "/v1/cache/stats?cache_salt=small", None, alice)[2]["salt"]
    check("a quota holds", 0 < use["used_bytes"] <= 500000, use)
    check("the server's quota is not lifted", ask("quota", bytes=0)[0] == 400 and ask("quota", bytes=1 << 30)[0] == 400)
    gone = ask("evict", prompt=LONG)
    check("evict leaves what others continue", gone["shared_chunks"] >= 1 and
          ask("lookup", prompt=LONG)["stored_tokens"] >= 64, gone)
    alone = "Nobody else begins like this. " + LONG
    ask("prefetch", prompt=alone)
    gone = ask("evict", prompt=alone)
    check("evict", gone["erased_chunks"] >= 2 and ask("lookup", prompt=alone)["stored_tokens"] == 0, gone)
    p = ask("prefetch", prompt=alone)
    check("what was evicted is saved again", p["committed_tokens"] >= 64 and
          ask("lookup", prompt=alone)["stored_tokens"] >= 64, p)
    ask("prefetch", bob, prompt=LONG)
    gone = ask("clear", cache_salt="small")
    check("clear takes one salt", gone["erased_chunks"] >= 1 and ask("lookup", bob, prompt=LONG)["stored_tokens"] >= 64 and
          server.request("GET", "/v1/cache/stats?cache_salt=small", None, alice)[2]["salt"]["chunks"] == 0, gone)
    check("flush", ask("flush") == {"object": "cache.flush", "pending_bytes": 0, "saves": True})
    rows = [("lookup", {}), ("lookup", {"prompt": "x", "messages": messages}), ("lookup", {"prompt": 5}),
            ("lookup", {"prompt": [1, -1]}), ("lookup", {"prompt": ""}), ("lookup", {"prompt": "x", "promt": 1}),
            ("pin", {"prompt": "x"}), ("pin", {"prompt": "x", "ttl": -1}), ("quota", {}), ("quota", {"bytes": "x"}),
            ("clear", {"prompt": "x"})]
    for what, body in rows:
        got = ask(what, **body)
        check(f"refused: {what} {json.dumps(body)[:60]}", isinstance(got, tuple) and got[0] == 400 and got[1]["message"], got)
    got = ask("lookup", bob, response_id=respond(server, "x", alice)["id"])
    check("a foreign response is not found", isinstance(got, tuple) and got[0] == 404, got)
    server.stop()
    server = Server(MODEL)
    check("without a store it says so", server.post("/v1/cache/lookup", {"prompt": LONG})[0] == 400 and
          server.request("GET", "/v1/cache/stats")[2]["tiers"] == [])
    server.stop()


def test_tools(tmp):
    """A tool is called, its result is sent, and the answer follows: in responses, messages and
    chats, whole and streamed."""
    server = Server(scripted_model.make(os.path.join(tmp, "m")), "--store", os.path.join(tmp, "s"))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    city = {"city": "Oslo"}

    def called(r):
        item = r["output"][0]
        return item if len(r["output"]) == 1 and item["type"] == "function_call" and item["name"] == "get_weather" and \
            json.loads(item["arguments"]) == city else None
    tools = [{"type": "function", "name": "get_weather", "parameters": schema}]
    a = respond(server, "How is the weather?", tools=tools)
    call = called(a)
    check("responses: the call is an item", call is not None and a["status"] == "completed", a)
    b = respond(server, [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}],
                previous_response_id=a["id"], tools=tools)
    check("its result continues the response", text_of(b) == scripted_model.ANSWER, b)
    check("and nothing is computed again", b["usage"]["input_tokens_details"]["cached_tokens"] >= a["usage"]["input_tokens"] // 64 * 64, b)
    check("kept as it was told", server.request("GET", "/v1/responses/" + a["id"])[2]["output"] == a["output"])
    got = server.streamed("/v1/responses", {"input": "How is the weather?", "tools": tools})
    done = got[-1]["response"]
    check("streamed: the same call", got[-1]["type"] == "response.completed" and called(done) is not None, got)
    ids = {e["item_id"] for e in got if "item_id" in e} | {e["item"]["id"] for e in got if "item" in e}
    check("all its events name the item of the response", ids == {done["output"][0]["id"]}, (ids, done))
    check("without tools it says so", text_of(respond(server, "How is the weather?")) == scripted_model.HELLO)

    tools = [{"name": "get_weather", "input_schema": schema}]
    ask = [{"role": "user", "content": "How is the weather?"}]
    status, _, m = server.post("/v1/messages", {"max_tokens": 50, "messages": ask, "tools": tools})
    check("messages: the call is a block", status == 200 and m["stop_reason"] == "tool_use" and
          [(x["type"], x["name"], x["input"]) for x in m["content"]] == [("tool_use", "get_weather", city)], m)
    result = {"type": "tool_result", "tool_use_id": m["content"][0]["id"], "content": "sunny"}
    ask += [{"role": "assistant", "content": m["content"]}, {"role": "user", "content": [result]}]
    status, _, m = server.post("/v1/messages", {"max_tokens": 50, "messages": ask, "tools": tools})
    check("its result is answered", status == 200 and m["stop_reason"] == "end_turn" and
          [x.get("text") for x in m["content"]] == [scripted_model.ANSWER], m)
    got = server.streamed("/v1/messages", {"max_tokens": 50, "messages": ask[:1], "tools": tools})
    check("streamed: the same call", "".join(e["delta"].get("partial_json", "") for e in got if e["type"] == "content_block_delta") ==
          json.dumps(city) and [e["delta"]["stop_reason"] for e in got if e["type"] == "message_delta"] == ["tool_use"], got)

    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
    chat = {"messages": ask[:1], "tools": tools}
    r = server.post("/v1/chat/completions", chat)[2]["choices"][0]
    call = r["message"]["tool_calls"][0]
    check("chats: the call", r["finish_reason"] == "tool_calls" and json.loads(call["function"]["arguments"]) == city, r)
    chat["messages"] = ask[:1] + [r["message"], {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    r = server.post("/v1/chat/completions", chat)[2]["choices"][0]
    check("its result is answered", r["finish_reason"] == "stop" and r["message"]["content"] == scripted_model.ANSWER, r)
    server.stop()


def test_run(tmp):
    """`hcache run -i --conversation`: the same conversations in the terminal."""
    store = os.path.join(tmp, "s")

    def talk(lines, *options, kill_after=None):
        p = subprocess.Popen([HC, "run", MODEL, "-i", "--conversation", "birds", "--store", store, "-v", *SAVING, *options],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if kill_after is None:
            out, err = p.communicate("".join(line + "\n" for line in lines).encode(), timeout=PATIENCE)
            return p.returncode, out.decode(), err.decode()
        p.stdin.write("".join(line + "\n" for line in lines).encode())
        p.stdin.flush()
        p.stdout.read(kill_after)
        p.kill()
        p.communicate()
        return p.returncode, "", ""
    code1, out1, err1 = talk([LONG, "", "My name is Bob."])
    check("two turns", code1 == 0 and "begins" in err1 and out1.count("\n") == 2, (code1, out1, err1))
    code2, out2, err2 = talk(["What is my name?"])
    check("quit, go on: the state is restored", code2 == 0 and "after 2 turns" in err2 and
          out1.strip().split("\n")[-1] in err2 and " 0 restored" not in err2.split("prompt tokens,")[1], (out2, err2))
    talk(["Go on.", LONG + LONG], "--ignore-eos", "--max-tokens", "60", kill_after=70)
    server = Server(MODEL, *SAVING, "--store", store)
    listed = server.request("GET", "/v1/conversations")[2]["data"]
    check("the server has it, killed or not at a turn's end", len(listed) == 1 and listed[0]["title"] == "birds" and
          listed[0]["turns"] in (3, 4, 5), listed)
    items = server.request("GET", f"/v1/conversations/{listed[0]['id']}/items?order=asc&limit=100")[2]["data"]
    check("with what was said", [i["content"][0]["text"] for i in items[:5:2]] == [LONG, "My name is Bob.", "What is my name?"] and
          items[5]["content"][0]["text"] == out2.rstrip("\n"), items)
    got = server.request("GET", "/v1/responses/" + items[0]["response_id"])[2]
    check("and its responses", got["object"] == "response" and got["status"] == "completed", got)
    r = respond(server, "Are you still there?", conversation=listed[0]["id"])
    status = subprocess.run([HC, "run", MODEL, "-i", "--conversation", "birds", "--store", store], input=b"", capture_output=True)
    check("not while another process has it", status.returncode == 1 and b"in use" in status.stderr, status)
    server.stop()
    code3, out3, err3 = talk([])
    check("and the terminal what the server answered", text_of(r) in err3, err3)
    for options in (["--conversation", "x"], ["-i", "--conversation", "x"],
                    ["-i", "--conversation", "x", "--store", "memory"]):
        p = subprocess.run([HC, "run", MODEL, *options], input=b"", capture_output=True)
        check(f"refused: {' '.join(options)}", p.returncode == 2 and b"--store" in p.stderr + p.stdout, p)


def test_kill(tmp):
    """kill -9 in the middle of a turn. Afterwards the conversation ends either with the previous
    turn or with the new one."""
    rng = random.Random(SEED)
    store = os.path.join(tmp, "s")
    server, name, said, n_mid, bad = Server(MODEL, "--store", store), None, [], 0, []
    name = server.post("/v1/conversations", {})[2]["id"]
    # The latest moment of a kill. The test adapts it, so that about half of the kills come before
    # the turn ends, on a quick machine, too.
    latest = 0.25
    for cycle in range(CYCLES):
        words = f"Turn {cycle}: " + rng.choice(["tell me about birds.", LONG, "go on."])
        s = Stream(server, "/v1/responses", {"input": words, "conversation": name, "temperature": 0,
                                             "ignore_eos": True, "max_output_tokens": rng.randrange(1, 60)})
        done, stop = None, time.time() + rng.uniform(0, latest)
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
        latest = min(latest * 1.5, 1) if done is None else latest * 0.5
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
        if sum(len(t) for _, t in said) > 2000:  # keeps the conversation within the short context
            name, said = server.post("/v1/conversations", {})[2]["id"], []
    check(f"{CYCLES} times killed, {n_mid} of them in mid-turn: always at the old or the new turn (seed {SEED})",
          not bad and n_mid >= CYCLES // 4, bad)
    r = respond(server, "Are you still there?", conversation=name)
    check("and it goes on", r["status"] in ("completed", "incomplete"), r)
    check("the server stops with status 0", server.stop() == 0)


run_each([test_continue, test_stream, test_conversations, test_bad_input, test_erased_state,
          test_idle, test_cache, test_tools, test_run, test_kill], "stateful")
