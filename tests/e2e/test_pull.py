"""hcache pull against a local hub that redirects, breaks off, lies about a digest, is slow; hcache models."""
import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../tools/golden"))
import hf_to_gguf  # noqa: E402
from serve_client import HC, Server  # noqa: E402
from tap import check, end, equal  # noqa: E402

tmp = tempfile.TemporaryDirectory()
hf_to_gguf.convert("models/demo", os.path.join(tmp.name, "demo.gguf"))
with open(os.path.join(tmp.name, "demo.gguf"), "rb") as f:
    MODEL = f.read()
FILES = {"demo-Q8_0.gguf": MODEL[:4000], "demo-Q4_K_M.gguf": MODEL, "README.md": b"x", "two-F16-00001-of-00002.gguf": b"a" * 10,
         "two-F16-00002-of-00002.gguf": b"b" * 20}
TOKEN = "secret-token"


class Hub(http.server.BaseHTTPRequestHandler):
    """mode: what it does to files. seen: (path, range, key) of each request to the hub, and to the store of files."""
    mode, seen, breaks = "", [], 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        Hub.seen.append((self.server.name, self.path, self.headers["Range"], self.headers["Authorization"]))
        if self.server.name == "hub" and self.path.startswith("/api/models/own/model/tree/"):
            tree = [{"type": "file", "path": name, "size": 100, "lfs": {"oid": "0" * 64 if Hub.mode == "lie" else
                                                                        hashlib.sha256(data).hexdigest(), "size": len(data)}}
                    for name, data in FILES.items()]
            tree += [{"type": "file", "path": p, "size": 1} for p in ("../evil.gguf", "/etc/evil.gguf", ".x-Q4_K_M.gguf")]
            return self.answer(200, json.dumps(tree).encode())
        if self.server.name == "hub" and self.path.startswith("/own/model/resolve/main/"):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{store.server_port}/files/{self.path.split('/')[-1]}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        data = FILES.get(self.path.split("/")[-1]) if self.server.name == "store" else None
        if data is None:
            return self.answer(404, b'{"error": "Repository not found"}')
        begin = int(self.headers["Range"].split("=")[1].split("-")[0]) if self.headers["Range"] and Hub.mode != "whole" else 0
        part = data[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if Hub.mode == "break" and Hub.breaks > 0:
            Hub.breaks -= 1
            part = part[:len(data) // 4]
        for at in range(0, len(part), 1 << 20):
            self.wfile.write(part[at:at + (1 << 20)])
            time.sleep(0.02 if Hub.mode == "slow" else 0)
        self.close_connection = True

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def listen(name):
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    s.name, s.daemon_threads = name, True
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s


hub, store = listen("hub"), listen("store")


def pull(name, folder, mode="", breaks=0):
    Hub.mode, Hub.seen, Hub.breaks = mode, [], breaks
    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_TOKEN": TOKEN}
    p = subprocess.run([HC, "pull", name, "--models", os.path.join(tmp.name, folder)], env=env, capture_output=True, text=True)
    return p.returncode, p.stdout + p.stderr


def path(folder, name="demo-Q4_K_M.gguf"):
    return os.path.join(tmp.name, folder, "own/model", name)


def content(*where):
    with open(path(*where), "rb") as f:
        return f.read()


code, said = pull("own/model", "plain")
check("a model of the usual type comes, whole, and only that", code == 0 and content("plain") == MODEL
      and os.listdir(os.path.dirname(path("plain"))) == ["demo-Q4_K_M.gguf"] and "digest is right" in said, (code, said))
equal("the token goes to the hub, and not to where it redirects", {(s[0], s[3]) for s in Hub.seen},
      {("hub", f"Bearer {TOKEN}"), ("store", None)})
check("nothing is fetched twice", pull("own/model:Q4_K_M", "plain")[0] == 0 and [s for s in Hub.seen if s[0] == "store"] == [])
code, said = pull("own/model", "broken", "break", 3)
check("a connection that breaks goes on where it broke", code == 0 and content("broken") == MODEL
      and [s[2] for s in Hub.seen if s[0] == "store"] == [None] + [f"bytes={len(MODEL) // 4 * i}-" for i in (1, 2, 3)], (said, Hub.seen))
os.makedirs(os.path.dirname(path("half")))
with open(path("half") + ".part", "wb") as f:
    f.write(MODEL[:12345])
code, said = pull("own/model", "half")
check("so does another process", code == 0 and content("half") == MODEL and Hub.seen[-1][2] == "bytes=12345-", (said, Hub.seen))
os.makedirs(os.path.dirname(path("odd")))
with open(path("odd") + ".part", "wb") as f:
    f.write(b"x" * 12345)
code, said = pull("own/model", "odd", "whole")
check("a server that sends the whole file again begins it anew", code == 0 and content("odd") == MODEL, said)
code, said = pull("own/model", "lie", "lie")
check("a wrong digest: no file, and no part of it", code == 1 and "SHA-256" in said
      and os.listdir(os.path.dirname(path("lie"))) == [], (code, said))
code, said = pull("own/model", "slow", "slow")
check("a slow server is waited for", code == 0 and content("slow") == MODEL, said)
code, said = pull("own/model:F16", "split")
check("a split model comes with all its parts", code == 0 and sorted(os.listdir(os.path.dirname(path("split"))))
      == ["two-F16-00001-of-00002.gguf", "two-F16-00002-of-00002.gguf"], said)
for name, why in (("own/model:Q5_K_M", "Q5_K_M"), ("own/none", "status 404"), ("../x", "no name of a model"), ("own", "no name of a model")):
    code, said = pull(name, "bad")
    check(f"{name}: a clear fault", code == 1 and why in said, (code, said))
out = subprocess.run([HC, "models", "--models", os.path.join(tmp.name, "plain")], capture_output=True, text=True).stdout
check("models lists it", "own/model" in out and path("plain") in out, out)
server = Server("own/model:Q4_K_M", env={"HCACHE_MODELS": os.path.join(tmp.name, "plain")})
equal("serve finds it by its name", server.complete("Once", max_tokens=2)["usage"]["completion_tokens"], 2)
server.stop()
p = subprocess.run([HC, "run", "own/none:Q8_0", "--prompt", "a"], env={**os.environ, "HCACHE_MODELS": tmp.name}, capture_output=True, text=True)
check("one that is not there: what to do", p.returncode != 0 and "hcache pull own/none:Q8_0" in p.stderr, p.stderr)
end()
