"""Conversations that outgrow their window, in /v1/responses: they continue across kill -9, and are
erased completely.
"""
import os
import tempfile

from serve_client import SAVING, Server, until
from tap import check, end, equal

MODEL = "models/demo"
WINDOW = ("--truncate", "0.5,context=256")
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 2


def say(server, conversation, text, **fields):
    status, _, r = server.post("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 24,
                                                 "conversation": conversation, **fields})
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    return r


def chunks(server):
    return server.request("GET", "/v1/cache/stats", None)[2]["tiers"][0]["chunks"]


def test_conversation(tmp):
    args = (MODEL, *SAVING, "--store", os.path.join(tmp, "s"), "--no-reuse", *WINDOW)
    server = Server(*args)
    c = server.post("/v1/conversations", {})[2]["id"]
    turns = []
    for i in range(8):
        server.post("/v1/cache/flush", {})
        turns.append(say(server, c, LONG))
    usage = [t["usage"] for t in turns]
    print("#", [(u["input_tokens"], u["input_tokens_details"]["cached_tokens"], u["truncated_tokens"]) for u in usage])
    check("the conversation goes on past its window of 256", usage[-1]["total_tokens"] > 400)
    check("the first turns see everything", usage[0]["truncated_tokens"] == 0)
    check("truncated_tokens is a number of steps", usage[-1]["truncated_tokens"] >= 128
          and all(u["truncated_tokens"] % 128 == 0 for u in usage))
    check("a conversation truncates by default", turns[-1]["truncation"] == "auto")
    # (The first turn is left out. Its state is shorter than a chunk, which is too little to measure
    # the store's speed with.)
    check("each turn computes what is new, and what the end of an answer lacks", all(
        u["input_tokens_details"]["cached_tokens"] >= before["total_tokens"] - 2
        for before, u in zip(usage[1:], usage[2:])))
    last = server.request("GET", f"/v1/responses/{turns[-1]['id']}/restoration", None)[2]
    check("the restoration says where the window begins",
          last["truncated_tokens"] == usage[-1]["truncated_tokens"] and last["kept_tokens"] == 64)
    steps, stall_s = (server.metric(f"hcache_truncation_{name}") for name in ("steps_total", "stall_seconds_total"))
    check("/metrics count the steps and what they took", steps > 0 and stall_s > 0, (steps, stall_s))
    server.post("/v1/cache/flush", {})
    server.kill()

    server = Server(*args)
    after = say(server, c, LONG)
    check("after kill -9 it goes on from its saved state",
          after["usage"]["input_tokens_details"]["cached_tokens"] >= usage[-1]["total_tokens"] - 2)
    status, _, _ = server.request("DELETE", f"/v1/conversations/{c}", None)
    check("it can be erased", status == 200)
    check("with all its stairs", until(lambda: chunks(server) == 0))
    server.stop()


def test_other_models(tmp):
    """A request is refused with the reason why this model's contexts cannot be truncated."""
    for family, why in (("opt", "learned positions"), ("mistral", "a sliding window of 16 tokens")):
        server = Server(f"tests/model/golden/families/{family}", "--plain-chat", "--store", os.path.join(tmp, family))
        for path, more in (("completions", {}), ("cache/lookup", {}), ("responses", {"input": "a", "prompt": None})):
            body = {"prompt": [5, 6, 7], "truncation": "auto", **more}
            status, _, r = server.post("/v1/" + path, {k: v for k, v in body.items() if v is not None})
            check(f"{family}, {path}: 400 with the reason", status == 400 and why in r["error"]["message"], r)
        server.stop()


def message(role, text):
    return {"type": "message", "role": role, "content": text}


