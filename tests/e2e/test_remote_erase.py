"""--remote: state that one server erases is erased in the Redis and on every other server. Running
servers erase it within seconds, servers that were down before they serve again."""
import os

from redis_proxy import Proxy, Redis, is_installed
from serve_client import SAVING, Server, Stream, until
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
STREAM = "hcache:1:erased"
BIRD = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 12
FISH = "Another tale is that of a fish who wanted to see the mountains, and how it came there. " * 12


def start(redis, store, timeout=str(PATIENCE)):
    s = Server(MODEL, "--store", os.path.join(tmp, store), "--no-reuse", "--remote", redis.url(),
               "--remote-timeout", timeout, *SAVING)
    return s


def tiers(s):
    return {t["name"]: t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"]}


def is_up(s):
    """Returns whether the server can fetch, and has read the list of erasures."""
    return until(lambda: tiers(s)["remote"]["up"] and tiers(s)["remote"]["servers"] > 0)


def ask(s, prompt):
    r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0})
    return r[2]["choices"][0]["text"], r[2]["timings"]


def written(s):
    s.post("/v1/cache/flush", {})
    return until(lambda: tiers(s)["remote"]["queued_chunks"] == 0)


def stored(s, prompt):
    return s.post("/v1/cache/lookup", {"prompt": prompt})[2]["stored_tokens"]


def everywhere(s, n_servers):
    def done():
        r = tiers(s)["remote"]
        return (r["erasures_to_publish"] == 0 and r["erasures"] == r["erasures_everywhere"] > 0 and
                r["servers"] >= n_servers)
    return until(done)


def test_one_context(redis, a, b):
    texts = {p: ask(a, p)[0] for p in (BIRD, FISH)}
    check("a server writes two contexts", written(a) and len(redis.chunks()) > 4, redis.chunks())
    for p in (BIRD, FISH):
        text, t = ask(b, p)
        check("another one has them from there", text == texts[p] and t["remote_tokens"] > 64, t)
    # an entry of another program must not keep erasures from being read
    redis.ask("XADD", STREAM, "*", "entries-added", "0", "99999999999999-1", "d")
    n = len(redis.chunks())
    values = {k: redis.ask("GET", k) for k in redis.chunks()}
    status, _, r = a.post("/v1/cache/evict", {"prompt": BIRD})
    equal("the answer says that it is erased here", (status, r["erased"], r["erased_chunks"] > 0), (200, "local", True))
    check("a GET tells when all servers have done it", everywhere(a, 2), tiers(a)["remote"])
    equal("then the other server has it no more", stored(b, BIRD), 0)
    check("and still has what was not erased", stored(b, FISH) > 64, stored(b, FISH))
    check("and so does the Redis", 0 < len(redis.chunks()) < n, redis.chunks())
    # writes the values again, as a server does that has not heard of the erasure
    for k, v in values.items():
        redis.ask("SET", k, v)
    for s in (a, b):
        text, t = ask(s, BIRD)
        equal("nobody takes it from there again", (text, t["remote_tokens"], t["restored_tokens"]), (texts[BIRD], 0, 0))
    return texts


def test_all(redis, a, b):
    # State that a server commits after the erasure is new, and would stay.
    check("no server has a save to make", written(a) and written(b))
    status, _, r = a.post("/v1/cache/clear", {})
    equal("all is erased here", (status, r["erased"]), (200, "local"))
    check("and everywhere", everywhere(a, 2), tiers(a)["remote"])
    check("in the other server", until(lambda: tiers(b)["disk"]["chunks"] == 0), tiers(b)["disk"])
    equal("and in the Redis", redis.chunks(), [])


def test_told(a):
    """When nothing waits to be published, each server's number of erasures includes the last one."""
    wrong = []
    for _ in range(20):
        before = tiers(a)["remote"]["erasures"]
        a.post("/v1/cache/clear", {})
        while (now := tiers(a)["remote"])["erasures_to_publish"] > 0:
            pass
        if now["erasures"] <= before:
            wrong.append((before, now))
    equal("no GET tells of an earlier state", wrong, [])


