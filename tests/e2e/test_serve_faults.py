"""Requests that `hcache serve` refuses. The errors have the format of the API and the words that
clients look for."""
import os

from serve_client import Server
from tap import check, end, equal, scratch

MODEL = "models/demo"
KEY = {"Authorization": "Bearer sesame"}
HELLO = [{"role": "user", "content": "Hello"}]
LONG = [{"role": "user", "content": "one two three four five " * 600}]


def test_max_tokens(s):
    """max_completion_tokens takes precedence, in either order."""
    for order in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
        values = {"max_tokens": 7, "max_completion_tokens": 3}
        body = {"messages": HELLO, "ignore_eos": True, **{name: values[name] for name in order}}
        equal(f"{order[0]} before {order[1]}: 3 tokens",
              s.post("/v1/chat/completions", body, KEY)[2]["usage"]["completion_tokens"], 3)
    body = {"messages": HELLO, "ignore_eos": True, "max_tokens": 7, "max_completion_tokens": None}
    equal("null counts as not given: 7 tokens",
          s.post("/v1/chat/completions", body, KEY)[2]["usage"]["completion_tokens"], 7)


def anthropic_fault(name, answer, status, kind):
    r = answer[2]
    check(f"{name}: {status} {kind}", answer[0] == status and isinstance(r, dict) and r.get("type") == "error" and
          r["error"]["type"] == kind and r["error"]["message"] and set(r["error"]) == {"type", "message"}, answer)


def test_shapes(s):
    ask = {"messages": HELLO, "max_tokens": 1}
    anthropic_fault("messages: no key", s.post("/v1/messages", ask), 401, "authentication_error")
    anthropic_fault("messages: a path below that is none", s.post("/v1/messages/none", ask, KEY), 404, "not_found_error")
    anthropic_fault("messages: batches", s.post("/v1/messages/batches", ask, KEY), 404, "not_found_error")
    anthropic_fault("messages: GET", s.request("GET", "/v1/messages", None, KEY), 405, "invalid_request_error")
    anthropic_fault("count_tokens: GET", s.request("GET", "/v1/messages/count_tokens", None, KEY), 405,
                    "invalid_request_error")
    anthropic_fault("messages: too large by its head", s.post("/v1/messages", "x" * 70000, KEY), 413, "request_too_large")
    anthropic_fault("messages: no JSON", s.post("/v1/messages", "{", KEY), 400, "invalid_request_error")
    anthropic_fault("messages: a zero byte", s.post("/v1/messages?x=%00", ask, KEY), 400, "invalid_request_error")
    anthropic_fault("messages: an unknown field", s.post("/v1/messages", {**ask, "x": 1}, KEY), 400,
                    "invalid_request_error")
    anthropic_fault("messages: another model", s.post("/v1/messages", {**ask, "model": "x"}, KEY), 404,
                    "not_found_error")
    for method, path, status in (("GET", "/v1/chat/completions", 405), ("GET", "/v1/messagesx", 404)):
        r = s.request(method, path, None, KEY)
        check(f"{path}: {status} in OpenAI's shape", r[0] == status and set(r[2]["error"]) ==
              {"message", "type", "param", "code"}, r)


def test_overflow(s):
    for path, body, param in (
            ("/v1/chat/completions", {"messages": LONG}, "messages"),
            ("/v1/completions", {"prompt": LONG[0]["content"]}, "prompt"),
            ("/v1/responses", {"input": LONG[0]["content"]}, "input")):
        status, _, r = s.post(path, body, KEY)
        check(f"{path}: more than the context holds", status == 400 and
              "maximum context length is 2048 tokens" in r["error"]["message"] and
              r["error"]["code"] == "context_length_exceeded" and r["error"]["param"] == param, (status, r))
    status, _, r = s.post("/v1/messages", {"messages": LONG, "max_tokens": 1}, KEY)
    check("/v1/messages: in the words of both APIs", status == 400 and
          r["error"]["message"].startswith("prompt is too long: ") and "maximum context length" in r["error"]["message"],
          (status, r))


