"""Only one process writes to a store. A second process is refused with the name of the first, by
whatever path it opens the directory. The state that the first process has stored stays intact."""
import os
import subprocess

from disks import IS_ROOT, can
from serve_client import HC, SAVING, Server
from tap import PATIENCE, check, equal, run_each, skip

MODEL = "models/demo"
TEXT = "Tell me about the little bird who lived in the tall green tree. " * 20
WRITERS = [("serve", MODEL, "--port", "0", "--store", "{}"),
           ("run", MODEL, "--prompt", "Hi", "--max-tokens", "2", "--store", "{}"),
           ("store", "gc", "{}"), ("store", "rm", "{}", "--all")]


def hc(*words):
    return subprocess.run([HC, *words], capture_output=True, text=True, timeout=PATIENCE)


def names_of(tmp, store):
    """Returns (description, path) for each name of the store's directory."""
    link, bound = os.path.join(tmp, "link"), os.path.join(tmp, "bound")
    os.symlink(store, link)
    yield "its own name", store
    yield "a symbolic link", link
    os.mkdir(bound)
    if IS_ROOT and can(["mount", "--bind", store, bound]):
        try:
            yield "a bind mount", bound
        finally:
            subprocess.run(["umount", "-l", bound], check=False)
    else:
        skip("a bind mount", "cannot mount here")


def main(tmp):
    store = os.path.join(tmp, "s")
    server = Server(MODEL, *SAVING, "--no-reuse", "--store", store)
    server.complete(TEXT, max_tokens=4)
    server.post("/v1/cache/flush", {})
    for name, path in names_of(tmp, store):
        for words in WRITERS:
            p = hc(*(w.format(path) for w in words))
            check(f"{' '.join(words[:2])} by {name}: refused, and who has it is said",
                  p.returncode == 1 and "in use by another process" in p.stderr and str(server.p.pid) in p.stderr, p)
        p = hc("store", "verify", path)
        check(f"reading beside it by {name} finds no damage", p.returncode == 0 and "0 damaged" in p.stdout, p)
    r = server.complete(TEXT, max_tokens=4)["timings"]
    check("the first one goes on", r["restored_tokens"] > 0 and
          server.request("GET", "/health")[2] == {"status": "ok", "saves": True}, r)
    equal("and stops well", server.stop(), 0)
    p = hc("store", "verify", store)
    check("nothing is damaged", p.returncode == 0 and "0 damaged" in p.stdout, p)


run_each([main], "one")
