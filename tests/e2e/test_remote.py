"""--remote: a server continues, from a Redis, conversations that another server has computed. A
Redis that is slow, full, gone or lying costs a miss with its reason, and never gives a wrong
answer."""
import os

from plain_model import exchanged
from redis_proxy import Proxy, Redis, is_installed
from serve_client import SAVING, Server, until
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 12

n_stores = 0


def start(url, *options, plan=SAVING, models=(MODEL,)):
    global n_stores
    n_stores += 1
    s = Server(*models, "--store", os.path.join(tmp, f"store{n_stores}"), "--no-reuse", "--dram", "0",
               "--remote", url, "--remote-timeout", str(PATIENCE), *plan, *options)
    return s


def remote(s):
    return next(t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"] if t["name"] == "remote")


def is_up(s):
    return until(lambda: remote(s)["up"])


def is_reached(s):
    """Returns whether the remote answers, also if it takes no erasures."""
    return until(lambda: remote(s)["up"] or "erasures do not reach it" in (remote(s)["down_because"] or ""))


def ask(s, prompt=LONG, **fields):
    r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0, **fields})
    return r[2]["choices"][0]["text"], r[2]["timings"]


def written(s):
    """Returns whether no write is pending."""
    s.post("/v1/cache/flush", {})
    return until(lambda: remote(s)["queued_chunks"] == 0)


def filled(redis, *options):
    """Starts a server that has written LONG to the empty Redis.  Returns it and its answer."""
    redis.ask("FLUSHALL")
    s = start(redis.url(), *options)
    check("the remote is reached", is_up(s), s.log)
    text, t = ask(s)
    equal("the first server finds nothing", (t["restored_tokens"], t["remote_tokens"]), (0, 0))
    check("and writes", written(s), remote(s))
    return s, text


def test_shared(redis):
    a, text = filled(redis)
    n = len(redis.chunks())
    check("what it has committed is in Redis", n >= 2 and remote(a)["written_chunks"] == n, (n, remote(a)))
    b = start(redis.url())
    check("a second server reaches it", is_up(b), b.log)
    again, t = ask(b)
    equal("it gives the same answer", again, text)
    check("of state that it has restored", t["restored_tokens"] >= 64 and t["restore_source"] == "disk", t)
    equal("and that came from the remote", t["remote_tokens"], t["restored_tokens"])
    r = remote(b)
    equal("in two round trips: what is there, and all of it", r["round_trips"], 2)
    check("the statistics say so", r["fetched_chunks"] * 64 == t["remote_tokens"] and r["fetched_bytes"] > 0, r)
    equal("so do the metrics", (b.metric("hcache_remote_tokens_total"), b.metric("hcache_remote_up")),
          (t["remote_tokens"], 1))
    again, t = ask(b)
    equal("from then on its own store serves", (again, t["remote_tokens"], t["restored_tokens"] >= 64), (text, 0, True))
    other, t = ask(b, cache_salt="another")
    equal("another salt finds nothing there", (other, t["remote_tokens"]), (text, 0))
    ask(a)
    check("what is there is not written twice", written(a) and remote(a)["written_chunks"] == n, remote(a))
    test_documented(b)
    b.stop()
    return a, text


def test_documented(s):
    with open("docs/SERVER.md") as f:
        documented = f.read()
    text = s.request("GET", "/metrics")[2]
    names = {line.split("{")[0].split(" ")[0] for line in text.split("\n") if line.startswith("hcache_remote")}
    check("there are metrics of the remote", len(names) >= 9, names)
    equal("each is in docs/SERVER.md", sorted(n for n in names if f"`{n[len('hcache_'):]}" not in documented), [])


