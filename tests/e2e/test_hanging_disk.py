"""A server whose disk hangs: reads of the store do not return while a file exists.

For the first request the chunks are found, and recomputation races with their reads. For the second
request even the look-up hangs, so its tokens are computed. Both get the answer of a server without
a store. When the disk works again, the late reads do no harm, and requests are restored again."""
import os

from hanging import build_library
from serve_client import SANITIZED, Server, until
from tap import check, end, equal, scratch, skip

tmp = scratch("hang")
MODEL = "synth:bench-220m"  # recomputing takes many times as long as reading from the page cache

def prompt(seed):
    return [3 + (i * i * 7 + seed * 31) % 4000 for i in range(420)]


def answer(server, ids):
    """Returns (log probabilities of the generated tokens, cached tokens)."""
    r = server.complete(ids, max_tokens=3, logprobs=1, ignore_eos=True)
    return r["choices"][0]["logprobs"]["token_logprobs"], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def stalls(server):
    return {e: server.metric(f'hcache_restore_stalls_total{{end="{e}"}}') for e in ("read", "recomputed", "left")}


def hang():
    at = os.path.join(tmp, "hangs")
    library = build_library(tmp)
    server = Server(MODEL, "--store", os.path.join(tmp, "s"), "--no-reuse", "--max-context", "512", "-v",
                    env={"LD_PRELOAD": library, "HANG": at})
    ids = [prompt(1), prompt(2)]
    want = [answer(server, p)[0] for p in ids]
    server.post("/v1/cache/flush", {})
    for p, w in zip(ids, want):
        check("before: it is restored, and right", until(lambda: answer(server, p) == (w, 384)), server.log)
    before = stalls(server)
    with open(at, "w"):
        pass
    equal("the disk hangs in the reads of a restore: the answer", answer(server, ids[0])[0], want[0])
    now = stalls(server)
    equal("... which recomputation ended", now["recomputed"], before["recomputed"] + 1)
    check("... says the log", any("recomputation ended first" in line for line in server.log), server.log)
    equal("the disk hangs before the look-up: the answer", answer(server, ids[1])[0], want[1])
    equal("... without the store", stalls(server)["left"], now["left"] + 1)
    os.remove(at)
    for p, w in zip(ids, want):
        check("the disk goes on: it is restored, and right", until(lambda: answer(server, p) == (w, 384)), server.log)
    equal("it stops in order", server.stop(), 0)


if SANITIZED:
    skip("a hanging disk", "the sanitizer wants to be the first library")
else:
    hang()
end()
