"""`hcache serve` as clients see it, over loopback: the API, its streams, its limits, and its
shutdown.

It uses only Python's standard library; test_serve_openai.py uses the official client."""
import json
import os
import shutil
import signal
import socket
import threading
import time

from plain_model import write_plain_model
from serve_client import MODEL, SAVING, Server, Stream, post_bytes, until
from tap import check, end, equal, scratch


tmp = scratch("serve")
DEMO = "models/demo"
LONG = ("Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends "
        "and her dog. One day she found a big red ball and she wanted to play with it all day long until it got dark. ")


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def collect(server, path, body):
    """Returns (text by choice, all chunks, whether [DONE] came)."""
    s = Stream(server, path, body)
    chunks = list(s.events)
    s.close()
    texts = {}
    for c in chunks:
        for ch in (c or {}).get("choices", []):
            texts[ch["index"]] = texts.get(ch["index"], "") + (ch["text"] if "text" in ch else ch["delta"].get("content") or "")
    return texts, [c for c in chunks if c], chunks[-1:] == [None]


# --- the API ---------------------------------------------------------------------------------------------------


def test_small_routes(s):
    equal("health: 200", s.request("GET", "/health")[0], 200)
    equal("with a store conversations are kept in a file", s.request("GET", "/v1/models")[2]["data"][0]["conversations"], "file")
    status, _, models = s.request("GET", "/v1/models")
    check("models: the folder's name", status == 200 and models["data"][0]["id"] == "plain", models)
    equal("models: by name", s.request("GET", "/v1/models/plain")[0], 200)
    equal("models: another name: 404", s.request("GET", "/v1/models/none")[0], 404)
    tokens = s.post("/tokenize", {"prompt": "Once upon a time"})[2]["tokens"]
    check("tokenize: BOS first", tokens[0] == 0 and len(tokens) > 3, tokens)
    named = [s.post("/tokenize", {"content": "Once upon a time", **f})[2]["tokens"] for f in ({}, {"add_special": True})]
    equal("tokenize: llama-server's clients ask for it", named, [tokens[1:], tokens])
    equal("detokenize gives the text back", s.post("/detokenize", {"tokens": tokens})[2]["content"], "Once upon a time")
    api = s.request("GET", "/openapi.json")[2]
    check("openapi.json: the routes and their fields",
          "temperature" in api["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
          ["schema"]["properties"], api)
    status, headers, text = s.request("GET", "/metrics")
    check("metrics", headers["Content-Type"].startswith("text/plain") and "hcache_ttft_seconds_bucket" in text, text)
    equal("an unknown path: 404", s.request("GET", "/v2")[0], 404)
    equal("a wrong method: 405", s.request("GET", "/v1/completions")[0], 405)
    equal("HEAD", s.request("HEAD", "/health")[0], 200)


def test_completions(s):
    r = s.complete(LONG, max_tokens=20)
    text = r["choices"][0]["text"]
    check("completion: text, usage, timings",
          len(text) > 10 and r["choices"][0]["finish_reason"] == "length" and r["usage"]["completion_tokens"] == 20 and
          "cached_tokens" in r["usage"]["prompt_tokens_details"] and r["timings"]["ttft_ms"] > 0, r)
    ids = s.post("/tokenize", {"prompt": LONG})[2]["tokens"]
    equal("completion of token ids: the same", s.complete(ids, max_tokens=20)["choices"][0]["text"], text)
    r = s.complete([LONG, "The cat"], max_tokens=5, n=2)
    check("two prompts, n = 2: four choices in order",
          [c["index"] for c in r["choices"]] == [0, 1, 2, 3] and r["choices"][0]["text"] == r["choices"][1]["text"] and
          text.startswith(r["choices"][0]["text"]), r)
    # committing the state takes a moment
    found = until(lambda: cached(s.complete(LONG, max_tokens=1)) >= 64)
    again = s.complete(LONG, max_tokens=20)
    check("soon its state is restored, the text is the same",
          found and again["choices"][0]["text"] == text and again["timings"]["restore_plan"]["layers"], again)
    stop = text[5:9]
    r = s.complete(LONG, max_tokens=20, stop=[stop, "never"])["choices"][0]
    equal("stop: cut before it", (r["text"], r["finish_reason"]), (text[:text.index(stop)], "stop"))
    texts, chunks, done = collect(s, "/v1/completions", {"prompt": LONG, "max_tokens": 20, "temperature": 0,
                                                          "stop": stop})
    equal("stop: no part of it is streamed", texts, {0: text[:text.index(stop)]})
    r = s.complete(LONG, max_tokens=4, logprobs=3)["choices"][0]["logprobs"]
    check("logprobs", len(r["tokens"]) == 4 and "".join(r["tokens"]) == text[:len("".join(r["tokens"]))] and
          all(v == max(t.values()) and len(t) == 3 for v, t in zip(r["token_logprobs"], r["top_logprobs"])), r)
    a = s.complete(LONG, max_tokens=12, temperature=1.0, seed=5)["choices"][0]["text"]
    b = s.complete(LONG, max_tokens=12, temperature=1.0, seed=5)["choices"][0]["text"]
    c = [s.complete(LONG, max_tokens=12, temperature=1.0, seed=i)["choices"][0]["text"] for i in range(4)]
    check("a seed repeats, others differ", a == b and len(set(c)) > 1, (a, b, c))
    equal("max_tokens 0: nothing is generated", s.complete(LONG, max_tokens=0)["choices"][0]["text"], "")


def test_streams(s):
    body = {"prompt": LONG, "max_tokens": 20, "temperature": 0}
    whole = s.complete(LONG, max_tokens=20)
    texts, chunks, done = collect(s, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    equal("stream: the pieces are the text", texts[0], whole["choices"][0]["text"])
    check("stream: ends with usage and [DONE]", done and chunks[-1]["choices"] == [] and
          chunks[-1]["usage"]["completion_tokens"] == 20, chunks[-1])
    check("stream: the first chunk has text", chunks[0]["choices"][0]["text"] != "", chunks[0])
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Once upon"}]}], "max_tokens": 8,
            "temperature": 0, "logprobs": None}
    status, _, r = s.post("/v1/chat/completions", chat)
    check("chat: content parts, logprobs null", status == 200 and r["choices"][0]["message"]["role"] == "assistant", r)
    texts, chunks, done = collect(s, "/v1/chat/completions", chat)
    equal("chat stream: the pieces are the text", texts[0], r["choices"][0]["message"]["content"])
    check("chat stream: the first chunk has the role alone, the second has text; no usage unasked",
          chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None} and
          [*chunks[1]["choices"][0]["delta"]] == ["content"] and "usage" not in chunks[1] and done, chunks[:2])
    texts, _, done = collect(s, "/v1/completions", {**body, "n": 3, "temperature": 1, "seed": 1})
    check("stream of n = 3", sorted(texts) == [0, 1, 2] and done, texts)
    r = s.post("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 3})[2]
    lp = r["choices"][0]["logprobs"]["content"]
    check("chat logprobs", len(lp) == 8 or len(lp) == 3 and len(lp[0]["top_logprobs"]) == 2, lp)


def test_faults(s):
    for body, param in (({"prompt": "x", "temprature": 1}, "temprature"), ({"prompt": 5}, "prompt"), ({}, "prompt"),
                        ({"prompt": [1, 999999]}, "prompt"),
                        ({"prompt": ["a"] * 17}, "prompt"), ({"prompt": []}, "prompt"),
                        ({"prompt": "x", "logit_bias": {"999999": 1}}, "logit_bias"),
                        ({"prompt": "x", "stop_token_ids": [999999]}, "stop_token_ids")):
        status, _, r = s.post("/v1/completions", body)
        check(f"refused: {str(body)[:60]}", status == 400 and r["error"]["param"] == param and r["error"]["message"],
              (status, r))
    for path, body, param in (("cache/pin", {"prompt": "x", "ttl": -1}, "ttl"),
                              ("cache/pin", {"prompt": "x", "ttl": 1, "guarantee": 1}, "guarantee"),
                              ("cache/prefetch", {"prompt": "x", "cache_ttl": []}, "cache_ttl"),
                              ("cache/quota", {"bytes": "1"}, "bytes"),
                              ("cache/lookup", {"prompt": "x", "cache_salt": 1}, "cache_salt"),
                              ("conversations", {"title": 1}, "title")):
        status, _, r = s.post("/v1/" + path, body)
        check(f"refused: {path} {body}", status == 400 and r["error"]["param"] == param, (status, r))
    name = s.post("/v1/conversations", {})[2]["id"]
    status, _, r = s.post(f"/v1/conversations/{name}/branch", {"at": 1})
    check("refused: a branch at a number", status == 400 and r["error"]["param"] == "at", (status, r))
    for messages in ([], "x", [{"role": "robot", "content": "x"}], [{"role": "user", "content": 5}],
                     [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]):
        status, _, r = s.post("/v1/chat/completions", {"messages": messages})
        check(f"refused: messages {str(messages)[:60]}", status == 400 and r["error"]["param"] == "messages", (status, r))
    status, _, r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                                    "response_format": {"type": "xml"}})
    check("response_format: refused by name", status == 400 and r["error"]["param"] == "response_format", r)
    equal("not JSON: 400", s.post("/v1/completions", "{")[0], 400)
    equal("bad UTF-8: 400", s.post("/v1/completions", b'{"prompt": "\xff"}')[0], 400)
    equal("another model: 404", s.post("/v1/completions", {"model": "gpt-9", "prompt": "x"})[0], 404)