def test_queue(s):
    """A request that can never be accepted gets no hint to retry."""
    status, headers, r = s.post("/v1/chat/completions", {"messages": HELLO, "n": 3, "max_tokens": 1}, KEY)
    check("n above --max-queue: 400", status == 400 and r["error"]["param"] == "n" and "--max-queue" in
          r["error"]["message"] and "Retry-After" not in headers, (status, r))
    status, _, r = s.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 1}, KEY)
    check("two prompts with n = 2: 400", status == 400 and r["error"]["param"] == "n", (status, r))
    status, _, r = s.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 1}, KEY)
    equal("as many as may wait", status, 200)


def test_ignored(s):
    """Fields that clients always send, and that a text model can ignore, are accepted."""
    ask = {"messages": HELLO, "max_tokens": 1}
    for path, body in (
            ("/v1/chat/completions", {**ask, "reasoning_effort": "high", "verbosity": "low"}),
            ("/v1/messages", {**ask, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
            ("/v1/responses", {"input": "Hello", "max_output_tokens": 1, "include": ["reasoning.encrypted_content"]})):
        status, _, r = s.post(path, body, KEY)
        equal(f"{path}: {sorted(set(body) - {'messages', 'max_tokens', 'input', 'max_output_tokens'})} are ignored",
              (status, r.get("error")), (200, None))


def test_miss(s):
    """`miss` is null or a reason."""
    first = s.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1}, KEY)[2]["timings"]
    equal("a prompt without a full chunk: no miss", first["miss"], None)
    text = [{"role": "user", "content": LONG[0]["content"][:1500]}]
    miss = s.post("/v1/chat/completions", {"messages": text, "max_tokens": 1}, KEY)[2]["timings"]["miss"]
    check("a new prompt: a reason", isinstance(miss, str) and miss != "", miss)
    s.post("/v1/cache/flush", {}, KEY)
    again = s.post("/v1/chat/completions", {"messages": text, "max_tokens": 1}, KEY)[2]["timings"]
    check("the same again: none", again["miss"] is None and again["device_tokens"] > 0, again)


def test_forms(s):
    """Uploads with malformed parts."""
    def form(*parts):
        return b"".join(b"--limit\r\n" + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts) + b"--limit--\r\n"
    named = b'Content-Disposition: form-data; name="%s"'
    purpose, file = (named % b"purpose", b"batch"), (named % b"file" + b'; filename="f"', b"{}\n")
    for name, body in (("a part without a name", form((b"Content-Disposition: form-data", b"x"), purpose, file)),
                       ("a part without any header", form((b"X: y", b"x"), purpose, file)),
                       ("a part with an empty name", form((named % b"", b"x"), purpose, file)),
                       ("a part with another name", form((named % b"x\xff", b"x"), purpose, file)),
                       ("two files", form(purpose, file, file)), ("no file", form(purpose)), ("no end", form(purpose, file)[:-20])):
        status, _, r = s.request("POST", "/v1/files", body, {**KEY, "Content-Type": "multipart/form-data; boundary=limit"})
        check(f"{name}: 400", status == 400 and r["error"]["type"] == "invalid_request_error", (status, r))
    for body in (b"=x&purpose=batch&file=y", b"&=&", b"=", b"%00=x"):
        status = s.request("POST", "/v1/files", body, {**KEY, "Content-Type": "application/x-www-form-urlencoded"})[0]
        equal(f"a form {body}: 400", status, 400)
    status = s.request("POST", "/v1/files", form(purpose, file), {**KEY, "Content-Type": "multipart/form-data; boundary=limit"})[0]
    equal("a right one: 200", status, 200)


tmp = scratch("faults")
server = Server(MODEL, "--store", os.path.join(tmp, "s"), "--max-queue", "2", "--max-body", "60K", "--api-key", "sesame",
                "--no-any-model")
test_max_tokens(server)
test_shapes(server)
test_overflow(server)
test_queue(server)
test_ignored(server)
test_miss(server)
test_forms(server)
server.stop()
end()