def test_harm(redis, text, harm, reason):
    """A new server behind a harmful proxy gives the right answer, and its miss has the reason."""
    proxy = Proxy(redis.port)
    b = start(proxy.url())
    check(f"{harm}: the remote is reached", is_up(b), b.log)
    n, proxy.other = len(redis.chunks()), redis.chunks()[0][-64:]
    proxy.harm = harm
    again, t = ask(b)
    proxy.harm = None
    equal(f"{harm}: the answer is right", again, text)
    r = remote(b)
    check(f"{harm}: it happened", proxy.n_harmed > 0, proxy.n_harmed)
    check(f"{harm}: the miss has its reason", any(r["misses_by_reason"][k] == 1 for k in reason), r)
    check(f"{harm}: less than all came", r["fetched_chunks"] < n and t["remote_tokens"] == 64 * r["fetched_chunks"],
          (t, r))
    check(f"{harm}: the answer says why", "remote" in (t["miss"] or ""), t["miss"])
    check(f"{harm}: the remote is used again", is_up(b), remote(b))
    b.stop()


def test_hang(redis, text):
    proxy = Proxy(redis.port)
    b = start(proxy.url(), plan=())
    check("hang: the remote is reached", is_up(b), b.log)
    proxy.harm = "hang"
    again, t = ask(b)
    equal("hang: the answer is right", (again, t["remote_tokens"]), (text, 0))
    check("hang: the remote is given up", until(lambda: not remote(b)["up"]), remote(b))
    again, t = ask(b, prompt="Of another prompt nothing is being saved. " * 12)
    check("hang: the next request does not ask it", "remote cannot be reached" in t["miss"], t)
    proxy.harm = None
    check("hang: it is used again when it answers", is_up(b), remote(b))
    b.stop()


def test_drip(redis, text):
    """A Redis sends its values slowly. A fetch ends before its first chunk is complete, and teaches
    the server the Redis's bandwidth. From then on the server refuses fetches, but tries one now and
    then. So it finds out when the Redis is fast again."""
    proxy = Proxy(redis.port)
    a, b = start(redis.url()), start(proxy.url(), plan=())
    n = 0

    def prompts():
        """Prompts whose state is in the Redis, and in no other server."""
        nonlocal n
        n += 12
        for i in range(n - 12, n):
            ask(a, prompt=f"The story number {i}. " + LONG, max_tokens=1)
        written(a)
        return [f"The story number {i}. " + LONG for i in range(n - 12, n)]

    def is_slow():
        """Returns whether a fetch is given up as slow. A pause of the machine looks like a silence of
        the Redis; then the next prompt is tried."""
        for prompt in prompts():
            is_up(b)
            proxy.harm = "drip"
            ask(b, prompt=prompt, max_tokens=1)
            proxy.harm = None
            if remote(b)["misses_by_reason"]["slow"] > 0:
                return True
        return False

    check("drip: the remote is reached", is_up(a) and is_up(b), b.log)
    check("drip: a value that comes slowly is a miss", until(is_slow), remote(b))
    r = remote(b)
    check("drip: values had begun to come", proxy.n_harmed > 0, proxy.n_harmed)
    check("drip: the transfer has taught its bandwidth", 0 < r["bytes_per_s"] < 1e6, r)
    equal("drip: no chunk has come", r["fetched_chunks"], 0)
    again, _ = ask(b)
    equal("drip: the answer is right", again, text)
    check("drip: a fetch is tried after some refusals",
          until(lambda: any(ask(b, prompt=p, max_tokens=1)[1]["remote_tokens"] > 0 for p in prompts())), remote(b))
    a.stop()
    b.stop()


def test_full(redis):
    redis.ask("CONFIG", "SET", "maxmemory", "1mb")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    a = start(redis.url())
    check("full: the remote is reached", is_reached(a), a.log)
    prompt = "A story that is nowhere yet. " + LONG
    text, _ = ask(a, prompt=prompt)
    a.post("/v1/cache/flush", {})
    check("full: what it does not take is counted", until(lambda: remote(a)["refused_chunks"] > 0), remote(a))
    again, t = ask(a, prompt=prompt)
    equal("full: the server's own store serves", (again, t["restored_tokens"] >= 64), (text, True))
    redis.ask("CONFIG", "SET", "maxmemory", "0")
    a.stop()


def test_killed(redis, text):
    """The Redis is killed under a server, and comes back empty."""
    b = start(redis.url())
    check("killed: the remote is reached", is_up(b), b.log)
    redis.p.kill()
    redis.p.wait()
    again, t = ask(b)
    equal("killed: the answer is right", (again, t["remote_tokens"]), (text, 0))
    check("killed: it is known to be gone", until(lambda: not remote(b)["up"]) and
          b.metric("hcache_remote_failures_total") > 0, remote(b))
    back = Redis(port=redis.port)
    check("killed: it is used again", is_up(b), remote(b))
    check("killed: what waited is written", written(b) and len(back.chunks()) > 0, remote(b))
    b.stop()
    back.stop()


