"""DELETE and /v1/cache/clear on a disk that is full or not writable. The answer reports the
problem. The deleted state does not come back: not in an answer, and not after kill -9. Once the
disk can be written, no byte of it is left in a file.

Root may do everything, so it runs the servers as NOBODY. Arguments pick tests by name ("noted").
"""
import os
import shutil
import tempfile

from disks import AS_USER, NOBODY, can, fill, folder_of, mounted
from serve_client import HC, SAVING, Server, files_under, until
from tap import check, equal, run_each, skip

MODEL = "models/demo"
SECRET = "The little bird hid a golden acorn under the seventh stone of the old garden wall. "


class Place:
    """A store, and a separate directory of kept conversations."""

    def __init__(self, tmp, name):
        self.store = folder_of(tmp, name, NOBODY, 0o700)
        self.kept = folder_of(tmp, name + "-kept", NOBODY, 0o700)
        self.db = os.path.join(self.kept, "c.db")

    def serve(self, *options):
        return Server(MODEL, *SAVING, "--store", self.store, "--conversations", self.db, *options, prefix=AS_USER)

    def talk(self, server, headers=None):
        """Holds a conversation that is stored, and returns its name."""
        name = server.post("/v1/conversations", {}, headers)[2]["id"]
        for i in range(2):
            status, _, r = server.post("/v1/responses", {"input": SECRET + "Go on. " * i, "temperature": 0,
                                                         "max_output_tokens": 8, "conversation": name}, headers)
            if status != 200:
                raise RuntimeError(f"{status}: {r}")
            server.post("/v1/cache/flush", {}, headers)
        return name

    def remains(self):
        """Returns the files of the conversations that contain the text, and the segments with a
        byte that is not zero."""
        found = []
        for path in files_under(self.store) + files_under(self.kept):
            try:
                with open(path, "rb") as f:
                    data = f.read()
            except FileNotFoundError:  # a running server creates and removes files
                continue
            if SECRET[12:40].encode() in data:
                found.append(path + ": text")
            if os.path.basename(path).startswith("seg-") and data.count(0) != len(data):
                found.append(path + ": state")
        return found

    def deny(self, *, folder):
        """Makes the store unwritable. With `folder`, its directory does not even allow new files."""
        os.chmod(os.path.join(self.store, "index.db"), 0o400)
        os.chmod(self.store, 0o500 if folder else 0o700)

    def allow(self):
        os.chmod(self.store, 0o700)
        os.chmod(os.path.join(self.store, "index.db"), 0o600)

    def owed(self):
        return os.path.exists(os.path.join(self.store, "erase.owed"))


def restored(server):
    r = server.post("/v1/responses", {"input": SECRET, "temperature": 0, "max_output_tokens": 2, "store": False})[2]
    return r["usage"]["input_tokens_details"]["cached_tokens"]


def deletes_in_denied_store(tmp, name, *, folder):
    p = Place(tmp, "folder" if folder else "index")
    server = p.serve()
    conversation = p.talk(server)
    server.stop()
    check(f"{name}: the search can find text and state", len(p.remains()) >= 2, p.remains())
    p.deny(folder=folder)
    server = p.serve()
    status, _, r = server.request("DELETE", "/v1/conversations/" + conversation)
    check(f"{name}: DELETE says that the bytes of chunks wait", status == 200 and r["deleted"] and
          r["pending_chunks"] > 0 and r["erased_chunks"] == 0, (status, r))
    check(f"{name}: the text is gone at once", not [f for f in p.remains() if ": text" in f], p.remains())
    equal(f"{name}: the erasure is written down where that is possible", p.owed(), not folder)
    equal(f"{name}: the conversation is unknown", server.request("GET", "/v1/conversations/" + conversation)[0], 404)
    server.kill()
    server = p.serve()
    if not folder:
        equal(f"{name}: a restart that cannot write restores none of it", restored(server), 0)
    server.kill()
    p.allow()
    server = p.serve()
    check(f"{name}: the next server that can write erases it", until(lambda: p.remains() == []), p.remains())
    check(f"{name}: and nothing waits any more", until(
        lambda: server.request("GET", "/v1/cache/stats")[2]["conversations"]["chunks_to_erase"] == 0) and not p.owed())
    server.stop()


def test_noted(tmp):
    deletes_in_denied_store(tmp, "an index that may not be written", folder=False)


def test_forgotten(tmp):
    """The erasure cannot be noted in the store; the file of the conversations still has the names
    of the chunks."""
    deletes_in_denied_store(tmp, "a folder that may not be written", folder=True)