def test_running(redis, a, b):
    """An answer that is being given while its state is erased leaves nothing behind."""
    erased = 'hcache_saves_ended_total{reason="erased"}'
    for where in ("on this server", "on another one"):
        before = b.metric(erased)
        for i in range(100):  # until an answer has lasted longer than an erasure takes
            streams = [Stream(b, "/v1/completions", {"prompt": f"{i}. {k}. {BIRD}", "max_tokens": 1400, "ignore_eos": True,
                                                     "temperature": 0}) for k in range(4)]
            for s in streams:
                next(s.events)
            by = b if where == "on this server" else a
            by.post("/v1/cache/clear", {})
            check(f"erased {where}: everywhere", everywhere(by, 2), tiers(by)["remote"])
            for s in streams:
                list(s.events)
                s.close()
            check(f"erased {where}: its saves end", written(b))
            equal(f"erased {where}: no chunk comes behind it", (tiers(b)["disk"]["chunks"], redis.chunks()), (0, []))
            if b.metric(erased) > before:
                break
        check(f"erased {where}: an answer was still being given", b.metric(erased) > before, i)
    _, t = ask(b, BIRD)
    check("a later request's state is saved", written(b) and stored(b, BIRD) > 64, t)
    by.post("/v1/cache/clear", {})
    check("and erased like any other", everywhere(by, 2))


def writes(redis):
    """Returns the number of writes that the Redis has received."""
    lines = redis.ask("INFO", "commandstats").decode().split("\r\n")
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith(("cmdstat_set:", "cmdstat_setex:")))


def test_late_write(redis, a):
    """A write may come when its chunk has been erased everywhere. The written value expires, and no
    server fetches it."""
    proxy = Proxy(redis.port)
    c = start(proxy, "late", "1")
    check("a server is there", is_up(c))
    proxy.harm = "late"
    ask(c, FISH)
    check("the network keeps a write", until(lambda: proxy.n_harmed > 0))
    proxy.harm = None
    check("the server writes again", written(c) and len(redis.chunks()) > 1, tiers(c)["remote"])
    a.post("/v1/cache/clear", {})
    check("all is erased everywhere", everywhere(a, 3) and redis.chunks() == [], redis.chunks())
    n = writes(redis)
    proxy.deliver()
    check("the kept write comes", until(lambda: writes(redis) > n), n)
    left = [redis.ask("PTTL", k) for k in redis.chunks()]
    check("it ends by itself", len(left) <= 1 and all(ms == -2 or 0 < ms <= 45000 for ms in left), left)
    d = start(redis, "fresh")
    check("a server begins after the erasure", is_up(d))
    for s in (a, c, d):
        _, t = ask(s, FISH)
        equal("no server takes it", (t["remote_tokens"], t["restored_tokens"]), (0, 0))
    c.stop()
    d.stop()


def test_stopped(redis, a, b):
    """A server that was down erases the chunks before it serves."""
    ask(b, FISH)
    check("a server has a context", written(b) and stored(b, FISH) > 64)
    check("another one, too", ask(a, FISH)[1]["prefilled_tokens"] > 0 and written(a))
    b.stop()
    a.post("/v1/cache/clear", {})
    check("it is erased while the server is stopped", until(lambda: tiers(a)["remote"]["erasures_to_publish"] == 0))
    b = start(redis, "b")
    _, t = ask(b, FISH)
    equal("its first request gets nothing of it", (t["restored_tokens"], t["remote_tokens"]), (0, 0))
    b.stop()


def test_late(redis, a):
    """A server that started without the remote has state when it learns of erasures."""
    proxy = Proxy(redis.port)
    proxy.harm = "hang"
    c = start(proxy, "c")
    ask(c, BIRD)
    c.post("/v1/cache/flush", {})
    check("a server begins while the Redis does not answer", stored(c, BIRD) > 64 and not tiers(c)["remote"]["up"])
    a.post("/v1/cache/clear", {})
    check("meanwhile all is erased", until(lambda: tiers(a)["remote"]["erasures_to_publish"] == 0))
    proxy.harm = None
    check("it erases that, too, when the Redis answers", is_up(c) and until(lambda: stored(c, BIRD) == 0), tiers(c))
    c.stop()
def test_bounded(redis, a):
    """The stream of erasures is bounded."""
    redis.ask("EVAL", "for i = 1, 20000 do redis.call('XADD', KEYS[1], '*', 'e', 'no entry') end", 1, STREAM)
    a.post("/v1/cache/clear", {})
    check("a full stream is cut when a server adds to it", everywhere(a, 1) and
          until(lambda: 16384 <= redis.ask("XLEN", STREAM) <= 16384 + 100), redis.ask("XLEN", STREAM))