def test_absent_at_start(text):
    s = start("redis://127.0.0.1:1/0")
    again, t = ask(s)
    equal("no Redis at all: the answer is right", again, text)
    check("and the miss says why", "remote cannot be reached" in t["miss"], t["miss"])
    equal("and so does the metric", s.metric("hcache_remote_up"), 0)
    equal("and the server ends well", s.stop(), 0)


def check_documented_acl(text):
    with open("docs/CLUSTER.md") as f:
        lines = f.read().split("    user hcache ", 1)[1].split("\n\n", 1)[0].split()
    redis = Redis("--user", "default", "off", "--user", "hcache", *[w.replace(">PASSWORD", ">pw") for w in lines])
    a, b = (start(redis.url(user="hcache:pw@")) for _ in range(2))
    check("the commands of docs/CLUSTER.md suffice", is_up(a) and is_up(b), a.log)
    check("to write", ask(a)[0] == text and written(a) and remote(a)["written_chunks"] > 0, remote(a))
    again, t = ask(b)
    check("to fetch, and to confirm", again == text and t["remote_tokens"] >= 64 and written(b), (t, remote(b)))
    for body in ("evict", {"prompt": LONG}), ("clear", {}):
        a.post(f"/v1/cache/{body[0]}", body[1])
    check("to erase", until(lambda: remote(a)["erasures_to_publish"] == 0 and
                            remote(a)["erasures"] == remote(a)["erasures_everywhere"] > 0), remote(a))
    equal("and nothing failed", (remote(a)["failures"], remote(b)["failures"]), (0, 0))
    a.stop()
    b.stop()
    redis.stop()


def test_user_and_db(text):
    redis = Redis("--user", "default", "off", "--user", "hc", "on", ">se@cret", "~hcache:*", "+@all")
    a = start(redis.url(db=3, user="hc:se%40cret@"))
    check("a user of Redis's ACL is let in", is_up(a), a.log)
    again, _ = ask(a)
    equal("with the same answer", again, text)
    check("and writes to the database of the URL", written(a) and remote(a)["written_chunks"] > 0, remote(a))
    check("its password is in no log and no answer", "cret" not in "".join(a.log) + str(remote(a)), a.log)
    a.stop()
    b = start(redis.url(db=3, user="hc:wrong@"))
    check_documented_acl(text)
    check("a wrong password is told", until(lambda: "WRONGPASS" in (remote(b)["down_because"] or "")), remote(b))
    b.stop()
    redis.stop()


def test_ttl():
    """The Redis drops state that is not fetched within its time to live. A fetch restarts that
    time. A shorter time to live of a request is used instead."""
    redis = Redis()

    def seconds():
        return [redis.ask("TTL", k) for k in redis.chunks()]
    a = start(redis.url(), "--remote-ttl", "5000")
    check("ttl: the remote is reached", is_up(a), a.log)
    ask(a)
    check("ttl: what is written has one", written(a) and len(seconds()) > 1 and
          all(4000 < n <= 5000 for n in seconds()), seconds())
    for k in redis.chunks():
        redis.ask("EXPIRE", k, 1000)
    b = start(redis.url(), "--remote-ttl", "5000")
    check("ttl: another server reaches it", is_up(b), b.log)
    check("ttl: it fetches", ask(b)[1]["remote_tokens"] >= 64)
    check("ttl: that is a use", until(lambda: max(seconds()) > 4000), seconds())
    check("ttl: nothing waits to be written", written(b), remote(b))
    redis.ask("FLUSHALL")
    ask(a, "A prompt of a request that names a time of its own. " + LONG, cache_ttl=2000)
    check("ttl: a request's shorter time is taken", written(a) and len(seconds()) > 1 and
          all(1000 < n <= 2000 for n in seconds()), seconds())
    a.stop()
    b.stop()
    redis.stop()


