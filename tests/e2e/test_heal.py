"""One request repairs the damage in several chunks of a context: it computes the damaged chunks
again and saves them. `committed_tokens` does not count damaged chunks. A store that is removed
under a running server is noticed."""
import json
import os
import shutil
import subprocess

from serve_client import HC, SAVING, Server, until
from tap import PATIENCE, check, end, hc, ok, scratch

tmp = scratch("heal")
STORE = os.path.join(tmp, "s")
IDS = [3 + (i * i * 7) % 490 for i in range(520)]
SEGMENT = os.path.join(STORE, "seg-000000.hc")


def run():
    path = os.path.join(tmp, "ids")
    with open(path, "w") as f:
        f.write(" ".join(map(str, IDS)))
    return json.loads(ok("run", "synth:tiny-gqa", "--token-ids", path, "--max-tokens", "2", "--temperature", "0",
                         "--ignore-eos", "--json", "--store", STORE, "--save", "both", *SAVING))


def verify():
    return json.loads(hc("store", "verify", STORE, "--json")[1])["bad"]


def extents():
    """Returns the offset of each chunk's header, by the chunk's position."""
    data = open(SEGMENT, "rb").read()
    found = {}
    for at in range(0, len(data), 4096):
        if data[at:at + 8] == b"HCEXTENT":
            found[int.from_bytes(data[at + 68:at + 72], "little")] = at
    return found


def records(at):
    """Returns the offsets of the records of the extent at `at` (docs/STORE_FORMAT.md)."""
    with open(SEGMENT, "rb") as f:
        f.seek(at)
        header = f.read(4096)
    place, found = at + 4096, []
    for i in range(int.from_bytes(header[74:76], "little")):
        n = int.from_bytes(header[512 + 14 * i + 2:512 + 14 * i + 6], "little")
        found.append(place)
        place += (n + 4095) // 4096 * 4096
    return found


def flip(at):
    with open(SEGMENT, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x55]))


def test_heal():
    first = run()
    at = extents()
    check("eight chunks are stored", first["committed_tokens"] >= 512 and len(at) >= 8, (first, at))
    for chunk in (1, 3, 6):
        for record in records(at[chunk]):
            flip(record + 17)
    flip(at[4] + 300)  # flips a bit of a token id in a header
    check("four chunks are damaged", verify() >= 4, verify())
    second = run()
    check("the output is the same", second["token_ids"] == first["token_ids"] and
          second["logits_digest"] == first["logits_digest"], second)
    check("only what lies before the damage was restored", second["cached_tokens"] == 64, second["cached_tokens"])
    check("one request has healed all, the header too", verify() == 0, verify())
    check("and what it called committed is", second["committed_tokens"] >= 512, second)
    third = run()
    check("all is restored", third["cached_tokens"] >= 512 and third["logits_digest"] == first["logits_digest"], third)


def test_removed():
    server = Server("models/demo", *SAVING, "--store", STORE + "2")
    server.complete("Once upon a time there was a little bird. " * 8, max_tokens=4)
    server.post("/v1/cache/flush", {})
    check("it saves", server.request("GET", "/health")[2] == {"status": "ok", "saves": True})
    shutil.rmtree(STORE + "2")
    server.complete("A long time ago there lived an old king in a castle. " * 8, max_tokens=4)
    server.post("/v1/cache/flush", {})
    stats = server.request("GET", "/v1/cache/stats")[2]
    check("a removed store is noticed", stats["saves"] is False and "removed" in stats["not_saved_because"], stats)
    until(lambda: "was removed or replaced" in "".join(server.log))
    check("and logged", "was removed or replaced" in "".join(server.log), server.log)
    check("/health says so", server.request("GET", "/health")[2] == {"status": "ok", "saves": False})
    server.stop()


def test_beside():
    """Commands that only read the store work while a server runs.  Those that change it are
    refused, and the message names the process that uses it."""
    store = STORE + "3"
    server = Server("models/demo", *SAVING, "--store", store)
    server.complete("Once upon a time there was a little bird. " * 20, max_tokens=4)
    server.post("/v1/cache/flush", {})
    chunks = server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"]

    def command(*args):
        return subprocess.run([HC, "store", *args], capture_output=True, text=True, timeout=PATIENCE)
    seen = json.loads(command("stat", store, "--json").stdout)["chunks"]
    check("stat sees what is committed", seen == chunks > 0, (seen, chunks))
    check("so does ls", len(json.loads(command("ls", store, "--json").stdout)["chunks"]) == chunks)
    p = command("verify", store)
    check("verify finds it sound, and says beside whom", p.returncode == 0 and f"process {server.p.pid} " in p.stderr, p)
    for args in (["gc", store], ["rm", store, "--all"]):
        p = command(*args)
        check(f"{args[0]} is refused, and names the process and the way out", p.returncode == 1 and
              f"process {server.p.pid} ({HC} serve" in p.stderr and "/v1/cache" in p.stderr, p.stderr)
    check("the server saves on", server.request("GET", "/health")[2]["saves"] is True)
    check("and stops well", server.stop() == 0)


for test in (test_heal, test_removed, test_beside):
    try:
        test()
    except Exception as e:  # noqa: BLE001
        check(f"{test.__name__} ended with {e!r}", False)
end()
