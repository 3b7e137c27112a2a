"""Access control: host names, pages, preflights, keys.  This test sends plain requests;
test_page_foreign.py uses a browser."""
import os
import re
import socket
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(__file__)
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "tools", "golden")]
import hf_to_gguf  # noqa: E402
from serve_client import Server, until  # noqa: E402
from tap import check, end, equal  # noqa: E402

MODEL = "models/demo"
JSON = {"Content-Type": "application/json"}


def raw(s, head, body=b""):
    """Returns (status, headers with lower-case names, body) of one literal request."""
    out = s.raw(head.replace("PORT", str(s.port)).encode() + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    top, _, rest = out.partition(b"\r\n\r\n")
    lines = top.decode("latin-1").split("\r\n")
    headers = {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:] if ": " in x)}
    return int(lines[0].split()[1]), headers, rest


def test_hosts(s):
    for host, want in [("127.0.0.1:PORT", 200), ("LOCALHOST.:PORT", 200), ("[::1]:PORT", 200), ("chat.example", 200),
                       ("Chat.Example.:PORT", 200), ("evil.example:PORT", 403), ("evil.example", 403), ("", 403),
                       ("localhost.evil.example", 403), ("127.0.0.1.nip.example", 403)]:
        for path in ("/v1/models", "/health", "/"):
            status, _, body = raw(s, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n")
            check(f"Host {host!r}, GET {path}: {want}", status == want, body[:200])
    status, _, body = raw(s, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n")
    check("two Host headers: 400", status == 400, body[:200])
    check("HTTP/1.0 without Host is no browser: 200", raw(s, "GET /v1/models HTTP/1.0\r\n")[0] == 200)
    status, _, body = raw(s, "GET http://127.0.0.1:PORT/v1/models HTTP/1.1\r\nHost: evil.example\r\n")
    check("a target with another name than Host does not help: 403", status == 403 and b"demo" not in body, body[:200])
    status, _, body = raw(s, "OPTIONS /v1/models HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://a.example\r\n"
                             "Access-Control-Request-Method: POST\r\n")
    check("a preflight for a name of someone else's: 403", status == 403 and b"host_not_allowed" in body, body)
    for line in ("GET http://evil.example/v1/models HTTP/1.1", "CONNECT evil.example:80 HTTP/1.1", "OPTIONS * HTTP/1.1"):
        status, _, body = raw(s, line + "\r\nHost: localhost\r\n")
        check(f"{line}: not served", status in (400, 404, 405) and b'"id":"demo"' not in body, (status, body[:200]))


def test_origins(s):
    post = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n"
    body = b'{"prompt": "Hi", "max_tokens": 1}'
    as_json = "Content-Type: application/json\r\n"
    for name, extra, want in [
            ("no page", "", 200),
            ("the own page", "Origin: http://127.0.0.1:PORT\r\nSec-Fetch-Site: same-origin\r\n" + as_json, 200),
            ("an allowed page", "Origin: https://app.example\r\nSec-Fetch-Site: cross-site\r\n" + as_json, 200),
            ("a page of another port", "Origin: http://127.0.0.1:1\r\n" + as_json, 403),
            ("a page of the other name", "Origin: http://localhost:PORT\r\n" + as_json, 403),
            ("a foreign page", "Origin: http://evil.example\r\n" + as_json, 403),
            ("a sandboxed page", "Origin: null\r\n" + as_json, 403),
            ("another site, without Origin", "Sec-Fetch-Site: cross-site\r\n" + as_json, 403),
            ("the own page, text/plain", "Origin: http://127.0.0.1:PORT\r\nContent-Type: text/plain\r\n", 415),
            ("the own page, no type", "Sec-Fetch-Site: same-origin\r\n", 415),
            ("an allowed page, a form", "Origin: https://app.example\r\nContent-Type: application/x-www-form-urlencoded\r\n", 415)]:
        status, headers, answer = raw(s, post + extra, body)
        check(f"{name}: {want}", status == want, answer[:200])
        named = headers.get("access-control-allow-origin")
        check(f"{name}: the answer names the page where it is an allowed one",
              named == ("https://app.example" if "app.example" in extra else None), headers)
    status, headers, _ = raw(s, "GET /v1/models/none HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\n")
    check("an allowed page can read why it failed", status == 404 and headers.get("access-control-allow-origin"), headers)
    equal("what depends on Origin says so", headers.get("vary"), "Origin")


def test_preflight(s):
    ask = "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost:PORT\r\nOrigin: {}\r\nAccess-Control-Request-Method: POST\r\n" \
          "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n"
    status, h, _ = raw(s, ask.format("https://app.example"))
    check("a preflight of an allowed page: yes, without a key",
          status == 200 and h["access-control-allow-origin"] == "https://app.example" and "DELETE" in h["access-control-allow-methods"]
          and "x-stainless-os" in h["access-control-allow-headers"], (status, h))
    for origin in ("http://evil.example", "null", "http://localhost:1"):
        status, h, _ = raw(s, ask.format(origin))
        check(f"a preflight of {origin}: no, since no header allows it", not any(k.startswith("access-control") for k in h), (status, h))


def test_headers(s):
    for path in ("/", "/page.js", "/v1/models", "/none"):
        _, h, _ = raw(s, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n")
        check(f"{path}: not in frames, no guessed type",
              h["x-content-type-options"] == "nosniff" and h["x-frame-options"] == "DENY" and
              "frame-ancestors 'none'" in h["content-security-policy"] and "default-src 'none'" in h["content-security-policy"], h)
    _, h, body = raw(s, "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
                        "Sec-Fetch-Dest: document\r\n")
    check("a link from another site leads to the page", b"<h1>hcache</h1>" in body, body[:200])
    _, h, body = raw(s, "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
                        "Sec-Fetch-Dest: iframe\r\n")
    check("a frame of another site does not", b"<h1>hcache</h1>" not in body, body[:200])


def test_wrong_keys(tmp):
    path = os.path.join(tmp, "keys")
    with open(path, "w") as f:
        f.write("right-key-of-some-length\n")
    os.chmod(path, 0o644)
    s = Server(MODEL, "--api-key-file", path, "--allow-origin", "https://app.example")
    try:
        check("a key file that others can read is told", any(path in x and "0644" in x and "chmod 600" in x for x in s.log), s.log)
        right = {"Authorization": "Bearer right-key-of-some-length"}
        test_preflight(s)
        status, h, _ = s.request("GET", "/v1/models", headers={"Origin": "https://app.example"})
        check("an allowed page without the key: 401, which it can read",
              status == 401 and h["Access-Control-Allow-Origin"] == "https://app.example", h)
        took, n_guesses = [], 0

        def guess(i):
            begin = time.monotonic()
            status = s.request("GET", "/v1/models", headers={"x-api-key": f"guess-{i}"})[0]
            took.append((time.monotonic() - begin, status))

        def counted(n):
            return until(lambda: f"wrong_keys_total {n}\n" in s.request("GET", "/metrics", headers=right)[2])

        # Eight wrong keys are sent at a time. If all are answered before the right key is sent, the
        # machine has paused this test. Then eight more, which have to wait for longer, are sent.
        is_counted, beside = True, None
        while beside is None and n_guesses < 80 and is_counted:
            threads = [threading.Thread(target=guess, args=(n_guesses + i,)) for i in range(8)]
            n_guesses += 8
            for t in threads:
                t.start()
            is_counted = counted(n_guesses)
            status = s.request("GET", "/v1/models", headers=right)[0]
            beside = status if len(took) < n_guesses else None
            for t in threads:
                t.join()
        check("eight wrong keys are counted", is_counted)
        check("the right key is answered while wrong ones wait", beside == 200, (beside, took))
        check("all get 401, the last ones late", all(status == 401 for _, status in took) and max(took)[0] >= 1.5, sorted(took))
        lines = [x for x in s.log if "wrong API key" in x]
        check("the log has the address and no key", any("127.0.0.1" in x for x in lines) and not any("guess" in x for x in lines), s.log)
        late = threading.Thread(target=guess, args=(n_guesses,))
        late.start()
        counted(n_guesses + 1)
        check("the server stops while an answer is held back", s.stop() == 0)
    finally:
        s.kill()
    os.chmod(path, 0o600)
    s = Server(MODEL, "--api-key-file", path)
    check("one that only its owner can read is not", not any("chmod" in x for x in s.log), s.log)
    s.stop()


def test_names(tmp):
    s = Server(MODEL, "--api-key", "k")
    key = "Authorization: Bearer k\r\n"
    status, _, body = raw(s, "GET /v1/models HTTP/1.1\r\nHost: nas.example\r\n" + key)
    check("with keys every host name is served", status == 200, body[:200])
    status, _, body = raw(s, "GET /v1/models HTTP/1.1\r\nHost: nas.example\r\n")
    check("but not without the key", status == 401, body[:200])
    check("the start says so", any("every host name, with a key" in x for x in s.log), s.log)
    s.stop()
    s = Server(MODEL, "--allow-host", "nas.example")
    for host in ("host.docker.internal:PORT", "host.containers.internal", "me.localhost:PORT", socket.gethostname(), "nas.example"):
        status, _, body = raw(s, f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n")
        check(f"{host}, without keys: served", status == 200, body[:200])
    told = next((x for x in s.log if x.startswith("names: ")), "")
    check("the start says which names are let in",
          all(n in told for n in ("host.docker.internal", socket.gethostname(), "nas.example", "demo by any name")), s.log)
    check("and that containers cannot reach this address", any("containers cannot reach 127.0.0.1" in x for x in s.log), s.log)
    answers = [s.post("/v1/completions", {"model": m, "prompt": "Hi", "max_tokens": 1}) for m in ("gpt-4o", "claude-x", None)]
    equal("on loopback every model's name is taken", [(a[0], a[2]["model"]) for a in answers], [(200, "demo")] * 3)
    s.stop()
    s = Server(MODEL, "--no-any-model", "--served-name", "one.gguf,two")
    listed = [m["id"] for m in s.request("GET", "/v1/models")[2]["data"]]
    equal("the list has each name", listed, ["one.gguf", "two"])
    for name, want in (("one", 200), ("two", 200), ("default", 200), ("two.gguf", 200), ("demo", 404), ("three", 404)):
        status, _, r = s.post("/v1/messages", {"model": name, "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]})
        check(f"the model {name}: {want}", status == want and (status == 200 or "'one.gguf', 'two'" in r["error"]["message"]), r)
        equal(f"GET /v1/models/{name}: {want}", s.request("GET", f"/v1/models/{name}")[0], want)
    s.stop()
    gguf = os.path.join(tmp, "demo-f32.gguf")
    hf_to_gguf.convert(MODEL, gguf, change=[("general.name", hf_to_gguf.STRING, "My Demo")])
    s = Server(gguf, "--host", "0.0.0.0", "--no-key")
    check("open to everybody: the log warns", any("anybody who can reach 0.0.0.0" in x for x in s.log), s.log)
    for name, want in (("demo-f32", 200), ("demo-f32.gguf", 200), ("My Demo", 200), ("default", 200), ("gpt-4o", 404)):
        equal(f"a GGUF file's name {name}: {want}", s.post("/v1/completions", {"model": name, "prompt": "x", "max_tokens": 1})[0], want)
    s.stop()
    s = Server(gguf, "--host", "0.0.0.0", "--no-key", "--any-model")
    equal("--any-model holds everywhere", s.post("/v1/completions", {"model": "gpt-4o", "prompt": "x", "max_tokens": 1})[0], 200)
    s.stop()
    why = refused_rule("--host", "0.0.0.0")
    check("an open address without a key is refused at the start", why is not None and "--no-key" in why and "status 2" in why, why)
    why = refused_rule("--host", "127.0.0.1,::1", "--host", "0.0.0.0")
    check("also beside loopback addresses", why is not None and "--host 0.0.0.0 can" in why and "status 2" in why, why)
    why = refused_rule("--host", "127.0.0.1,here", "--no-key")
    check("an address that is none is named", why is not None and "--host here: it must" in why, why)
    why = refused_rule("--no-key", "--api-key", "k")
    check("--no-key beside a key is refused", why is not None and "status 2" in why, why)


def refused_rule(*options):
    try:
        Server(MODEL, *options).kill()
        return None
    except RuntimeError as e:
        return str(e)


with tempfile.TemporaryDirectory(prefix="hcache-origin.") as tmp:
    s = Server(MODEL, "--allow-host", "chat.example", "--allow-origin", "https://app.example", "--no-any-model")
    try:
        test_hosts(s)
        test_origins(s)
        test_preflight(s)
        test_headers(s)
    finally:
        s.stop()
    test_names(tmp)
    test_wrong_keys(tmp)
    why = refused_rule("--allow-origin", "app.example")
    check("an origin without a scheme is refused at the start, status 2", why and "status 2" in why and re.search("SCHEME://", why), why)
end()
