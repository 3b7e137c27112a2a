"""A server whose file system becomes read-only while it runs, and a server whose system clock is
set.

Read-only: an ext4 in a file is mounted, and a server saves to it. Then the file system is aborted,
as after an error of the device, and every write fails. (Otherwise a file system with files open for
writing cannot become read-only.) Answers stay the same. One warning and the metrics say that
nothing is saved. Such a file system becomes writable only by unmounting it, so the server has to be
restarted. It then finds the committed state, and saves again. Skipped without root, loop devices or
mkfs.ext4.

Clock: a library that is built here and loaded before the C library shifts the system's clock by the
value in a file. Setting the clock by years does not affect conversations with a time to live, pins
and recorded times. A server that is started with its clock behind keeps everything."""
import json
import os
import shutil
import subprocess

from disks import can
from serve_client import HC, MODEL, SAVING, Server, until
from tap import PATIENCE, check, end, equal, scratch, skip

tmp = scratch("store-server")
SYNTH = "synth:tiny-gqa"


def prompt(n, seed):
    return [3 + (i * i * 7 + seed * 31) % 490 for i in range(n)]


def answer(server, ids):
    """Returns (log probabilities of the 4 generated tokens, cached tokens)."""
    r = server.complete(ids, max_tokens=4, logprobs=1, ignore_eos=True)
    return r["choices"][0]["logprobs"]["token_logprobs"], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def ended(server):
    """Returns the number of sequences that were not saved because of the store."""
    return server.metric('hcache_saves_ended_total{reason="store_fault"}')


# --- read-only -----------------------------------------------------------------------------------

A, B, C = prompt(300, 1), prompt(300, 2), prompt(300, 3)


def serve(store):
    return Server(SYNTH, "--store", store, "--no-reuse", *SAVING)


def read_only(image, at):
    reference = Server(SYNTH)
    want = [answer(reference, p)[0] for p in (A, B, C)]
    reference.kill()
    server = serve(os.path.join(at, "s"))
    equal("before: the answer", answer(server, A)[0], want[0])
    status = server.post("/v1/cache/flush", {})[0]
    equal("before: flushed", status, 200)
    equal("the file system is aborted", can(["mount", "-o", "remount,abort", at]), True)
    equal("read-only: an answer to what is new", answer(server, B)[0], want[1])
    check("read-only: a metric counts sequences that are not saved", until(lambda: ended(server) >= 1), server.log)
    check("read-only: a warning names the store and the reason",
          until(lambda: any("ead-only" in line and at in line for line in server.log)), server.log)
    got, cached = answer(server, A)
    equal("read-only: what is stored is read", (got, cached >= 256), (want[0], True))
    equal("read-only: another answer", answer(server, C)[0], want[2])
    n = sum("ead-only" in line for line in server.log)
    check("read-only: it is not said for each request", n <= 2, server.log)
    check("read-only: ... and it says that a restart is needed", any("until a restart" in line for line in server.log),
          server.log)
    equal("read-only: /v1/cache/stats, too", server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["saves"], False)
    equal("read-only: the process lives", server.p.poll(), None)
    equal("read-only: it stops in order", server.stop(), 0)

    check("unmounted", can(["umount", at]), "umount")
    subprocess.run(["e2fsck", "-p", image], capture_output=True, timeout=PATIENCE)
    check("mounted again", can(["mount", "-o", "loop", image, at]), "mount")
    v = subprocess.run([HC, "store", "verify", os.path.join(at, "s")], capture_output=True, text=True, timeout=PATIENCE)
    equal("writable again: verify", v.returncode, 0)
    server = serve(os.path.join(at, "s"))
    got, cached = answer(server, A)
    equal("writable again: what was committed is found", (got, cached >= 256), (want[0], True))
    answer(server, B)
    server.post("/v1/cache/flush", {})
    got, cached = answer(server, B)
    equal("writable again: it saves", (got, cached >= 256), (want[1], True))
    server.kill()


# --- the clock -----------------------------------------------------------------------------------

