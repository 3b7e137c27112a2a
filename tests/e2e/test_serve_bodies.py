"""The cost of large bodies: their memory, and the thread that handles them. bench/large_bodies.py
measures the time."""
import json
import os
import shutil
import threading

from serve_client import SANITIZED, Server, Stream, models, until
from tap import check, end, equal, skip

MODEL = "models/demo"
MIB = 1 << 20
BODY = 8 * MIB
CHAT = '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, '
FREE = 32  # MiB by which the server may grow, whatever the body's size


def filled(before, piece, after, n=None):
    n = n or BODY
    k = (n - len(before) - len(after)) // (len(piece) + 1)
    return (before + ",".join([piece] * k) + after).encode()


def costs(s, path, body, n):
    """Sends n requests with this body at once. Returns (statuses, growth of the peak memory in
    MiB)."""
    with open(f"/proc/{s.p.pid}/clear_refs", "w") as f:
        f.write("5")  # resets VmHWM
    before, out = s.memory("VmRSS") / MIB, []
    threads = [threading.Thread(target=lambda: out.append(s.post(path, body)[0])) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out, s.memory("VmHWM") / MIB - before


def test_memory(s):
    s.post("/v1/chat/completions", CHAT + '"user": "x"}')
    before = s.memory("VmRSS") / MIB
    for name, path, want, body in [
            ("user", "/v1/chat/completions", 200, filled(CHAT + '"user": [', "{}", "]}")),
            ("user, nested", "/v1/chat/completions", 200, filled(CHAT + '"user": [', '[[{"a":[[]]}]]', "]}")),
            ("metadata", "/v1/chat/completions", 200, filled(CHAT + '"metadata": {"a": [', "{}", "]}}")),
            ("user under another spelling", "/v1/chat/completions", 413, filled(CHAT + '"us\\u0065r": [', "{}", "]}")),
            ("metadata that is kept", "/v1/responses", 413, filled('{"input": "Hi", "metadata": {"a": [', "{}", "]}}")),
            ("messages", "/v1/chat/completions", 413, filled('{"messages": [', "{}", "]}")),
            ("messages, nested", "/v1/messages", 413, filled('{"messages": [', "[[]]", "]}")),
            ("tools", "/v1/chat/completions", 413, filled(CHAT + '"tools": [{"a": [', "0", "]}]}")),
            ("an unknown field", "/v1/completions", 413, filled('{"prompt": "Hi", "x": [', '""', "]}")),
            ("items", "/v1/conversations", 413, filled('{"items": [', "{}", "]}")),
            ("token ids", "/detokenize", 413, filled('{"tokens": [', "1", "]}")),
            ("a lookup", "/v1/cache/lookup", 413, filled('{"prompt": [', "1", "]}")),
            ("one long message", "/v1/chat/completions", 400, filled('{"messages": [{"role": "user", "content": "', "x y", '"}]}')),
            ("one long message", "/v1/messages", 400, filled('{"max_tokens": 1, "messages": [{"role": "user", "content": "', "x y", '"}]}')),
            ("one long text", "/v1/responses", 400, filled('{"input": "', "x y", '"}')),
            ("one long text", "/v1/completions", 400, filled('{"prompt": "', "x y", '"}')),
            ("many messages", "/v1/chat/completions", 400,
             filled('{"messages": [', '{"role": "user", "content": "' + "x y " * 250 + '"}', "]}")),
            ("not closed", "/v1/chat/completions", 400, filled(CHAT + '"tools": [', "{}", ""))]:
        for n in (1, 4) if name in ("user", "messages") else (1,):
            statuses, peak = costs(s, path, body, n)
            check(f"{n} x 8 MB of values in {name}: {want}", statuses == [want] * n, statuses)
            if SANITIZED:
                skip(f"{n} x {name}: at most 4 times the body", "the sanitizer keeps freed memory")
            else:
                check(f"{n} x {name}: at most 4 times the body", peak <= 4 * n * BODY / MIB + FREE, f"{peak:.0f} MiB")
    check("all of it is given back to the count", until(lambda: s.metric("hcache_http_body_bytes") == 0))
    if not SANITIZED:
        check("and to the system", until(lambda: s.memory("VmRSS") / MIB - before < FREE), s.memory("VmRSS") / MIB - before)
    status, _, r = s.post("/v1/chat/completions", CHAT + '"user": [1, 2,, 3]}')
    check("an ignored field must be JSON", status == 400 and "body" in r["error"]["message"], r)
    status, _, r = s.post("/v1/completions", {"prompt": [1] * 1000, "max_tokens": 1, "user": {"a": [{}] * 1000}})
    check("sensible lists of token ids pass", status == 200, r)


def test_bound_of_all():
    s = Server(MODEL, "--max-bodies", "1M", "--max-body", "1M")
    try:
        body = filled('{"prompt": [', "1", '], "max_tokens": 1}', 100 * 1024)
        status, _, r = s.post("/v1/completions", body)
        check("values count against --max-bodies: 503", status == 503 and "large requests" in r["error"]["message"], r)
        equal("nothing of it is left", s.metric("hcache_http_body_bytes"), 0)
    finally:
        s.stop()


def test_too_long(s):
    text = "word " * (MIB // 4)
    chat = [{"role": "user", "content": text}]
    for path, body in [("/v1/completions", {"prompt": text}), ("/v1/completions", {"prompt": ["a", text]}),
                       ("/v1/chat/completions", {"messages": chat}), ("/v1/messages", {"messages": chat, "max_tokens": 1}),
                       ("/v1/messages/count_tokens", {"messages": chat}), ("/v1/responses", {"input": text}),
                       ("/v1/cache/lookup", {"prompt": text}), ("/v1/cache/lookup", {"messages": chat}),
                       ("/v1/cache/prefetch", {"messages": chat}), ("/tokenize", {"content": text})]:
        status, _, r = s.post(path, body)
        says = r.get("error", {}).get("message", "")
        check(f"{path} {list(body)[0]}: refused by its bytes, before it is tokenized",
              status == 400 and ("bytes, which are at least" in says or "tokens by their bytes" in says) and
              r["error"]["type"] == "invalid_request_error" and "maximum context length" in says, (status, says))
    status, _, r = s.post("/v1/completions", {"prompt": "word " * 2500, "max_tokens": 1})
    check("what only its tokens show is refused by those", status == 400 and "bytes" not in r["error"]["message"], r)
    status, _, r = s.post("/tokenize", {"content": "word " * 50000})
    check("longer texts than a prompt may be counted", status == 200 and r["count"] > 2048, str(r)[:200])


def test_history():
    """The history of a truncated prompt is bounded, too. A prompt far beyond the bound is refused
    by its size.
    """
    s = Server(MODEL, "--truncate", "0.5", "--max-history", "4096")
    text = "word " * (MIB // 4)
    chat, auto = [{"role": "user", "content": text}], {"truncation": "auto"}
    try:
        for path, body in [("/v1/completions", {"prompt": [5] * 4097, "max_tokens": 1, **auto}),
                           ("/v1/completions", {"prompt": text, "max_tokens": 1, **auto}),
                           ("/v1/chat/completions", {"messages": chat, "max_tokens": 1, **auto}),
                           ("/v1/messages", {"messages": chat, "max_tokens": 1, **auto}),
                           ("/v1/responses", {"input": text, "max_output_tokens": 1, **auto}),
                           ("/v1/cache/lookup", {"prompt": text, **auto})]:
            status, _, r = s.post(path, body)
            says = r.get("error", {}).get("message", "")
            check(f"{path} {list(body)[0]}: more than --max-history is refused", status == 400 and "--max-history" in says and
                  "maximum context length" in says, (status, says))
        status, _, r = s.post("/v1/completions", {"prompt": [5] * 3000, "max_tokens": 1, **auto})
        check("less, and more than the context, is truncated", status == 200 and r["usage"]["truncated_tokens"] > 0, str(r)[:300])
    finally:
        s.stop()


def test_long_tokens(s):
    """A few bytes of ids must not produce a large text."""
    folder = os.path.join(models, "long-token")
    shutil.copytree(MODEL, folder)
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as f:
        j = json.load(f)
    last = max(j["added_tokens"], key=lambda t: t["id"])
    long = "<|" + "long" * 1000 + "|>"
    j["model"]["vocab"][long] = j["model"]["vocab"].pop(last["content"])
    last["content"], last["special"] = long, False
    with open(path, "w") as f:
        json.dump(j, f)
    # the template in this file contains the replaced token
    os.unlink(os.path.join(folder, "tokenizer_config.json"))
    body = json.dumps({"tokens": [last["id"]] * 1000})
    own = Server(folder)
    try:
        status, _, r = own.post("/detokenize", body)
        check("ids of 5 KB that stand for 4 MB: refused", status == 400 and r["error"]["code"] == "text_too_long", str(r)[:300])
        status, _, r = own.post("/detokenize", {"tokens": [last["id"]] * 20})
        check("long tokens within reason are text", status == 200 and r["content"] == last["content"] * 20, str(r)[:300])
    finally:
        own.stop()
    ids = s.post("/tokenize", {"content": "word " * 50000})[2]["tokens"]
    status, _, r = s.post("/detokenize", {"tokens": ids})
    check("a long ordinary text comes back", status == 200 and r["content"].strip() == ("word " * 50000).strip(), status)


def test_named_token():
    """A folder names a token for which the model has no embedding. The server works, and refuses
    texts that contain that token."""
    folder = os.path.join(models, "named-token")
    shutil.copytree(MODEL, folder)
    path = os.path.join(folder, "tokenizer_config.json")
    with open(path) as f:
        j = json.load(f)
    j["pad_token"] = "<|named|>"
    j["additional_special_tokens"] = [{"content": "(image)"}]
    with open(path, "w") as f:
        json.dump(j, f)
    own = Server(folder)
    try:
        status, _, r = own.post("/v1/completions", {"prompt": "an image", "max_tokens": 1})
        check("a model with a named token serves", status == 200, str(r)[:300])
        status, _, r = own.post("/v1/completions", {"prompt": "an (image)", "max_tokens": 1})
        check("a token without an embedding is refused", status == 400 and
              "'(image)'" in r["error"]["message"] and "has no embedding" in r["error"]["message"], str(r)[:300])
    finally:
        own.stop()


def answered(s, thread):
    return s.metric('hcache_http_requests_answered_total{thread="%s"}' % thread)


def test_threads(s):
    small, item = {"prompt": "Hi", "max_tokens": 1}, {"role": "user", "content": "x" * 100000}
    for name, thread, ask in [
            ("/health", "http", lambda: s.request("GET", "/health")),
            ("a small completion", "text", lambda: s.post("/v1/completions", small)),
            ("a chat", "text", lambda: s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})),
            ("/v1/responses", "text", lambda: s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1})),
            ("count_tokens", "text", lambda: s.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]})),
            ("/tokenize", "text", lambda: s.post("/tokenize", {"content": "Hi"})),
            ("a list of conversations", "disk", lambda: s.request("GET", "/v1/conversations")),
            ("a small new conversation", "disk", lambda: s.post("/v1/conversations", {})),
            ("a large new conversation", "text", lambda: s.post("/v1/conversations", {"items": [item]})),
            ("a large lookup", "text", lambda: s.post("/v1/cache/lookup", {"prompt": "x " * 5000}))]:
        before = answered(s, thread)  # the request for the metrics is counted, too, as "http"
        ask()
        equal(f"{name}: answered by {thread}", answered(s, thread) - before, 2 if thread == "http" else 1)


def test_streams_go_on(s):
    """While a large body is processed, a stream gets all its events. The large body is answered,
    too.
    """
    stream = Stream(s, "/v1/completions", {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "temperature": 0})
    body, out = filled(CHAT + '"user": [', "{}", "]}"), []
    threads = [threading.Thread(target=lambda: out.append(s.post("/v1/chat/completions", body)[0])) for _ in range(2)]
    for t in threads:
        t.start()
    text = "".join(e["choices"][0]["text"] for e in stream.events if e and e["choices"])
    for t in threads:
        t.join()
    stream.close()
    whole = s.complete("Once", max_tokens=300, ignore_eos=True)["choices"][0]["text"]
    check("a stream beside large bodies is what it is alone", text == whole and out == [200] * 2, (out, len(text), len(whole)))


s = Server(MODEL)
try:
    test_threads(s)
    test_too_long(s)
    test_long_tokens(s)
    test_streams_go_on(s)
    test_memory(s)
finally:
    s.stop()
test_named_token()
test_bound_of_all()
test_history()
end()
