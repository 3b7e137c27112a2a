"""The log of `hcache serve`: with -v a line for each request, with times, and without any user
data."""
import os
import re
import urllib.request

from serve_client import SAVING, Server, Stream, until
from tap import check, end, equal, scratch

MODEL = "models/demo"
SECRET = "Kedazar sang of the sea"
LONG = (SECRET + " and of the tall green tree every morning. ") * 6
KEY = {"Authorization": "Bearer sesame"}
TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z hcache: "


def lines(s, pattern):
    return [line.rstrip("\n") for line in s.log if re.search(TIME + pattern, line)]


def logged(name, s, pattern):
    check(f"{name}: one line", until(lambda: len(lines(s, pattern)) == 1), (pattern, s.log[-12:]))


tmp = scratch("log")
store = os.path.join(tmp, "s")
s = Server(MODEL, *SAVING, "--no-reuse", "--store", store, "--api-key", "sesame", "--host", "localhost,127.0.0.2", "-v")
check("two addresses", any(f"ready at http://localhost:{s.port}, http://127.0.0.2:{s.port}\n" in line for line in s.log), s.log)
with urllib.request.urlopen(f"http://127.0.0.2:{s.port}/health") as r:
    equal("the second one answers", r.status, 200)
chat = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5, "ignore_eos": True}
n = s.post("/v1/chat/completions", chat, KEY)[2]["usage"]["prompt_tokens"]
logged("a chat", s, rf"POST /v1/chat/completions 200 in \d+\.\d ms: prompt {n}, cached 0, generated 5$")
s.post("/v1/cache/flush", {}, KEY)
cached = s.post("/v1/chat/completions", {**chat, "n": 2}, KEY)[2]["usage"]["prompt_tokens_details"]["cached_tokens"]
logged("two answers, restored", s,
       rf"POST /v1/chat/completions 200 in .* ms: prompt {n}, cached {cached} \(.*disk R0 H0 K\d+\), generated 10$")
stream = Stream(s, "/v1/completions", {"prompt": "x", "max_tokens": 3, "ignore_eos": True}, KEY)
list(stream.events)
stream.close()
logged("a stream", s, r"POST /v1/completions 200 in .* ms: prompt \d+, cached 0, generated 3$")
gone = Stream(s, "/v1/completions", {"prompt": "x", "max_tokens": 2000, "ignore_eos": True}, KEY)
next(gone.events)
gone.close()
logged("a client that went", s, r"POST /v1/completions 200 in .*; the client was gone before the end$")
r = s.post("/v1/responses", {"input": SECRET, "max_output_tokens": 2}, KEY)[2]
s.request("GET", f"/v1/responses/{r['id']}", None, KEY)
logged("a path with an id", s, r"GET /v1/responses/\{id\} 200 in [0-9.]+ ms$")
s.request("GET", "/v1/" + SECRET.replace(" ", "_"), None, KEY)
logged("no such path", s, r"GET \(no route\) 404 in [0-9.]+ ms: there is no such path$")
s.request("GET", "/v1/models")
logged("no key", s, r"GET /v1/models 401 in [0-9.]+ ms: the API key is missing or unknown \(.*\)$")
# A refused request is logged with the reason; the client's own data is shown as "...".
COMPLETIONS = r"POST /v1/completions 400 in [0-9.]+ ms: "
for name, body, reason in (
        ("a field out of its bounds", {"top_p": 7}, r"'top_p' is 7; it must be 0 to 1"),
        ("a field of another type", {"top_p": SECRET}, r"'top_p' must be a number, it is a string"),
        ("an unknown field", {SECRET: 1}, r"unknown parameter '\.\.\.'"),
        ("a missing field", {"prompt": None}, r"'prompt' is missing"),
        ("a prompt that is too long", {"prompt": SECRET * 2000}, r"the prompt has \d+ bytes, which are at least \d+ tokens: the maximum context length is \d+ tokens")):
    s.post("/v1/completions", {"prompt": "x", **body}, KEY)
    logged(name, s, COMPLETIONS + reason + "$")
s.request("POST", "/v1/completions", b'{"prompt": "' + SECRET.encode(), KEY)
logged("a body that is no JSON", s, COMPLETIONS + r"the request's body\.\.\.$")
s.request("GET", "/v1/conversations/conv_" + SECRET.replace(" ", "_"), None, KEY)
logged("a conversation that is not there", s, r"GET /v1/conversations/\{id\} 404 in [0-9.]+ ms: not_found$")
for path in ("/health", "/metrics", "/v1/cache/stats"):
    equal(f"{path} is answered", s.request("GET", path, None, KEY)[0], 200)
s.request("GET", "/v1/cache/stats")
logged("a poll without a key", s, r"GET /v1/cache/stats 401 in .*")
check("polls that are answered have no line", not lines(s, r"GET (/health|/metrics|/v1/cache/stats) 200"), s.log[-5:])
equal("status 0", s.stop(), 0)
log = "".join(s.log)
equal("nothing of a user's is in it", [w for w in ("Kedazar", "sesame", r["id"], "resp_") if w in log], [])
s = Server(MODEL)
s.complete("x", max_tokens=2)
s.stop()
check("without -v requests are not logged", not lines(s, "POST"), s.log)
end()