def test_away(redis, a):
    """A server comes back after the stream has dropped entries that the server has not read."""
    b = start(redis, "b")
    check("a server is there", is_up(b))
    for s in (a, b):
        ask(s, FISH)
        check("two servers have a context", written(s) and stored(s, FISH) > 64)
    b.stop()
    ask(a, BIRD)
    check("another one has one more", written(a) and stored(a, BIRD) > 64)
    a.post("/v1/cache/evict", {"prompt": BIRD})
    check("it is erased meanwhile", until(lambda: tiers(a)["remote"]["erasures_to_publish"] == 0))
    redis.ask("XTRIM", STREAM, "MAXLEN", 0)
    b = start(redis, "b")
    check("the one that was away reaches the Redis", is_up(b))
    equal("it cannot know what was erased, and has nothing", (stored(b, FISH), tiers(b)["disk"]["chunks"]), (0, 0))
    check("it says so", any("all saved state of this server is erased" in line for line in b.log), b.log)
    check("the Redis and the other server keep theirs", len(redis.chunks()) > 1 and stored(a, FISH) > 64, redis.chunks())
    text, t = ask(b, FISH)
    check("so it fetches it again", t["remote_tokens"] > 64, t)
    check("and writes", written(b) and stored(b, FISH) > 64)
    b.stop()
    redis.ask("XTRIM", STREAM, "MAXLEN", 0)
    b = start(redis, "b")
    check("a server that has seen all that was cut", is_up(b))
    check("keeps its state", stored(b, FISH) > 64, b.log)
    b.stop()
    redis.ask("UNLINK", STREAM)
    b = start(redis, "b")
    check("a server that finds another stream", is_up(b))
    check("keeps its state, too", stored(b, FISH) > 64, b.log)
    b.stop()


def test_joins(redis):
    """A server that has a store and has never used this Redis keeps its state, although the stream
    was cut before."""
    s = Server(MODEL, "--store", os.path.join(tmp, "d"), "--no-reuse", *SAVING)
    ask(s, BIRD)
    s.post("/v1/cache/flush", {})
    s.stop()
    redis.ask("XADD", STREAM, "*", "e", "no entry")
    redis.ask("XADD", STREAM, "*", "e", "no entry")
    redis.ask("XTRIM", STREAM, "MAXLEN", 1)
    s = start(redis, "d")
    check("a new server is there", is_up(s))
    check("it has its state", stored(s, BIRD) > 64, s.log)
    s.stop()
    redis.ask("XADD", STREAM, "*", "e", "no entry")
    redis.ask("XTRIM", STREAM, "MAXLEN", 0)
    s = start(redis, "d")
    check("from then on it is one of them", is_up(s))
    equal("and loses it when it was away for too long", stored(s, BIRD), 0)
    s.stop()


def test_refused(redis, a):
    """A Redis that refuses a command of the writer: the server says so, and goes on when it may."""
    redis.ask("ACL", "SETUSER", "default", "-xadd")
    ask(a, BIRD)
    a.post("/v1/cache/evict", {"prompt": BIRD})
    check("a refusal is told", until(lambda: "xadd" in (tiers(a)["remote"]["down_because"] or "")), tiers(a)["remote"])
    equal("the remote does not count as up", (tiers(a)["remote"]["up"], a.metric("hcache_remote_up")), (False, 0))
    redis.ask("ACL", "SETUSER", "default", "+xadd")
    check("until the command is allowed again", is_up(a), tiers(a)["remote"])


def test_unreachable(redis, a):
    # the server erased all its state before, because it had not read entries that were cut
    check("a server has a context again", until(lambda: ask(a, BIRD) and written(a) and stored(a, BIRD) > 64))
    a.stop()
    redis.p.kill()
    redis.p.wait()
    a = start(redis, "a")
    _, t = ask(a, BIRD)
    check("without the Redis it cannot know what others have erased", t["restored_tokens"] == 0 and
          "other servers have erased" in (t["miss"] or ""), t)
    back = Redis(port=redis.port)
    check("it uses its state once it has asked", is_up(a) and ask(a, BIRD)[1]["restored_tokens"] > 64, a.log)
    a.stop()
    back.stop()


tmp = scratch("erase")
check("redis-server is installed (tools/setup.sh --test)", is_installed())
if is_installed():
    server = Redis()
    first, second = start(server, "a"), start(server, "b")
    check("two servers reach the Redis", is_up(first) and is_up(second))
    test_one_context(server, first, second)
    test_all(server, first, second)
    test_told(first)
    test_running(server, first, second)
    test_refused(server, first)
    test_late_write(server, first)
    test_stopped(server, first, second)
    test_late(server, first)
    test_bounded(server, first)
    test_away(server, first)
    test_joins(server)
    test_unreachable(server, first)
    server.stop()
end()