def test_unavailable(tmp):
    """The file of the conversations cannot be opened. So it is not known whether an id exists and
    who owns it."""
    name = "conversations that cannot be opened"
    p = Place(tmp, "closed")
    keys = os.path.join(tmp, "keys")
    with open(keys, "w") as f:
        f.write("one\ntwo\n")
    if AS_USER:
        os.chown(keys, NOBODY, NOBODY)
    os.chmod(keys, 0o400)
    one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
    server = p.serve("--api-key-file", keys)
    conversation = p.talk(server, one)
    server.stop()
    before = p.remains()
    os.chmod(p.db, 0)
    server = p.serve("--api-key-file", keys)
    for who, headers in (("its owner", one), ("another key", two)):
        for path in (conversation, "conv_" + "0" * 32):
            status, _, r = server.request("DELETE", "/v1/conversations/" + path, headers=headers)
            check(f"{name}: DELETE by {who} is refused, and says that nothing was changed", status == 503 and
                  r["error"]["code"] == "conversations_unavailable" and "nothing was changed" in r["error"]["message"],
                  (status, r))
    server.kill()
    check(f"{name}: nothing was", p.remains() == before and not p.owed(), (before, p.remains()))
    os.chmod(p.db, 0o600)
    server = p.serve("--api-key-file", keys)
    equal(f"{name}: a refused DELETE is not made up for", server.request("GET", "/v1/conversations/" + conversation,
                                                                         headers=one)[0], 200)
    equal(f"{name}: another key deletes nothing", server.request("DELETE", "/v1/conversations/" + conversation,
                                                                headers=two)[0], 404)
    status, _, r = server.request("DELETE", "/v1/conversations/" + conversation, headers=one)
    check(f"{name}: asked again by its owner it is done, and nothing is left", status == 200 and
          until(lambda: p.remains() == []), (status, r, p.remains()))
    server.kill()


def full(at):
    """Leaves no block for the store, which has lost its reserve, too."""
    name = "a disk without a block"
    p = Place(at, "s")
    kept = tempfile.mkdtemp(prefix="hcache-kept.")
    os.chmod(kept, 0o777)
    p.kept, p.db = kept, os.path.join(kept, "c.db")
    server = p.serve()
    conversation = p.talk(server)
    other = server.post("/v1/completions", {"prompt": "A different story, of a cat. " * 20, "max_tokens": 4})
    server.post("/v1/cache/flush", {})
    equal(f"{name}: a second context is stored", other[0], 200)
    server.kill()
    server = p.serve()
    os.unlink(os.path.join(p.store, "reserve"))
    fill(at)
    status, _, r = server.request("DELETE", "/v1/conversations/" + conversation)
    check(f"{name}: DELETE says that the bytes of chunks wait", status == 200 and r["deleted"] and
          r["pending_chunks"] > 0 and r["erased_chunks"] == 0, (status, r))
    equal(f"{name}: they are used no more", restored(server), 0)
    status, _, r = server.post("/v1/cache/clear", {})
    check(f"{name}: clearing is 507, and says when it is done", status == 507 and r["error"]["code"] == "disk_full" and
          "is erased as soon as the disk has room" in r["error"]["message"], (status, r))
    equal(f"{name}: no state is used", server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"], 0)
    check(f"{name}: all bytes are there", [f for f in p.remains() if ": state" in f], p.remains())
    os.unlink(os.path.join(at, "ballast"))
    check(f"{name}: with room the server erases them by itself", until(lambda: p.remains() == []), p.remains())
    check(f"{name}: and nothing waits any more", until(
        lambda: server.request("GET", "/v1/cache/stats")[2]["conversations"]["chunks_to_erase"] == 0))
    server.kill()
    server = p.serve()
    equal(f"{name}: nothing comes back", (p.remains(), restored(server)), ([], 0))
    server.kill()
    shutil.rmtree(kept, ignore_errors=True)


def test_full(tmp):
    mounted(tmp, "size=12m", full, "a disk without a block")


def test_nothing_owed():
    """If no state is stored, no erasure can be pending: both routes are refused."""
    server = Server("synth:tiny-gqa")
    for path, body in (("/v1/cache/clear", {}), ("/v1/cache/evict", {"prompt": [1, 2, 3]})):
        status, _, r = server.post(path, body)
        check(f"{path} without a store is refused", status == 400 and "no state is stored" in r["error"]["message"], (status, r))
    equal("and the server stops well", server.stop(), 0)


test_nothing_owed()
tests = [test_noted, test_forgotten, test_unavailable, test_full]
if not can([*AS_USER, HC, "--version"]):
    skip("denied stores", "the program cannot be run as another user here")
    tests = []
run_each(tests, "owed", 0o755)
