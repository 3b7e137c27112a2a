"""A full queue of `hcache serve`: when to come back, who is first, and what a client that has gone leaves behind."""
import math
import os
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from serve_client import Server, Stream, until  # noqa: E402
from tap import check, end  # noqa: E402

DEMO = "models/demo"
QUEUE = 8


def ask(n_tokens, **fields):
    return {"prompt": "Tell me something long.", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 1, **fields}


def retry_after(s):
    """One request has ended, so its time is what is known; behind it one runs for long, and the queue is full."""
    start = time.time()
    s.complete("Tell me something long.", max_tokens=700, ignore_eos=True)
    one = time.time() - start
    first = Stream(s, "/v1/completions", ask(2000))
    running = until(lambda: s.metric("hcache_requests_running") == 1)
    others = Stream(s, "/v1/completions", ask(700, n=QUEUE))
    waiting = until(lambda: s.metric("hcache_requests_waiting") == QUEUE)
    status, headers, r = s.post("/v1/completions", ask(10))
    told, metric = int(headers["Retry-After"] or 0), s.metric("hcache_queue_wait_expected_seconds")
    check("a full queue: 429", running and waiting and status == 429 and r["error"]["code"] == "queue_full",
          (running, waiting, status, r))
    expected = (QUEUE + 1) * one
    check("Retry-After: what those before it are going to take",
          told > 1 and 0.5 * expected <= told <= expected + 1 and math.ceil(metric) == told, (told, metric, expected))
    print(f"# one request took {one:.2f} s; behind {QUEUE + 1}: Retry-After {told}")
    others.close()
    first.close()
    check("both clients are gone: nothing is left", until(lambda: s.metric("hcache_requests_waiting") +
                                                          s.metric("hcache_requests_running") == 0))
    check("and there is room", s.complete("x", max_tokens=2)["usage"]["completion_tokens"] == 2)


server = Server(DEMO, "--max-sequences", "1", "--max-queue", str(QUEUE))
try:
    retry_after(server)
except Exception as e:  # noqa: BLE001
    check(repr(e), False, "".join(server.log)[-800:])
check("status 0", server.stop() == 0)
end()