def test_system_items(tmp):
    """System messages at the beginning belong to the kept head of K tokens, as `instructions` do."""
    server = Server(MODEL, "--store", os.path.join(tmp, "u"), "--truncate", "0.25,context=256")

    def kept(items, **fields):
        status, _, r = server.post("/v1/responses", {"input": items, "temperature": 0, "truncation": "auto",
                                                     "max_output_tokens": 8, **fields})
        if status != 200:
            return r["error"]["message"]
        return server.request("GET", f"/v1/responses/{r['id']}/restoration", None)[2]["kept_tokens"]

    system, user = "Speak of the bird. " * 5, message("user", LONG * 5)
    by_field = kept([user], instructions=system)
    check("instructions raise K", by_field == 128, by_field)
    for role in ("system", "developer"):
        n = kept([message(role, system), user])
        check(f"a {role} message at the beginning of the input raises K as much", n == by_field, n)
    n = kept([user, message("system", system), message("user", "Go on.")])
    check("one behind the user's message does not", n == 64, n)
    n = kept([message("system", LONG * 4), user])
    check("one that K cannot hold: 400 with the numbers", "with a context of 256 and a step of 64" in str(n), n)

    c = server.post("/v1/conversations", {"items": [message("system", system)]})[2]["id"]
    turns = [say(server, c, LONG) for _ in range(5)]
    last = server.request("GET", f"/v1/responses/{turns[-1]['id']}/restoration", None)[2]
    check("one at the beginning of a conversation counts in each turn",
          last["truncated_tokens"] >= 64 and last["kept_tokens"] == 128, last)
    server.stop()


def test_cache(tmp):
    """/v1/cache finds the stairs of truncated prompts, because it uses the engine's keys."""
    server = Server(MODEL, "--store", os.path.join(tmp, "v"), "--truncate", "0.25,context=256")
    said = {"messages": [{"role": "system", "content": "Speak of the bird. " * 5}, {"role": "user", "content": LONG * 7}]}

    def cache(what, **fields):
        status, _, r = server.post(f"/v1/cache/{what}", fields)
        return r if status == 200 else (status, r["error"]["message"])

    def seen(n, cut):
        return (n - cut) // 64 * 64

    status, _, r = server.post("/v1/responses", {"input": [message(m["role"], m["content"]) for m in said["messages"]],
                                                 "temperature": 0, "truncation": "auto", "max_output_tokens": 24})
    check("a response behind its window", status == 200 and r["usage"]["truncated_tokens"] >= 128, r)
    server.post("/v1/cache/flush", {})
    n, cut = r["usage"]["total_tokens"], r["usage"]["truncated_tokens"]
    found = cache("lookup", response_id=r["id"])
    check("a look-up of the response counts what it sees, all of which is stored",
          [found["truncated_tokens"], found["restorable_tokens"], found["stored_tokens"]] == [cut, seen(n - 1, cut), seen(n - 1, cut)], found)
    found = cache("lookup", **said, truncation="auto")
    n, cut = found["prompt_tokens"], found["truncated_tokens"]
    check("one of its messages finds the same stairs",
          n == r["usage"]["input_tokens"] and cut >= 128 and found["stored_tokens"] == found["restorable_tokens"] == seen(n - 1, cut), found)
    found = cache("lookup", **said)
    check("without truncation only the first stair is theirs",
          [found["truncated_tokens"], found["wanted_tokens"], found["stored_tokens"]] == [0, seen(n - 1, 0), 256], found)
    check("a pin says how much of it is pinned",
          cache("pin", **said, truncation="auto", ttl=60)["pinned_tokens"] == seen(n, cut))
    refused = cache("lookup", response_id=r["id"], truncation="auto")
    check("a response keeps its own truncation", refused[0] == 400 and "keeps the truncation" in refused[1], refused)
    refused = cache("lookup", **said, truncation="often")
    check("another value is refused", refused[0] == 400 and "auto or disabled" in refused[1], refused)
    refused = cache("lookup", messages=[{"role": "system", "content": LONG * 4}], truncation="auto")
    check("so is a system message that K cannot hold",
          refused[0] == 400 and "with a context of 256 and a step of 64" in refused[1], refused)
    gone = cache("evict", response_id=r["id"])
    check("evicting the response erases all its stairs", gone["shared_chunks"] == 0 and chunks(server) == 0, gone)
    server.stop()


