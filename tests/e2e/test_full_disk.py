"""A server on a disk that is full, or whose store fails once at the start: it starts, answers, says that nothing is
saved, and lets users free space: DELETE and `store gc` work.  `--store-required` insists on the store.

The disk is a small tmpfs; where none can be mounted the tests that need it are skipped.  Arguments pick tests by
name ("full")."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(__file__))
from serve_client import HC, SAVING, Server  # noqa: E402
from tap import PATIENCE, check, end, skip  # noqa: E402

MODEL = "models/demo"
TEXT = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 3


def can(cmd):
    try:
        return subprocess.run(cmd, capture_output=True, timeout=PATIENCE).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def mounted(tmp, options, body, name):
    at = os.path.join(tmp, "mnt")
    os.makedirs(at, exist_ok=True)
    if os.geteuid() != 0 or not can(["mount", "-t", "tmpfs", "-o", options, "none", at]):
        skip(name, "cannot mount a tmpfs here")
        return
    try:
        body(at)
    finally:
        subprocess.run(["umount", "-l", at], check=False)


def fill(at):
    """Takes every block that is left."""
    with open(os.path.join(at, "ballast"), "wb", buffering=0) as f:
        for n in (1 << 16, 4096):
            try:
                while f.write(b"x" * n) == n:
                    pass
            except OSError:
                pass


def respond(server, text, **fields):
    return server.post("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 8, **fields})


def says_it_does_not_save(server, name):
    stats = server.request("GET", "/v1/cache/stats")[2]
    check(f"{name}: the statistics say so, and why", stats["saves"] is False and stats["not_saved_because"], stats)
    health = server.request("GET", "/health")[2]
    check(f"{name}: /health says so", health == {"status": "ok", "saves": False}, health)
    check(f"{name}: /metrics says so", server.metric("hcache_store_saves") == 0)


def refuses(name, *options):
    p = subprocess.run([HC, "serve", MODEL, "--port", "0", "--store-required", *options], capture_output=True, text=True,
                       timeout=PATIENCE)
    check(f"{name}: --store-required insists", p.returncode == 1, (p.returncode, p.stderr[-400:]))


def new_on_full_disk(at):
    fill(at)
    store = os.path.join(at, "s")
    server = Server(MODEL, *SAVING, "--store", store)
    status, _, r = respond(server, TEXT)
    check("a new store on a full disk: the server answers", status == 200 and r["output"], r)
    says_it_does_not_save(server, "a new store on a full disk")
    check("a new store on a full disk: the log says so", "nothing is saved" in "".join(server.log), server.log)
    check("a new store on a full disk: it stops well", server.stop() == 0)
    refuses("a new store on a full disk", "--store", store)


def filled_later(at):
    store = os.path.join(at, "s")
    server = Server(MODEL, *SAVING, "--store", store)
    names = [server.post("/v1/conversations", {})[2]["id"] for _ in range(4)]
    for i, name in enumerate(names):
        respond(server, TEXT + "Go on. " * i, conversation=name)
    server.post("/v1/cache/flush", {})
    server.kill()
    fill(at)
    server = Server(MODEL, *SAVING, "--store", store)
    status, _, r = respond(server, TEXT, conversation=names[0])
    check("a full disk: the server starts and answers", status == 200 and r["output"], r)
    if r.get("store") is False:
        check("a full disk: an answer that could not be kept says so", r["not_kept"] and r["conversation"] is None, r)
    status, _, r = server.post("/v1/completions", {"prompt": TEXT * 4 + "Once more.", "max_tokens": 8})
    server.post("/v1/cache/flush", {})
    check("a full disk: completions work", status == 200, r)
    check("a full disk: the reason is told", "disk is full" in (r["hcache"]["save_stopped"] or "")
          if "hcache" in r else True, r)
    says_it_does_not_save(server, "a full disk")
    for name in names[:2]:
        status, _, r = server.request("DELETE", "/v1/conversations/" + name)
        check("a full disk: DELETE works", status == 200 and r["deleted"], (status, r))
        check("a full disk: and the conversation is gone", server.request("GET", "/v1/conversations/" + name)[0] == 404)
    stats = server.request("GET", "/v1/cache/stats")[2]
    check("a full disk: so is its state", stats["conversations"]["chunks_to_erase"] == 0, stats)
    check("a full disk: the server stops well", server.stop() == 0)
    fill(at)
    p = subprocess.run([HC, "store", "gc", store, "--json"], capture_output=True, text=True, timeout=PATIENCE)
    check("a full disk: store gc works", p.returncode == 0 and json.loads(p.stdout)["freed_bytes"] >= 0, p)
    os.unlink(os.path.join(at, "ballast"))
    server = Server(MODEL, *SAVING, "--store", store)
    status, _, r = respond(server, TEXT, conversation=names[3])
    check("with room again it keeps and saves", status == 200 and r["store"] is True and
          server.request("GET", "/health")[2] == {"status": "ok", "saves": True}, r)
    server.stop()


def test_full(tmp):
    mounted(tmp, "size=8m", new_on_full_disk, "a new store on a full disk")
    mounted(tmp, "size=12m", filled_later, "a store whose disk has filled up")


def test_fault(tmp):
    """A fault of the store at the start that a restart may end."""
    store = os.path.join(tmp, "s")
    server = Server(MODEL, *SAVING, "--store", store)
    respond(server, TEXT)
    server.post("/v1/cache/flush", {})
    server.stop()
    with open(os.path.join(store, "superblock"), "r+b") as f:  # both copies: beyond repair without the index
        f.write(bytes(8192))
    os.rename(os.path.join(store, "index.db"), os.path.join(tmp, "index.db"))
    for name in os.listdir(store):
        if name.startswith("seg-"):
            os.rename(os.path.join(store, name), os.path.join(tmp, name))
            open(os.path.join(store, name), "wb").close()
    server = Server(MODEL, *SAVING, "--store", store)
    check("a damaged store: the server answers", respond(server, TEXT)[0] == 200)
    says_it_does_not_save(server, "a damaged store")
    server.stop()
    refuses("a damaged store", "--store", store)


tests = [test_full, test_fault]
for test in [t for t in tests if not sys.argv[1:] or t.__name__[5:] in sys.argv[1:]]:
    folder = tempfile.mkdtemp(prefix="hcache-full.")
    try:
        test(folder)
    except Exception as e:  # noqa: BLE001
        check(f"{test.__name__} ended with {e!r}", False)
    shutil.rmtree(folder, ignore_errors=True)
end()