# --- many clients ----------------------------------------------------------------------------------------------


def test_concurrency(s):
    bodies = [{"prompt": LONG[:40 + 17 * i], "max_tokens": 40, "temperature": 0.8, "seed": i} for i in range(8)]
    alone = [s.post("/v1/completions", b)[2]["choices"][0]["text"] for b in bodies]
    together = [None] * 8

    def ask(i):
        together[i] = s.post("/v1/completions", bodies[i])[2]["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    equal("8 clients at once get what each gets alone", together, alone)


def test_chat_history(s):
    """Sampled answers are sent back as text. The server finds the tokens that it generated for
    them."""
    messages, before, found = [{"role": "user", "content": "Tell me about Tom and his cat."}], 0, []
    for turn in range(7):
        body = {"messages": messages, "max_tokens": 30, "temperature": 1, "seed": turn}
        want = max(0, (before - 1) // 64 * 64)  # the last token of an answer has no state yet
        # waits until the state of the previous answer is written and committed
        s.post("/v1/cache/flush", {})
        r = s.post("/v1/chat/completions", {**body, "max_tokens": 0})[2]
        found.append(True if cached(r) >= want else (turn, cached(r), want, r["timings"]))
        r = s.post("/v1/chat/completions", body)[2]
        before = r["usage"]["total_tokens"]
        text = r["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
    equal("7 turns of a sampled chat: each finds all chunks of the one before", found, [True] * 7)


def test_vanished_clients():
    """Uses the model with the longest answers, so that no answer ends before its client is gone."""
    s = Server(DEMO)
    long = {"prompt": LONG, "max_tokens": 1900, "ignore_eos": True, "n": 16, "temperature": 1}
    for name, stream in (("a stream", True), ("a plain request", False)):
        before = s.metric('hcache_requests_total{end="cancelled"}')
        clients = [s.open() for _ in range(4)]
        for c in clients:
            c.sendall(post_bytes(b"/v1/completions", json.dumps({**long, "stream": stream}).encode()))
        running = until(lambda: s.metric("hcache_requests_running") > 0)
        for c in clients:
            c.close()
        idle = until(lambda: s.metric("hcache_requests_running") + s.metric("hcache_requests_waiting") == 0)
        n = s.metric('hcache_requests_total{end="cancelled"}') - before
        check(f"{name} whose client has gone is cancelled", running and idle and n >= 8, (running, idle, n))
    equal("status 0", s.stop(), 0)


def test_slow_reader(s):
    lazy = [Stream(s, "/v1/completions", {"prompt": LONG, "max_tokens": 300, "ignore_eos": True}) for _ in range(3)]
    r = s.complete("The cat", max_tokens=10)
    check("clients that do not read stall nobody", r["usage"]["completion_tokens"] <= 10, r)
    ends = [list(x.events)[-1] for x in lazy]
    for x in lazy:
        x.close()
    equal("and find everything later", ends, [None] * 3)


def test_many_connections(s):
    idle = [s.open() for _ in range(300)]
    streams = [Stream(s, "/v1/completions", {"prompt": LONG[:30], "max_tokens": 5, "temperature": 0})
               for _ in range(40)]
    ends = [list(x.events)[-1] for x in streams]
    for x in streams:
        x.close()
    check("300 idle connections and 40 streams", ends == [None] * 40 and s.metric("hcache_http_connections") >= 300)
    for c in idle:
        c.close()


# --- hardening -------------------------------------------------------------------------------------------------


def refused(s, name, data, status):
    """Checks that the request is refused with that status and that the connection is closed.
    Otherwise the rest of the bytes would be read as a request."""
    out = s.raw(data)
    ok = out.startswith(b"HTTP/1.1 %d" % status) and out.count(b"HTTP/1.1 ") == 1 and b"<timeout>" not in out
    check(name, ok, out[:600])


def test_lengths(s):
    body = b'{"prompt":"x","max_tokens":1}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    n = b"Content-Length: %d\r\n" % len(body)
    after = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    refused(s, "two different lengths", head + n + b"Content-Length: 5\r\n\r\n" + body + after, 400)
    refused(s, "the same length twice", head + n + n + b"\r\n" + body + after, 400)
    refused(s, "a length and an encoding", head + n + chunked + b"\r\n0\r\n\r\n" + after, 400)
    refused(s, "an encoding and a length", head + chunked + n + b"\r\n0\r\n\r\n" + after, 400)
    refused(s, "an unknown encoding", head + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + after, 501)
    refused(s, "two encodings", head + chunked + chunked + b"\r\n0\r\n\r\n" + after, 501)
    for bad in (b"+5", b"-1", b"0x1d", b"29, 29", b"1e3", b"99999999999999999999999"):
        out = s.raw(head + b"Content-Length: " + bad + b"\r\n\r\n" + body + after)
        check(f"length {bad.decode()}: refused", out.split(b" ")[1:2] in ([b"400"], [b"413"]) and
              b"200 OK" not in out and b"<timeout>" not in out, out[:300])
    out = s.raw(head + b"Connection: close\r\n" + chunked + b"\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
    check("a chunked body is fine", out.startswith(b"HTTP/1.1 200"), out[:300])
    for fold in (b"Content-Length:\r\n 16", b"Content-Length: 1\r\n\t6", b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: chun\r\n ked",
                 n + b"X: y\r\n Transfer-Encoding: chunked"):
        refused(s, f"a folded header {fold}", head + fold.rstrip() + b"\r\n\r\n" + body + after, 400)
    for name, data in (("no HTTP at all", b"\x16\x03\x01\x02\x00hello\r\n\r\n"), ("a space before the colon", head + b"Content-Length : 5\r\n\r\nhello" + after)):
        out = s.raw(data)
        check(f"{name}: no answer but an error", b"200 OK" not in out.split(b"\r\n")[0] and b"<timeout>" not in out, out[:300])


KEY = b"Authorization: Bearer sesame\r\n"


def test_fullness():
    """Every API says how full the context is, and warns from 80 % on."""
    s = Server(DEMO, "--max-context", "160")
    routes = {"/v1/chat/completions": lambda t: {"messages": [{"role": "user", "content": t}], "max_tokens": 4},
              "/v1/completions": lambda t: {"prompt": t, "max_tokens": 4},
              "/v1/responses": lambda t: {"input": t, "max_output_tokens": 4},
              "/v1/messages": lambda t: {"messages": [{"role": "user", "content": t}], "max_tokens": 4}}
    # number of tokens of one repetition
    at = s.post("/tokenize", {"content": "one two " * 10})[2]["count"] / 10
    few, many = "one two " * 4, "one two " * int(140 / at)
    for path, body in routes.items():
        told = [s.post(path, {**body(t), "temperature": 0})[2]["usage"] for t in (few, many)]
        stream = {} if path == "/v1/messages" else {"stream_options": {"include_usage": True}}
        last = [e for e in Stream(s, path, {**body(many), **stream, "temperature": 0}).events if e]
        usages = [u for e in last for u in (e.get("usage"), e.get("response", {}).get("usage")) if u]
        check(f"{path}: no warning where there is room", "context_warning" not in told[0] and told[0]["context_window"] == 160 and
              0 < told[0]["context_used"] < 128, told[0])
        check(f"{path}: a warning from 80 % on, in a stream, too", all(u["context_used"] >= 128 and "of 160 tokens" in
              u["context_warning"] for u in (told[1], usages[-1])), (told[1], usages[-1:]))
    s.stop()


def test_limits(s):
    refused(s, "a body that says it is too long: 413 at once",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"Content-Length: 100000\r\n\r\n", 413)
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    out = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
                   chunk * 4 + b"0\r\n\r\n")
    check("a chunked one that is too long: 413", out.startswith(b"HTTP/1.1 413"), out[:300])
    out = s.raw(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 1000)
    check("one that never ends: cut off", b"200" not in out[:20] and b"<timeout>" not in out, out[:300])
    refused(s, "a long URI: 414", b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"\r\n", 414)
    out = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"X: " + b"a" * 100000 + b"\r\n\r\n")
    check("large headers: refused", b"200 OK" not in out[:20] and b"<timeout>" not in out, out[:300])


def test_timeouts():
    """This server's time limits are a second; the defaults are half a minute and longer. Waits are
    counted in pieces, so that a test that is stopped meanwhile does not count as late."""
    s = Server(MODEL, "--read-timeout", "1", "--idle-timeout", "1")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"

    def closed(begin, drip=b""):
        """Returns whether the server closes a connection that sends `begin` and now and then
        `drip`."""
        with s.open() as c:
            c.settimeout(0.1)
            try:
                c.sendall(begin)
                for _ in range(200):
                    c.sendall(drip)
                    try:
                        if c.recv(65536) == b"":
                            return True
                    except socket.timeout:
                        pass
            except OSError:
                return True
        return False
    check("a body that does not come: closed", closed(head + b"Content-Length: 50\r\n\r\n{"))
    check("a body that drips: closed", closed(head + b"Content-Length: 5000\r\n\r\n", b" "))
    check("a connection without a request: closed", closed(b""))
    equal("status 0", s.stop(), 0)


def test_keys(s):
    key = {"Authorization": "Bearer sesame"}
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
        status, headers, r = s.request("GET", path)
        check(f"{path} without a key: 401", status == 401 and r["error"]["code"] == "invalid_api_key" and
              headers["WWW-Authenticate"] == "Bearer", (status, r))
    equal("a wrong key: 401", s.request("GET", "/v1/models", None, {"Authorization": "Bearer sesam"})[0], 401)
    equal("the key: 200", s.request("GET", "/v1/models", None, key)[0], 200)
    equal("health needs none", s.request("GET", "/health")[0], 200)
    r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, key)
    check("chat without a template: refused, saying so", r[0] == 400 and r[2]["error"]["code"] == "no_chat_template", r)


def test_queue(s):
    key = {"Authorization": "Bearer sesame"}
    pair = {"prompt": "x", "n": 2, "max_tokens": 300, "ignore_eos": True}

    def fill():
        """Returns whether one request runs and two wait. Returns False if all had ended before the
        last was sent."""
        streams = [Stream(s, "/v1/completions", pair, key) for _ in range(2)]
        answer = s.post("/v1/completions", pair, key)
        for one in streams:
            one.close()
        return answer

    answers = []
    check("a full queue: 429 with Retry-After", until(lambda: answers.append(fill()) or answers[-1][0] == 429) and
          answers[-1][1]["Retry-After"] and answers[-1][2]["error"]["type"] == "rate_limit_error", answers[-1:])
    status, _, r = s.post("/v1/completions", {**pair, "n": 16}, key)
    check("more than the queue ever holds: 400", status == 400 and r["error"]["param"] == "n", (status, r))
    check("and later there is room",
          until(lambda: s.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, key)[0] == 200))


