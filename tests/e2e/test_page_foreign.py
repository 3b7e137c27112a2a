"""Pages of other origins in a real browser. Their requests change nothing, and they cannot read any
answer.

A second web server on another port serves the foreign page. The name evil.example resolves to
127.0.0.1, as if its owner had rebound it. Without a browser this test is skipped (browser.py)."""
import http.server
import os
import threading
import time

from browser import browser  # first: it restarts the test in .venv's Python
from serve_client import Server
from tap import PATIENCE, check, end, scratch

MODEL = "models/demo"
SECRET = "the-cellar-key-lies-under-the-stone"
tmp = scratch("foreign")


class Page(http.server.BaseHTTPRequestHandler):
    """An empty page, at any path."""

    def do_GET(self):
        body = b"<!doctype html><title>foreign</title><body></body>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# Each script passes its result to its last argument: "status:text" if the page could read the
# answer, "opaque", or "refused".
FETCH = """
const [url, options, done] = arguments;
fetch(url, options).then(async r => done(r.type == "opaque" ? "opaque" : r.status + ":" + await r.text()), e => done("refused"));
"""
FORM = """
const [url, body, done] = arguments;
const frame = document.createElement("iframe"), form = document.createElement("form"), field = document.createElement("input");
frame.name = "sink"; form.target = "sink"; form.method = "POST"; form.enctype = "text/plain"; form.action = url;
field.name = body; field.value = "";
form.append(field); document.body.append(frame, form);
frame.onload = () => done("sent"); setTimeout(() => form.submit(), 0);
"""
FRAME = """
const [url, done] = arguments;
const frame = document.createElement("iframe");
frame.src = url; frame.onload = () => done(); document.body.append(frame);
"""


def fetch(b, url, **options):
    return b.execute_async_script(FETCH, url, options)


def state(s):
    """Returns the data that a foreign page may neither read nor change: kept conversations and
    saved state."""
    return (len(s.request("GET", "/v1/conversations")[2]["data"]),
            s.post("/v1/cache/lookup", {"messages": [{"role": "user", "content": SECRET * 12}]})[2]["stored_tokens"])


def refusals(s):
    for line in s.request("GET", "/metrics")[2].split("\n"):
        if line.startswith("hcache_http_responses_total") and "4xx" in line:
            return float(line.split()[-1])
    raise KeyError("4xx")


def test_foreign(b, s, url):
    before, n = state(s), refusals(s)
    check("there is something to lose", before[0] == 1 and before[1] >= 64, before)
    tries = {
        "GET": fetch(b, url + "/v1/conversations"),
        "GET, no-cors": fetch(b, url + "/v1/conversations", mode="no-cors"),
        "text/plain": fetch(b, url + "/v1/cache/clear", method="POST", body="{}", mode="no-cors"),
        "text/plain, cors": fetch(b, url + "/v1/cache/clear", method="POST", body="{}"),
        "chat": fetch(b, url + "/v1/chat/completions", method="POST", mode="no-cors",
                      body='{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'),
        "JSON": fetch(b, url + "/v1/cache/clear", method="POST", body="{}", headers={"Content-Type": "application/json"}),
        "DELETE": fetch(b, url + "/v1/conversations/" + s.request("GET", "/v1/conversations")[2]["data"][0]["id"], method="DELETE"),
        "form": b.execute_async_script(FORM, url + "/v1/cache/clear", "{}"),
    }
    check("a foreign page reads nothing", not any(SECRET in str(x) or str(x).startswith("200") for x in tries.values()), tries)
    check("it changes nothing", state(s) == before, (state(s), before))
    check("the server has refused its requests; two preflights gave no permission", refusals(s) >= n + len(tries) - 2, (refusals(s) - n, tries))
    b.execute_async_script(FRAME, url + "/")
    b.switch_to.frame(b.find_elements("tag name", "iframe")[-1])
    check("it cannot show the page in a frame", 'id="compose"' not in b.page_source, b.page_source[:500])
    b.switch_to.default_content()


def names_model(b):
    end = time.time() + PATIENCE
    while time.time() < end:
        shown = b.execute_script("const m = document.getElementById('model'); return m ? m.textContent : null")
        if shown:
            return "demo" in shown
        if shown is None:
            return False
        time.sleep(0.05)
    return False


def test_own(b, s):
    for host in ("127.0.0.1", "localhost"):
        b.get(f"http://{host}:{s.port}/")
        check(f"the own page works at {host}", names_model(b), b.page_source[:300])
        check(f"it reads conversations at {host}", SECRET[:20] in fetch(b, "/v1/conversations"), fetch(b, "/v1/conversations"))


def test_rebound(b, s):
    b.get(f"http://evil.example:{s.port}/")
    check("a rebound name shows no page", not names_model(b) and "host_not_allowed" in b.page_source, b.page_source[:500])
    read = fetch(b, "/v1/conversations")
    check("and reads nothing, although it is its own origin", read.startswith("403") and SECRET[:20] not in read, read)


def test_allowed(b, foreign, url):
    s = Server(MODEL, "--allow-origin", foreign, "--allow-host", "evil.example")
    try:
        b.get(foreign)
        at = f"http://127.0.0.1:{s.port}"
        got = fetch(b, at + "/v1/completions", method="POST", body='{"prompt": "Hi", "max_tokens": 1}',
                    headers={"Content-Type": "application/json", "Authorization": "Bearer any", "x-stainless-os": "web"})
        check("--allow-origin: the page may ask and read, headers of clients and all", got.startswith("200") and "choices" in got, got)
        b.get(f"http://evil.example:{s.port}/")
        check("--allow-host: the page works under that name", names_model(b), b.page_source[:300])
    finally:
        s.stop()


other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=other.serve_forever, daemon=True).start()
foreign = f"http://127.0.0.1:{other.server_address[1]}"
s = Server(MODEL, "--store", os.path.join(tmp, "store"), "--plan", "kv")
b = browser("--host-resolver-rules=MAP evil.example 127.0.0.1")
try:
    title = s.post("/v1/conversations", {"title": SECRET})
    answer = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET * 12}], "max_tokens": 1})
    s.post("/v1/cache/flush", {})
    url = f"http://127.0.0.1:{s.port}"
    b.get(foreign)
    test_foreign(b, s, url)
    test_rebound(b, s)
    test_own(b, s)
    test_allowed(b, foreign, url)
except Exception as e:  # noqa: BLE001
    check("the whole story", False, f"{type(e).__name__}: {e}")
finally:
    b.quit()
    s.stop()
    other.shutdown()
end()