def test_modes():
    redis = Redis()
    a = start(redis.url(), "--remote-write", "idle")
    check("idle: the remote is reached", is_up(a), a.log)
    ask(a)
    check("idle: it is written when the request has ended", written(a) and len(redis.chunks()) > 0, remote(a))
    a.stop()
    redis.ask("FLUSHALL")
    a = start(redis.url(), "--remote-write", "use")
    check("use: the remote is reached", is_up(a), a.log)
    ask(a)
    check("use: the first request writes nothing", written(a) and redis.chunks() == [], remote(a))
    ask(a)
    check("use: one that uses it does", until(lambda: len(redis.chunks()) > 0), remote(a))
    a.stop()
    redis.stop()


def test_truncated(redis):
    """A server without its state fetches the last view of a truncated context, and no earlier stair."""
    window = ("--truncate", "0.5,context=256")
    redis.ask("FLUSHALL")
    a = start(redis.url(), *window)
    check("truncated: the remote is reached", is_up(a), a.log)
    story = LONG * 4
    text, t = ask(a, story, truncation="auto")
    check("truncated: it is written", written(a), remote(a))
    b = start(redis.url(), *window)
    check("truncated: a second server reaches it", is_up(b), b.log)
    again, t = ask(b, story, truncation="auto")
    equal("truncated: the same answer", again, text)
    r, n = remote(b), remote(a)["written_chunks"]
    check("truncated: one view of at most four chunks came", 2 <= r["fetched_chunks"] <= 4 < n / 2, (n, r))
    equal("truncated: in two round trips", r["round_trips"], 2)
    redis.ask("FLUSHALL")
    c = start(redis.url(), *window)
    check("truncated: a third server reaches it", is_up(c), c.log)
    again, t = ask(c, story, truncation="auto")
    equal("truncated: nothing is there: the same answer", (again, t["remote_tokens"]), (text, 0))
    for s in (a, b, c):
        s.stop()


def test_several(redis):
    """Servers of two models share one remote for both. An erasure reaches a model that is not loaded."""
    redis.ask("FLUSHALL")
    blue = os.path.join(tmp, "blue")
    exchanged(blue, 0, 1)
    both = dict(models=(MODEL, blue))
    a = start(redis.url(), **both)
    check("several: the remote is reached", is_up(a), a.log)
    texts = [ask(a, model=m)[0] for m in ("demo", "blue")]
    check("several: what both have computed is written", written(a), remote(a))
    b = start(redis.url(), **both)
    check("several: another server reaches it", is_up(b), b.log)
    got = [ask(b, model=m) for m in ("blue", "demo")]
    equal("several: each model finds its own state there, and answers the same", [g[0] for g in got], texts[::-1])
    check("several: all of it", all(t["remote_tokens"] == t["restored_tokens"] >= 64 for _, t in got), got)
    a.post("/api/generate", {"model": "blue", "keep_alive": 0})
    b.post("/api/generate", {"model": "blue", "keep_alive": 0})
    a.post("/v1/cache/clear", {})
    check("several: clearing reaches the remote, and the other server's store, of both models", until(
        lambda: redis.chunks() == [] and b.request("GET", "/v1/cache/stats")[2]["tiers"][0]["chunks"] == 0), redis.chunks())
    equal("several: nothing is found then", [ask(b, model=m)[1]["restored_tokens"] for m in ("demo", "blue")], [0, 0])
    equal("several: they end well", [a.stop(), b.stop()], [0, 0])


tmp = scratch("remote")
check("redis-server is installed (tools/setup.sh --test)", is_installed())
if is_installed():
    server = Redis()
    first, story = test_shared(server)
    first.stop()
    test_truncated(server)
    test_several(server)
    for kind, reasons in (("corrupt", ["wrong"]), ("swap", ["wrong"]), ("cut", ["failed"]),
                          ("truncate", ["wrong", "failed", "silent"])):
        filled(server)[0].stop()
        test_harm(server, story, kind, reasons)
    test_hang(server, story)
    test_drip(server, story)
    test_full(server)
    test_killed(server, story)
    test_absent_at_start(story)
    test_user_and_db(story)
    test_modes()
    test_ttl()
    server.stop()
end()