# --- chat templates --------------------------------------------------------------------------------------------

TEMPLATE = """{{ bos_token }}{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call>.{% endif %}
{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}
<{{ m.role }}> {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def test_reuse():
    """State that is still on the device is shared and reported; time limits and priorities; a small
    KV cache."""
    s = Server(MODEL, "--max-sequences", "4", "--kv-tokens", "512")
    first = s.complete(LONG, max_tokens=10)
    again = s.complete(LONG, max_tokens=10)
    check("the device has the prompt still: told apart from the store",
          cached(again) == again["usage"]["prompt_tokens"] - 1 and again["timings"]["device_tokens"] == cached(again)
          and again["timings"]["restored_tokens"] == 0 and again["choices"] == first["choices"], again)
    equal("and counted", s.metric('hcache_prompt_tokens_total{source="device"}'), cached(again))
    before = s.metric('hcache_prompt_tokens_total{source="computed"}')
    s.complete("The cat sat. " + LONG, max_tokens=4, n=4, temperature=1)
    n = s.post("/tokenize", {"prompt": "The cat sat. " + LONG})[2]["count"]
    n -= s.metric('hcache_prompt_tokens_total{source="computed"}') - before
    check("four answers compute their prompt once, and its last token each", -3 <= n <= 0, n)
    r = s.post("/v1/completions", {"prompt": LONG, "max_tokens": 400, "ignore_eos": True, "timeout_ms": 1})
    check("timeout_ms: a clear end", r[0] == 504 and r[2]["error"]["code"] == "timeout" or
          r[0] == 200 and r[2]["choices"][0]["finish_reason"] == "timeout", r)
    for field, value in (("priority", 101), ("timeout_ms", -1), ("priority", "high")):
        status, _, r = s.post("/v1/completions", {"prompt": "x", field: value})
        check(f"{field} {value}: refused by name", status == 400 and r["error"]["param"] == field, r)
    alone = [s.complete(LONG[:100 + i], max_tokens=150, ignore_eos=True)["choices"][0]["text"] for i in range(4)]
    together = [None] * 4

    def ask(i):
        r = s.complete(LONG[:100 + i], max_tokens=150, ignore_eos=True, priority=i - 2)
        together[i] = r["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    equal("more than the KV cache holds: all get what each gets alone", together, alone)
    text = s.request("GET", "/metrics")[2]
    documented = open("docs/SERVER.md").read()
    names = {line.split()[2].removeprefix("hcache_").removeprefix("llamacpp:") for line in text.split("\n") if line.startswith("# TYPE")}
    equal("every metric is in docs/SERVER.md", sorted(n for n in names if f"`{n}" not in documented), [])
    bounds = documented[documented.index("## Fields and their bounds"):]
    missing, wrong = [], []
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        post = s.request("GET", "/openapi.json")[2]["paths"].get(path, {}).get("post", {})
        schema = post.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        for field, d in schema.get("properties", {}).items():
            rows = [x for x in bounds.split("\n") if x.startswith(f"| `{field}` |")]
            missing += [] if rows else [field]
            if abs(d.get("maximum", 2**60)) < 2**60:
                wrong += [] if any(f"{d['minimum']:g} to {d['maximum']:.10g} |" in x for x in rows) else [field]
    equal("the table of bounds has every field, with its bounds", (missing, wrong), ([], []))
    equal("status 0", s.stop(), 0)


def test_template():
    model = os.path.join(tmp, "chatty")
    shutil.copytree(MODEL, model, copy_function=shutil.copyfile)
    os.chmod(model, 0o700)
    with open(os.path.join(model, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE)
    s = Server(model)
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "temperature": 0}
    status, _, r = s.post("/v1/chat/completions", chat)
    # the template drops line breaks after blocks
    want = s.complete("<user> Hi<assistant>", max_tokens=6)
    check("template: the prompt is what it writes", status == 200 and
          r["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"] and
          r["choices"][0]["message"]["content"] == want["choices"][0]["text"], (r, want))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    n = r["usage"]["prompt_tokens"]
    status, _, r = s.post("/v1/chat/completions", {**chat, "tools": tools})
    check("tools reach the template", status == 200 and r["usage"]["prompt_tokens"] > n + 20, r)
    texts, _, done = collect(s, "/v1/chat/completions", {**chat, "tools": tools})
    check("an answer without calls is streamed whole", texts == {0: r["choices"][0]["message"]["content"]} and done, texts)
    r = s.post("/v1/chat/completions", {**chat, "tools": tools, "tool_choice": "none"})[2]
    check("tool_choice none: they do, so that the prompt stays as it was", r["usage"]["prompt_tokens"] > n + 50, r["usage"])
    status, _, r = s.post("/v1/chat/completions", {**chat, "tools": tools, "tool_choice": "some"})
    check("tool_choice some: refused", status == 400 and r["error"]["param"] == "tool_choice", r)
    status, _, r = s.post("/v1/chat/completions", {"messages": [{"role": "robot", "content": "x"}]})
    check("what the template refuses is told", status == 400 and "no robots" in r["error"]["message"], r)
    equal("status 0", s.stop(), 0)


# --- ends ------------------------------------------------------------------------------------------------------


def test_ends():
    store = os.path.join(tmp, "store")
    s = Server(MODEL, *SAVING, "--store", store)
    first = s.complete(LONG, max_tokens=60, ignore_eos=True)
    committed = until(lambda: s.complete(LONG, max_tokens=1)["timings"]["committed_tokens"] >= 64)
    s.kill()
    check("state is committed soon", committed)
    s = Server(MODEL, *SAVING, "--store", store, "--drain", "3600")
    again = s.complete(LONG, max_tokens=60, ignore_eos=True)
    check("kill -9: the state is there after a restart, the text is the same",
          cached(again) >= 64 and
          again["choices"][0]["text"] == first["choices"][0]["text"], again)
    c = Stream(s, "/v1/completions", {"prompt": LONG, "max_tokens": 380, "ignore_eos": True})
    next(c.events)
    status = []
    t = threading.Thread(target=lambda: status.append(s.stop()))
    t.start()
    rest = list(c.events)
    t.join()
    check("SIGTERM: a running stream ends as it should", rest[-1:] == [None] and
          rest[-2]["choices"][0]["finish_reason"] == "length", rest[-2:])
    equal("SIGTERM: exit status 0", status, [0])
    # These requests must still run when they are cut off. 64 answers of maximum length take some
    # seconds on any machine.
    endless = {"prompt": LONG, "max_tokens": 1900, "ignore_eos": True, "n": 16}
    s = Server(DEMO, "--drain", "0")
    streams = [Stream(s, "/v1/completions", endless) for _ in range(4)]
    next(streams[0].events)
    code = s.stop()
    ends = [list(x.events)[-1:] for x in streams]
    check("no time to drain: the streams end with an error, the status is 0",
          code == 0 and all(e and "error" in (e[0] or {}) for e in ends), (code, ends))
    s = Server(DEMO, "--drain", "3600")
    streams = [Stream(s, "/v1/completions", endless) for _ in range(4)]
    next(streams[0].events)
    s.p.send_signal(signal.SIGTERM)
    stopping = until(lambda: any("stopping" in x for x in s.log))
    code = s.stop()
    check("a second SIGTERM: at once", stopping and code == 1, (stopping, code, s.log))


def run(*tests, server):
    try:
        for t in tests:
            t(server)
    except Exception as e:  # only the remaining tests of this server are lost
        check(f"{t.__name__}: {e!r}", False, "".join(server.log)[-800:])
    equal("the server stops with status 0", server.stop(), 0)
    check("no text of a prompt is in the log", not any("Lily" in x or "Once" in x for x in server.log), server.log)


started = time.time()
try:
    run(test_small_routes, test_completions, test_streams, test_faults, test_concurrency, test_slow_reader,
        test_many_connections, test_lengths,
        server=Server(MODEL, *SAVING, "--store", os.path.join(tmp, "main"), "--no-reuse", "--plain-chat", "--no-any-model",
                      "--max-connections", "1000"))
    run(test_chat_history,
        server=Server(write_plain_model(os.path.join(tmp, "ends"), ends=True), *SAVING, "--store",
                      os.path.join(tmp, "chat"), "--no-reuse", "--plain-chat"))
    run(test_keys, test_queue, test_limits,
        server=Server(MODEL, "--max-sequences", "1", "--max-queue", "2", "--max-body", "10000",
                      env={"HCACHE_API_KEY": "sesame"}))
    test_vanished_clients()
    test_timeouts()
    test_template()
    test_fullness()
    test_reuse()
    test_ends()
except Exception as e:  # noqa: BLE001
    check(repr(e), False)
print(f"# {time.time() - started:.1f} s")
end()