def test_fields(tmp):
    server = Server(MODEL, "--store", os.path.join(tmp, "t"), *WINDOW)
    for value, want in (("disabled", "disabled"), ("auto", "auto"), (None, "disabled")):
        status, _, r = server.post("/v1/responses", {"input": "Hello", "truncation": value, "max_output_tokens": 2})
        check(f"truncation {value}: {want}", status == 200 and r["truncation"] == want)
    status, _, r = server.post("/v1/responses", {"input": "Hello", "truncation": "auto", "instructions": LONG * 2})
    check("a system prompt that K cannot hold: 400 with the numbers",
          status == 400 and "with a context of 256 and a step of 128" in r["error"]["message"])
    c = server.post("/v1/conversations", {})[2]["id"]
    r = say(server, c, "Hello", instructions=LONG * 2)
    check("a conversation with it goes on, and is not truncated", r["usage"]["truncated_tokens"] == 0)
    status, _, r = server.post("/v1/responses", {"input": "Hello", "truncation": "often"})
    check("another value: 400", status == 400 and "auto or disabled" in r["error"]["message"])
    server.stop()
    server = Server(MODEL)
    status, _, r = server.post("/v1/responses", {"input": "Hello", "truncation": "auto", "store": False})
    check("auto without a store: 400 with the reason", status == 400 and "keeps no state" in r["error"]["message"])
    server.stop()


