"""`hcache serve` with a full queue: Retry-After, the order of requests, and clients that
disconnect.
"""
import math
import time

from serve_client import Server, Stream, until
from tap import check, end

DEMO = "models/demo"
QUEUE = 8


def ask(n_tokens, **fields):
    return {"prompt": "Tell me something long.", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 1, **fields}


def n_ended(s):
    return s.metric('hcache_requests_total{end="done"}')


def retry_after(s):
    """Fills the queue. One request has ended, so the server knows how long a request takes. The
    next one runs for long, and others wait for its place. Returns False if that request ended
    before the queue was examined, because the machine paused this test."""
    start = time.monotonic()
    timings = s.complete("Tell me something long.", max_tokens=700, ignore_eos=True)["timings"]
    # a request holds its place for longer than it decodes
    outside, inside = time.monotonic() - start, timings["decode_ms"] / 1e3
    first = Stream(s, "/v1/completions", ask(2000))
    running = until(lambda: s.metric("hcache_requests_running") == 1 or n_ended(s) > 1)
    others = Stream(s, "/v1/completions", ask(700, n=QUEUE))
    waiting = until(lambda: s.metric("hcache_requests_waiting") == QUEUE or n_ended(s) > 1)
    status, headers, r = s.post("/v1/completions", ask(10))
    told, metric = int(headers["Retry-After"] or 0), s.metric("hcache_queue_wait_expected_seconds")
    if n_ended(s) > 1:
        others.close()
        first.close()
        return False
    check("a full queue: 429", running and waiting and status == 429 and r["error"]["code"] == "queue_full",
          (running, waiting, status, r))
    check("Retry-After: what those before it are going to take",
          math.floor((QUEUE + 1) * inside) <= told <= math.ceil((QUEUE + 1) * outside) and math.ceil(metric) == told,
          (told, metric, inside, outside))
    print(f"# one request took {outside:.2f} s; behind {QUEUE + 1}: Retry-After {told}")
    others.close()
    first.close()
    check("both clients are gone: nothing is left", until(lambda: s.metric("hcache_requests_waiting") +
                                                          s.metric("hcache_requests_running") == 0))
    check("and there is room", s.complete("x", max_tokens=2)["usage"]["completion_tokens"] == 2)
    return True


was_full = False
for _ in range(10):
    server = Server(DEMO, "--max-sequences", "1", "--max-queue", str(QUEUE))
    try:
        was_full = retry_after(server)
    except Exception as e:  # noqa: BLE001
        check(repr(e), False, "".join(server.log)[-800:])
        break
    finally:
        status = server.stop()
    if was_full:
        break
check("the queue was full, and status 0", was_full and status == 0, (was_full, status))
end()
