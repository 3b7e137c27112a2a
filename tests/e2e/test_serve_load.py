"""`hcache serve` with many connections: 1,000 idle ones and 200 live streams; and the cost of
sending a token, compared with computing it.

The test compares the work of the HTTP threads per token with that of computing a token of the
smallest model, so that the result does not depend on the machine. `hcache bench serve --pid` gives
the cost in microseconds."""
import asyncio
import json
import os
import resource

from serve_client import MODEL, SANITIZED, Server, Stream
from tap import PATIENCE, check, end, skip


N_IDLE, N_STREAMS, N_TOKENS = 1000, 200, 300
# A descriptor for each connection, in this test and in the server, and some for everything else.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
wanted = N_IDLE + N_STREAMS + 256
if hard != resource.RLIM_INFINITY and hard < wanted:
    N_IDLE -= wanted - hard
    print(f"# {N_IDLE} idle connections: more than {hard} descriptors are not allowed here (ulimit -Hn)")
if soft != resource.RLIM_INFINITY and soft < wanted:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY and hard < wanted else wanted, hard))
# Idle connections stay open as long as the streams run.
OPTIONS = ("--max-sequences", str(N_STREAMS), "--max-queue", "256", "--idle-timeout", "3600")


def check_cost(name, before, after):
    """Compares two results of cpu_ns. An HTTP thread that spins would use as much processor time as
    the engine's thread."""
    if SANITIZED:
        skip(name, "a sanitizer's time is not the program's")
    elif not after:
        skip(name, "this kernel tells no processor time of threads (/proc/PID/task/TID/schedstat)")
    else:
        http, all_threads = http_ns(after) - http_ns(before), sum(after.values()) - sum(before.values())
        check(name, 0 < http < all_threads / 2, (http, all_threads))


def cpu_ns(server):
    """Returns the processor time of the threads by name; the HTTP threads have the name http.
    Returns nothing if the system does not report these times."""
    times = {}
    base = f"/proc/{server.p.pid}/task"
    for task in os.listdir(base):
        with open(f"{base}/{task}/comm") as f:
            name = f.read().strip()
        try:
            with open(f"{base}/{task}/schedstat") as f:
                times[name] = times.get(name, 0) + int(f.read().split()[0])
        except OSError:
            return {}
    return times


def http_ns(times):
    return sum(t for name, t in times.items() if name.startswith("http"))


def body(seed, n_tokens):
    return json.dumps({"prompt": "Once upon a time", "max_tokens": n_tokens, "ignore_eos": True, "temperature": 1,
                       "seed": seed, "stream": True}).encode()


async def stream(reader, writer, seed, started):
    """Returns (text, whether it ended well)."""
    text, done = "", False
    while not done:
        line = await reader.readline()
        if not line:
            break
        if line.startswith(b"data: "):
            started.add(seed)
            done = line.strip() == b"data: [DONE]"
            if not done:
                text += json.loads(line[6:])["choices"][0]["text"]
    writer.close()
    return text, done


async def still_there(reader, writer):
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 200")


async def streams(server):
    """Returns (number of streams that were live when the last one began, results)."""
    started = set()
    opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(N_STREAMS)]
    for i, (_, w) in enumerate(opened):
        data = body(i, N_TOKENS)
        w.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
    tasks = [asyncio.create_task(stream(r, w, i, started)) for i, (r, w) in enumerate(opened)]
    while len(started) < N_STREAMS and not all(t.done() for t in tasks):
        await asyncio.sleep(0.01)
    return sum(not t.done() for t in tasks), await asyncio.gather(*tasks)


async def load(server):
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(N_IDLE)]
    # tried again if the machine paused this test, so that some streams ended before others began
    for _ in range(5):
        before = cpu_ns(server)
        all_at_once, results = await streams(server)
        after = cpu_ns(server)
        if all_at_once == N_STREAMS:
            break
    check(f"{N_STREAMS} streams end as they should, beside {N_IDLE} idle connections",
          all(done for _, done in results), [done for _, done in results].count(True))
    check("all of them were live at once", all_at_once == N_STREAMS, all_at_once)
    alive = await asyncio.gather(*(still_there(r, w) for r, w in idle))
    check(f"all {N_IDLE} idle connections are served", all(alive), alive.count(True))
    for _, w in idle:
        w.close()
    check_cost("a token costs the HTTP threads less than computing it takes", before, after)
    return [text for text, _ in results]


def one_stream(server):
    """Measures the largest cost of a token: nearly every token is an event of its own."""
    before = cpu_ns(server)
    for _ in range(3):
        s = Stream(server, "/v1/completions", {"prompt": "Once", "max_tokens": 400, "ignore_eos": True})
        list(s.events)
        s.close()
    after = cpu_ns(server)
    check_cost("one stream: less than computing it takes, too", before, after)


server = Server(MODEL, *OPTIONS)
try:
    texts = asyncio.run(load(server))
    one_stream(server)
    alone = server.complete("Once upon a time", max_tokens=N_TOKENS, ignore_eos=True, temperature=1, seed=117)
    check("one among 200 has the text that it has alone", texts[117] == alone["choices"][0]["text"],
          (texts[117], alone))
except Exception as e:  # noqa: BLE001
    check(repr(e), False, "".join(server.log)[-800:])
print("# " + ", ".join(f"{k} {v / 1e9:.2f} s" for k, v in sorted(cpu_ns(server).items())))
check("status 0", server.stop() == 0)
end()