YEAR = 31557600
SHIFT = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t)
{
    char text[32] = "";
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (id != CLOCK_REALTIME)
        return rc;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("CLOCK_SHIFT"), O_RDONLY);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0)
        t->tv_sec += atol(text);
    close(fd);
    return rc;
}
time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return out != NULL ? (*out = t.tv_sec) : t.tv_sec;
}
"""


class ShiftedServer(Server):
    """A server whose system clock is ahead by .shift_s seconds. The test may change .shift_s at any
    time.
    """

    def __init__(self, store, shift_s, *options):
        self.at = os.path.join(tmp, "shift")
        self.set_clock(shift_s)
        super().__init__(MODEL, "--store", store, "--no-reuse", *SAVING, *options,
                         env={"LD_PRELOAD": os.path.join(tmp, "shift.so"), "CLOCK_SHIFT": self.at})

    def set_clock(self, shift_s):
        with open(self.at + ".new", "w") as f:
            f.write(str(shift_s))
        os.rename(self.at + ".new", self.at)

    def says_clock_was_set(self, n):
        return until(lambda: sum("clock was set" in line for line in self.log) >= n)

    def kept(self, name):
        return self.request("GET", f"/v1/conversations/{name}")[0] == 200


def clock_is_set():
    store = os.path.join(tmp, "clock-store")
    server = ShiftedServer(store, 0, "--conversation-ttl", "3600")
    status, _, conversation = server.post("/v1/conversations", {})
    equal("clock: a conversation is made", status, 200)
    name = conversation["id"]
    text = "Once upon a time there was a little girl who had a dog. " * 12
    status, _, pin = server.post("/v1/cache/pin", {"prompt": text, "ttl": 3600})
    equal("clock: a pin is set", (status, pin.get("pinned_tokens", 0) > 0), (200, True))
    for n, (words, shift_s) in enumerate((("back by a year", -YEAR), ("forward by ten", 10 * YEAR)), 1):
        server.set_clock(shift_s)
        check(f"clock {words}: the log says so", server.says_clock_was_set(n), server.log)
        check(f"clock {words}: the conversation is kept", server.kept(name), server.log)
        stats = server.request("GET", "/v1/cache/stats")[2]
        check(f"clock {words}: pins hold", stats["tiers"][0]["pins"] > 0, stats)
        equal(f"clock {words}: it answers", len(server.complete(text[:80], max_tokens=2)["choices"]), 1)
        date = server.post("/v1/conversations", {})[2]["created_at"]
        check(f"clock {words}: dates go on", 0 <= date - conversation["created_at"] < 86400, date)
    server.kill()
    server = ShiftedServer(store, -YEAR, "--conversation-ttl", "3600")
    check("started a year behind: the conversation is kept", server.kept(name), server.log)
    server.kill()


def crowd(server, seed):
    """Saves contexts until the store evicts. Saving may skip contexts when it falls behind, so
    their number is not known in advance."""
    def evicts():
        nonlocal seed
        answer(server, prompt(300, seed))
        seed += 1
        return server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["evicted"] >= 20
    check("the store evicts", until(evicts))


# --- guarantees ----------------------------------------------------------------------------------


def guarantees():
    """One context is guaranteed, put under pressure, and the server is killed; a second guarantee
    is refused with the numbers."""
    store = os.path.join(tmp, "guaranteed")
    options = ("--store-cap", "4M", "--guarantee-quota", "600K")
    server = Server(SYNTH, "--store", store, "--no-reuse", *SAVING, *options)
    status, _, r = server.post("/v1/cache/pin", {"prompt": A, "ttl": 3600, "guarantee": True})
    equal("a guarantee of what is not stored is refused", (status, r["error"]["code"]), (409, "not_guaranteed"))
    want, _ = answer(server, A)
    status, _, r = server.post("/v1/cache/pin", {"prompt": A, "ttl": 3600, "guarantee": True})
    equal("a stored context is guaranteed", (status, r.get("guaranteed"), r.get("pinned_tokens")), (200, True, 256))
    sums = r["guarantee"]
    each = sums["added_bytes"]
    tier = server.request("GET", "/v1/cache/stats")[2]["tiers"][0]
    check("the cap is on all files, and leaves most of itself for state",
          3 << 20 < tier["cap_bytes"] < tier["files_cap_bytes"] == 4 << 20, tier)
    check("the answer has the sums", 0 < each == sums["salt_bytes"] == sums["all_bytes"]
          and sums["salt_limit_bytes"] == 600 << 10 and sums["limit_bytes"] == tier["cap_bytes"] // 4 * 3, r)
    for seed in range(10, 13):
        server.post("/v1/cache/prefetch", {"prompt": prompt(300, seed)})
    refused = []
    for seed in range(10, 13):
        status, _, r = server.post("/v1/cache/pin", {"prompt": prompt(300, seed), "ttl": 3600, "guarantee": True})
        refused += [r["error"]["message"]] if status == 409 else []
    check("what exceeds the bound is refused with it", len(refused) == 2 and str(600 << 10) in refused[0], refused)
    crowd(server, 100)
    tier = server.request("GET", "/v1/cache/stats")[2]["tiers"][0]
    check("stats count guarantees", (tier["guarantees"], tier["guaranteed_bytes"]) == (2, 2 * each), tier)
    equal("metrics have the bytes", server.metric("hcache_guaranteed_bytes"), 2 * each)
    server.kill()
    listing = subprocess.run([HC, "store", "ls", store, "--chunks", "--why"], capture_output=True, text=True).stdout
    check("store ls says what is guaranteed", "guaranteed until" in listing and "never evicted" in listing, listing)
    check("store stat too", "guaranteed, by" in subprocess.run(
        [HC, "store", "stat", store], capture_output=True, text=True).stdout, listing)
    server = Server(SYNTH, "--store", store, "--no-reuse", *SAVING, *options)
    crowd(server, 200)
    again, cached = answer(server, A)
    equal("it is there after kill -9 and a crowd", (again, cached), (want, 256))
    sizes = {f: os.stat(os.path.join(store, f)).st_blocks * 512 for f in os.listdir(store)
             if f.startswith(("seg-", "index.db", "superblock", "reserve", "lock"))}
    check("all files of the store are within the cap", 2 << 20 < sum(sizes.values()) <= 4 << 20, sizes)
    server.kill()
    equal("store unpin ends all", subprocess.run([HC, "store", "unpin", store, "--all"]).returncode, 0)
    server = Server(SYNTH, "--store", store, "--no-reuse", *SAVING, *options)
    equal("then none is left", server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["guarantees"], 0)
    server.kill()


def times_to_live():
    """State with cache_ttl is removed when it was not used for that long; other state stays."""
    server = Server(MODEL, "--store", os.path.join(tmp, "ttl"), "--no-reuse", "--plain-chat", *SAVING)
    text = "Once upon a time there was a girl who had a dog. " * 20

    def tier():
        return server.request("GET", "/v1/cache/stats")[2]["tiers"][0]

    def expired(n):
        return until(lambda: tier()["evictions_by_reason"]["expired"] > n and tier()["expiring_chunks"] == 0)
    server.post("/v1/cache/prefetch", {"prompt": text})
    server.complete("A " + text, max_tokens=2, cache_ttl=1)
    check("a request's state expires", expired(0), tier())
    stored = server.post("/v1/cache/lookup", {"prompt": text})[2]["stored_tokens"]
    gone = server.post("/v1/cache/lookup", {"prompt": "A " + text})[2]["stored_tokens"]
    check("what has no time to live stays", stored > 0 and gone == 0, (stored, gone))
    n = tier()["evictions_by_reason"]["expired"]
    name = server.post("/v1/conversations", {"metadata": {"cache_ttl": "1"}})[2]["id"]
    status, _, r = server.post("/v1/responses", {"input": text, "conversation": name, "max_output_tokens": 2})
    equal("a conversation's response", status, 200)
    check("the state of a conversation with a time to live expires", expired(n), tier())
    status, _, r = server.post("/v1/responses", {"input": "And?", "conversation": name, "max_output_tokens": 2})
    equal("it goes on, computed again", status, 200)
    n = tier()["evictions_by_reason"]["expired"]
    status, _, r = server.post("/v1/cache/prefetch", {"prompt": "B " + text, "cache_ttl": 1})
    equal("a document that is computed ahead may have a time to live", status, 200)
    check("it expires, too", expired(n), tier())
    for wrong in ({"cache_ttl": -1}, {"cache_ttl": "1"}, {"expect_reuse_in": -5}):
        status, _, r = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **wrong})
        equal(f"{wrong} is refused", (status, r["error"]["param"]), (400, list(wrong)[0]))
    status, _, r = server.post("/v1/conversations", {"metadata": {"cache_ttl": "soon"}})
    equal("a conversation's time to live must be digits", (status, r["error"]["param"]), (400, "metadata"))
    status, _, r = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "expect_reuse_in": 60, "cache_ttl": 3600})
    equal("chats take both", status, 200)
    server.kill()
    store = os.path.join(tmp, "ttl-run")
    with open(store + ".ids", "w") as f:
        f.write(" ".join(map(str, A)))
    subprocess.run([HC, "run", SYNTH, "--token-ids", store + ".ids", "--max-tokens", "2", "--store", store,
                    "--cache-ttl", "3600"], capture_output=True)
    chunks = json.loads(subprocess.run([HC, "store", "ls", store, "--json"], capture_output=True, text=True).stdout)
    stat = subprocess.run([HC, "store", "stat", store], capture_output=True, text=True).stdout
    check("store stat names them", f"{len(chunks['chunks'])} chunks with a time to live" in stat, stat)
    check("run --cache-ttl", len(chunks["chunks"]) >= 4 and all(
        c["expires_wall_s"] == c["used_wall_s"] + 3600 for c in chunks["chunks"]), chunks)


def hints():
    """Under --policy ours a client's hint of the next use decides which context a full store
    evicts."""
    def left(policy, **fields):
        server = Server(SYNTH, "--store", os.path.join(tmp, f"hints-{policy}-{len(fields)}"), "--no-reuse", *SAVING,
                        "--policy", policy, "--store-cap", "1M")

        def is_saved():  # a save is skipped if saving falls behind
            server.complete(A, max_tokens=1, **fields)
            server.post("/v1/cache/flush", {})
            return server.post("/v1/cache/lookup", {"prompt": A})[2]["stored_tokens"] == 256
        check(f"{policy}: the context is stored", until(is_saved))
        seed = 10
        while server.request("GET", "/v1/cache/stats")[2]["tiers"][0]["evictions_by_reason"]["cap"] < 5:
            server.post("/v1/cache/prefetch", {"prompt": prompt(300, seed)})
            server.post("/v1/cache/flush", {})
            seed += 1
        stored = server.post("/v1/cache/lookup", {"prompt": A})[2]["stored_tokens"]
        server.kill()
        return stored
    equal("ours, without a hint: the first context goes first", left("ours"), 0)
    equal("ours, with expect_reuse_in: later ones go, and it stays whole", left("ours", expect_reuse_in=86400), 256)
    equal("lru does not look at the hint", left("lru", expect_reuse_in=86400), 0)


def shifted_clock():
    source, library = os.path.join(tmp, "shift.c"), os.path.join(tmp, "shift.so")
    with open(source, "w") as f:
        f.write(SHIFT)
    if os.path.basename(os.path.dirname(HC)) not in ("release", "debug"):
        skip("a clock that is set", "a sanitizer's library must come first")
    elif not can(["cc", "-shared", "-fPIC", "-o", library, source]):
        skip("a clock that is set", "cc cannot build a shared library")
    else:
        clock_is_set()


def aborted_file_system():
    image, at = os.path.join(tmp, "image"), os.path.join(tmp, "mnt")
    os.makedirs(at)
    with open(image, "wb") as f:
        f.truncate(64 << 20)
    if os.geteuid() == 0 and shutil.which("mkfs.ext4") is None:
        check("mkfs.ext4 is here (tools/setup.sh installs it)", False)
        return
    if os.geteuid() != 0 or not can(["mkfs.ext4", "-q", image]) or not can(["mount", "-o", "loop", image, at]):
        skip("a file system that becomes read-only", "needs root, loop devices and mkfs.ext4")
        return
    try:
        read_only(image, at)
    finally:
        subprocess.run(["umount", "-l", at], check=False, capture_output=True)


aborted_file_system()
guarantees()
times_to_live()
hints()
shifted_clock()
end()