def test_resent(tmp):
    """Clients send the whole history with each request. Their chats continue past the window and
    are restored."""
    server = Server(MODEL, *SAVING, "--store", os.path.join(tmp, "w"), "--no-reuse", *WINDOW)
    cold = Server(MODEL, "--store", os.path.join(tmp, "x"), "--no-reuse", *WINDOW)
    said, seen = [{"role": "system", "content": "You are kind."}], []
    for _ in range(8):
        server.post("/v1/cache/flush", {})
        said.append({"role": "user", "content": LONG})
        body = {"messages": said, "temperature": 0, "max_tokens": 24, "truncation": "auto"}
        status, _, r = server.post("/v1/chat/completions", body)
        if status != 200:
            raise RuntimeError(f"{status}: {r}")
        seen.append((r["usage"]["prompt_tokens"], r["usage"]["prompt_tokens_details"]["cached_tokens"], r["usage"]["truncated_tokens"]))
        said.append(r["choices"][0]["message"])
    check("the chat goes on past its window of 256", seen[-1][0] > 400 and seen[-1][2] >= 128, seen)
    check("each turn finds the turns before it", all(now[1] >= before[0] // 64 * 64 for before, now in zip(seen, seen[1:])), seen)
    status, _, r = cold.post("/v1/chat/completions", {**body, "messages": said[:-1]})
    equal("one prompt on a cold server has the same answer", r["choices"][0]["message"]["content"], said[-1]["content"])
    status, _, r = cold.post("/v1/messages", {"system": "You are kind.", "messages": said[1:-1], "temperature": 0, "max_tokens": 24,
                                             "truncation": "auto"})
    check("so it has by /v1/messages", status == 200 and r["content"][0]["text"] == said[-1]["content"]
          and r["usage"]["truncated_tokens"] == seen[-1][2], r)
    mark = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    status, _, r = cold.post("/v1/messages", {"messages": [{"role": "user", "content": mark}], "max_tokens": 8, "truncation": "auto"})
    check("but not beside cache_control", status == 400 and "cache_control" in r["error"]["message"], r)
    status, _, r = cold.post("/v1/completions", {"prompt": LONG * 12, "temperature": 0, "max_tokens": 8, "truncation": "auto"})
    check("a text completion", status == 200 and r["usage"]["truncated_tokens"] >= 128, r)
    chat = [{"role": "user", "content": LONG * 120}]
    for path, more in (("chat/completions", {"messages": chat}), ("completions", {"prompt": LONG * 120}), ("messages", {"messages": chat})):
        status, _, r = cold.post("/v1/" + path, {**more, "max_tokens": 8})
        check(f"{path}: without it what does not fit is refused", status == 400 and
              ("maximum context length" in r["error"]["message"] or "too long" in r["error"]["message"]), r)
    ahead = {"messages": [*said[:-2], {"role": "user", "content": "Another question. " + LONG}]}
    p = server.post("/v1/cache/prefetch", {**ahead, "truncation": "auto"})[2]
    status, _, r = server.post("/v1/chat/completions", {**ahead, "max_tokens": 2, "truncation": "auto"})
    check("a prefetch computes the stairs that a chat then finds", status == 200 and p["truncated_tokens"] == r["usage"]["truncated_tokens"] > 0
          and p["computed_tokens"] > 64 and r["usage"]["prompt_tokens_details"]["cached_tokens"] >= (p["prompt_tokens"] - 1) // 64 * 64, (p, r))
    cold.stop()
    server.stop()
    cold = Server(MODEL)
    for path, more in (("chat/completions", {"messages": said[1:2]}), ("completions", {"prompt": "Hello"}),
                       ("messages", {"messages": said[1:2], "max_tokens": 8})):
        status, _, r = cold.post("/v1/" + path, {**more, "truncation": "auto"})
        check(f"{path}: auto without a store: 400 with the reason", status == 400 and "keeps no state" in r["error"]["message"], r)
    cold.stop()


def test_numbers(tmp):
    """A request may give its own C, S and K. It then gets the answer of a server with these values."""
    server = Server(MODEL, "--store", os.path.join(tmp, "y"), *WINDOW)
    other = Server(MODEL, "--store", os.path.join(tmp, "z"), "--truncate", "0.25,keep=128,context=320")
    numbers, said = "0.25,keep=128,context=320", LONG * 8

    def respond(s, truncation):
        status, _, r = s.post("/v1/responses", {"input": said, "temperature": 0, "max_output_tokens": 24, "truncation": truncation})
        if status != 200:
            raise RuntimeError(f"{status}: {r}")
        return r["id"], r["output"][0]["content"][0]["text"], r["usage"]["truncated_tokens"], r["usage"]["input_tokens"]

    own, theirs, auto = respond(server, numbers), respond(other, "auto"), respond(server, "auto")
    equal("a request's own numbers give the answer of a server with these numbers", own[1:], theirs[1:])
    check("which are not this server's numbers", own[2] % 128 == 64 and auto[2] % 128 == 0, (own, auto))
    r = server.request("GET", f"/v1/responses/{own[0]}/restoration", None)[2]
    equal("the response names them", [r[k] for k in ("window_tokens", "step_tokens", "kept_tokens")], [320, 64, 128])
    server.post("/v1/cache/flush", {})
    chat = {"messages": [{"role": "user", "content": said}]}
    for what, more in (("response", {"response_id": own[0]}), ("prompt", {**chat, "truncation": numbers})):
        f = server.post("/v1/cache/lookup", more)[2]
        check(f"a look-up of the {what} finds its stairs", f["truncated_tokens"] == own[2] and f["stored_tokens"] == f["restorable_tokens"] > 128, f)
    for path, more in (("chat/completions", chat), ("completions", {"prompt": said}), ("messages", chat)):
        status, _, r = server.post("/v1/" + path, {**more, "max_tokens": 8, "truncation": numbers})
        check(f"{path} takes them, too", status == 200 and r["usage"]["truncated_tokens"] % 128 == 64, r)
    for bad, why in (("0.5,keep=100", "keep is 100; with a context of"), ("0.5,keep=128,context=256", "keep is 128; with a context of 256"),
                     ("0.1,context=256", "a ratio of 0.1 of a context of 256 tokens is a step of 0"),
                     ("0.5,context=1000000", "the window is 1000000 tokens, and the model's own context is 2048"),
                     ("1.5", "a ratio above 0 and below 1"), ("0.5,keep=0", "keep=K"), ("keep=64", "a ratio above 0"), ("off", "auto or disabled")):
        status, _, r = server.post("/v1/responses", {"input": said, "truncation": bad})
        check(f"{bad}: 400 with the numbers", status == 400 and why in r["error"]["message"], r)
        equal(f"{bad}: refused by name", r["error"]["param"], "truncation")
        status, _, r = server.post("/v1/cache/lookup", {"prompt": said, "truncation": bad})
        check(f"{bad}: 400 of a look-up", status == 400 and why in r["error"]["message"], r)
        equal(f"{bad}: a look-up refuses it by name", r["error"]["param"], "truncation")
    gone = server.post("/v1/cache/evict", {"response_id": own[0]})[2]
    found = server.post("/v1/cache/lookup", {**chat, "truncation": numbers})[2]
    check("evicting the response erases its stairs", gone["erased_chunks"] >= 2 and found["stored_tokens"] < found["wanted_tokens"], (gone, found))
    other.stop()
    server.stop()


with tempfile.TemporaryDirectory() as tmp:
    test_numbers(tmp)
    test_conversation(tmp)
    test_fields(tmp)
    test_system_items(tmp)
    test_cache(tmp)
    test_resent(tmp)
    test_other_models(tmp)
end()
