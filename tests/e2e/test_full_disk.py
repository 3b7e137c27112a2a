"""A server on a full disk, on a disk without permissions, or with a store that fails once at the
start. The server starts, answers, reports that nothing is saved, and lets users free space by
DELETE and `store gc`. With `--store-required` it does not start.

The disk is a small tmpfs. If none can be mounted, the tests that need it are skipped. Root may do
everything, so it runs these servers as NOBODY. Arguments pick tests by name ("full")."""
import json
import os
import subprocess

from disks import AS_USER, IS_ROOT, NOBODY, can, fill, folder_of, mounted
from serve_client import HC, SAVING, Server
from tap import PATIENCE, check, run_each, skip

MODEL = "models/demo"
TEXT = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 3
STRANGER = 65533


def respond(server, text, **fields):
    return server.post("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 8, **fields})


def says_it_does_not_save(server, name):
    stats = server.request("GET", "/v1/cache/stats")[2]
    check(f"{name}: the statistics say so, and why", stats["saves"] is False and stats["not_saved_because"], stats)
    health = server.request("GET", "/health")[2]
    check(f"{name}: /health says so", health == {"status": "ok", "saves": False}, health)
    check(f"{name}: /metrics says so", server.metric("hcache_store_saves") == 0)


def refuses(name, *options, prefix=()):
    p = subprocess.run([*prefix, HC, "serve", MODEL, "--port", "0", "--store-required", *options], capture_output=True, text=True,
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
    told = []
    for n in range(100):  # an answer may end before the writer meets the full disk
        told.append(server.complete(f"{n}. " + TEXT, max_tokens=64)["timings"]["save_stopped"])
        if told[-1] is not None:
            break
    check("a full disk: an answer tells the reason", "disk is full" in (told[-1] or ""), told)
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
    """A fault of the store at the start, which a restart may end."""
    store = os.path.join(tmp, "s")
    server = Server(MODEL, *SAVING, "--store", store)
    respond(server, TEXT)
    server.post("/v1/cache/flush", {})
    server.stop()
    # damages both copies of the superblock, so it cannot be repaired without the index
    with open(os.path.join(store, "superblock"), "r+b") as f:
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


def without_permission_to_make(tmp):
    name = "a store that may not be made"
    folder = folder_of(tmp, "locked", NOBODY, 0o500)
    store = os.path.join(folder, "s")
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    status, _, r = respond(server, TEXT)
    check(f"{name}: the server answers", status == 200 and r["output"], r)
    says_it_does_not_save(server, name)
    check(f"{name}: conversations are kept in memory, and the log says so",
          server.post("/v1/conversations", {})[0] == 200 and "conversations are lost" in "".join(server.log), server.log)
    check(f"{name}: it stops well", server.stop() == 0)
    refuses(name, "--store", store, prefix=AS_USER)


def without_permission_to_write(tmp):
    """Nothing can be created in the store's directory. Returns the directory, after a server with
    write permission has used it."""
    name = "a store that may not be written"
    store = folder_of(tmp, "s", NOBODY, 0o700)
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    conversation = server.post("/v1/conversations", {})[2]["id"]
    respond(server, TEXT, conversation=conversation)
    server.complete(TEXT * 4, max_tokens=8)
    server.post("/v1/cache/flush", {})
    server.stop()
    os.chmod(store, 0o500)
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    r = server.complete(TEXT * 4, max_tokens=8)
    check(f"{name}: what is saved is used", r["timings"]["restored_tokens"] > 0, r)
    says_it_does_not_save(server, name)
    status, _, r = server.request("DELETE", "/v1/conversations/" + conversation)
    check(f"{name}: a conversation that cannot be read is not called deleted, nor unknown", status == 503 and
          r["error"]["code"] == "conversations_unavailable", (status, r))
    status, _, r = server.post("/v1/cache/clear", {})
    check(f"{name}: clearing says that the state is back after a restart", status == 503 and
          r["error"]["code"] == "not_erased" and "After a restart" in r["error"]["message"], (status, r))
    r = server.complete(TEXT * 4, max_tokens=8)
    check(f"{name}: but it is used no more", r["timings"]["restored_tokens"] == 0 and r["timings"]["device_tokens"] == 0, r)
    check(f"{name}: it stops well", server.stop() == 0)
    refuses(name, "--store", store, prefix=AS_USER)
    os.chmod(store, 0o700)
    erased_by_the_next(name, store)
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    check(f"{name}: with permission it saves, and what was kept is there",
          server.request("GET", "/health")[2] == {"status": "ok", "saves": True} and
          server.request("GET", "/v1/conversations/" + conversation)[0] == 200)
    server.stop()
    return store


def erased_by_the_next(name, store):
    """The index cannot be written, but its directory can. Cleared chunks are noted there, and are
    erased when the index can be written again."""
    index = os.path.join(store, "index.db")
    name += ", but for its folder"
    os.chmod(index, 0o400)
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    says_it_does_not_save(server, name)
    r = server.complete(TEXT * 4, max_tokens=8)
    check(f"{name}: what is saved is used", r["timings"]["restored_tokens"] > 0, r)
    status, _, r = server.post("/v1/cache/clear", {})
    check(f"{name}: clearing is accepted, and says what it waits for", status == 202 and r["erased_chunks"] == 0 and
          r["pending_chunks"] > 0 and r["pending_because"], (status, r))
    server.kill()
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    r = server.complete(TEXT * 4, max_tokens=8)
    check(f"{name}: a restart that cannot write does not use it", r["timings"]["restored_tokens"] == 0, r)
    server.stop()
    os.chmod(index, 0o600)
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    stats = server.request("GET", "/v1/cache/stats")[2]
    check(f"{name}: the next that can write erases it", stats["tiers"][0]["chunks"] == 0 and
          not os.path.exists(os.path.join(store, "erase.owed")), stats)
    server.stop()


def without_permission_for_conversations(tmp, store):
    name = "conversations that may not be written"
    chosen = ["--store", store, "--conversations", os.path.join(tmp, "locked", "c.db")]
    server = Server(MODEL, *SAVING, *chosen, prefix=AS_USER)
    check(f"{name}: they are kept in memory, and the log says so",
          server.post("/v1/conversations", {})[0] == 200 and "conversations are lost" in "".join(server.log), server.log)
    check(f"{name}: state is saved", server.request("GET", "/health")[2] == {"status": "ok", "saves": True})
    server.stop()
    refuses(name, *chosen, prefix=AS_USER)


def in_folder_of_a_stranger(store):
    """The directory belongs to another user, who could replace any file in it and read the files
    that others create there. So the store is refused."""
    name = "a folder of another user"
    for path in [store] + [os.path.join(store, f) for f in os.listdir(store)]:
        os.chown(path, STRANGER, STRANGER)
        os.chmod(path, 0o777)

    def content():
        return {f: (os.stat(os.path.join(store, f)).st_size, os.stat(os.path.join(store, f)).st_mtime_ns)
                for f in os.listdir(store)}
    before = content()
    server = Server(MODEL, *SAVING, "--store", store, prefix=AS_USER)
    r = server.complete(TEXT * 4, max_tokens=8)
    check(f"{name}: nothing in it is restored", r["timings"]["restored_tokens"] == 0, r)
    says_it_does_not_save(server, name)
    check(f"{name}: conversations are kept in memory", server.post("/v1/conversations", {})[0] == 200)
    respond(server, TEXT)
    server.stop()
    check(f"{name}: nothing in it is changed", content() == before, (before, content()))
    refuses(name, "--store", store, prefix=AS_USER)


def test_denied(tmp):
    if not can([*AS_USER, HC, "--version"]):
        skip("denied stores", "the program cannot be run as another user here")
        return
    os.chmod(tmp, 0o755)
    without_permission_to_make(tmp)
    store = without_permission_to_write(tmp)
    without_permission_for_conversations(tmp, store)
    if IS_ROOT:
        in_folder_of_a_stranger(store)
    else:
        skip("a folder of another user", "only root can make one")


run_each([test_full, test_fault, test_denied], "full")
