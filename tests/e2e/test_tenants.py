"""An API key sees no counters of other keys, unless it is an administrator's, and no turns of them."""
import os

from serve_client import SAVING, Server, Stream, until
from tap import check, end, equal, scratch

MODEL = "models/demo"
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 4
ALICE, BOB, ROOT, BOSS = ({"Authorization": "Bearer " + name} for name in ("alice", "bob", "root", "boss"))


def stats(s, key):
    return s.request("GET", "/v1/cache/stats", None, key)[2]


def metrics(s, key):
    """Returns {name with labels: value}."""
    status, _, text = s.request("GET", "/metrics", None, key)
    if status != 200:
        return {}
    return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in text.split("\n") if line and line[0] != "#")}


def complete(s, key, prompt, n=8):
    r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "temperature": 0}, key)
    return r[2]["usage"]["prompt_tokens"] if r[0] == 200 else r


def test_own(s):
    before = stats(s, BOB), metrics(s, BOB)
    n = complete(s, ALICE, LONG)
    s.post("/v1/cache/flush", {}, ALICE)
    complete(s, ALICE, LONG)
    s.post("/v1/responses", {"input": "Hello", "max_output_tokens": 4, "ignore_eos": True}, ALICE)
    after = stats(s, BOB), metrics(s, BOB)
    equal("bob's statistics do not move with alice's requests", after[0], before[0])
    after[1].pop("hcache_http_requests_total")  # counts the request itself
    before[1].pop("hcache_http_requests_total")
    equal("nor do his metrics", after[1], before[1])
    check("they hold no figure of the store or the engine", not [k for k in after[1] if k.startswith((
        "hcache_store", "hcache_kv", "hcache_queue", "hcache_ttft", "hcache_misses", "hcache_evictions",
        "hcache_answers", "hcache_http_connections", "hcache_http_responses", "hcache_wrong_keys"))] and
        set(after[0]["tiers"][0]) == {"name", "saves"} and after[0]["of"] == "key", after)
    mine = stats(s, ALICE)
    check("alice's are hers", mine["prompts"]["restored_tokens"] >= 64 and mine["prompts"]["computed_tokens"] >= n and
          mine["prompts"]["requests"] == 3 and mine["prompts"]["restores"] == 1 and mine["prompts"]["open"] == 0, mine)
    m = metrics(s, ALICE)
    check("and so are her metrics", m['hcache_requests_total{end="done"}'] == 3 and m["hcache_generated_tokens_total"] > 16
          and m['hcache_prompt_tokens_total{source="restored"}'] == mine["prompts"]["restored_tokens"], m)
    s.post("/v1/conversations", {"title": "x"}, BOB)
    equal("conversations are counted by key", [stats(s, k)["conversations"]["conversations"] for k in (ALICE, BOB)], [0, 1])


def test_admin(s):
    all_of = stats(s, ROOT)
    check("an administrator's key sees all of them", all_of["of"] == "all" and all_of["tiers"][0]["chunks"] > 0 and
          all_of["prompts"]["restored_tokens"] >= 64 and all_of["conversations"]["conversations"] == 1, all_of)
    check("and all metrics", metrics(s, ROOT)["hcache_store_bytes"] > 0 and
          metrics(s, ROOT)['hcache_requests_total{end="done"}'] == 3)
    equal("so does one from the file", stats(s, BOSS)["of"], "all")
    equal("it is a key like others", isinstance(complete(s, ROOT, "Hello"), int), True)
    equal("with state of its own",
          s.post("/v1/cache/lookup", {"prompt": LONG}, ROOT)[2]["stored_tokens"], 0)
    equal("without any key: 401", s.request("GET", "/metrics")[0], 401)


def test_deleted_meanwhile(s):
    """Alice deletes her conversation while it gets an answer. Bob's next conversation stays empty."""
    name = s.post("/v1/conversations", {}, ALICE)[2]["id"]
    stream = Stream(s, "/v1/responses", {"input": "My word is aardvark.", "conversation": name,
                                         "max_output_tokens": 1500, "ignore_eos": True}, ALICE)
    next(stream.events)
    equal("a conversation that gets an answer is deleted", s.request("DELETE", "/v1/conversations/" + name, None, ALICE)[0], 200)
    bobs = s.post("/v1/conversations", {}, BOB)[2]["id"]
    check("its answer ends", len(list(stream.events)) > 0)
    equal("the next conversation, another key's, stays empty",
          s.request("GET", f"/v1/conversations/{bobs}/items", None, BOB)[2]["data"], [])
    s.request("DELETE", "/v1/conversations/" + bobs, None, BOB)


def test_queue():
    """Alice fills the queue. Bob's share of it stays his."""
    s = Server(MODEL, "--max-sequences", "1", "--max-queue", "4", "--api-key", "alice,bob")

    def ask(n, tokens=2000):
        return {"prompt": "Tell me something long.", "max_tokens": tokens, "ignore_eos": True, "n": n}

    def waiting(n):
        return until(lambda: s.request("GET", "/metrics", None, ALICE)[0] == 200 and
                     stats(s, ALICE)["prompts"]["open"] + stats(s, BOB)["prompts"]["open"] == n)
    streams = [Stream(s, "/v1/completions", ask(1), ALICE)]
    next(streams[0].events)
    streams.append(Stream(s, "/v1/completions", ask(4), ALICE))
    check("alice fills the queue", waiting(5))
    equal("her next request is refused", s.post("/v1/completions", ask(1, 1), ALICE)[0], 429)
    streams.append(Stream(s, "/v1/completions", ask(2), BOB))
    check("bob's are not", waiting(7))
    equal("up to his share", s.post("/v1/completions", ask(1, 1), BOB)[0], 429)
    for x in streams:
        x.close()
    s.stop()


def test_guarantees(tmp):
    """Two keys share what a store guarantees, three quarters of its cap."""
    s = Server(MODEL, *SAVING, "--store", os.path.join(tmp, "g"), "--store-cap", "64M", "--api-key", "alice,bob")
    complete(s, ALICE, LONG)
    s.post("/v1/cache/flush", {}, ALICE)
    r = s.post("/v1/cache/pin", {"prompt": LONG, "ttl": 60, "guarantee": True}, ALICE)[2]
    check("alice may guarantee her half", 0 < r["guarantee"]["salt_limit_bytes"] <= r["guarantee"]["limit_bytes"] * 0.6, r)
    s.stop()


def test_documented(s):
    with open("docs/SERVER.md") as f:
        documented = f.read()
    names = {k.split("{")[0][len("hcache_"):] for k in metrics(s, BOB)}
    equal("every metric of a key is in docs/SERVER.md", sorted(n for n in names if f"`{n}" not in documented), [])


tmp = scratch("tenants")
keys = os.path.join(tmp, "admins")
with open(keys, "w") as f:
    f.write("boss\n")
os.chmod(keys, 0o600)
server = Server(MODEL, *SAVING, "--no-reuse", "--store", os.path.join(tmp, "s"), "--api-key", "alice,bob", "--admin-key",
                "root", "--admin-key-file", keys)
test_own(server)
test_admin(server)
test_deleted_meanwhile(server)
test_documented(server)
server.stop()
test_queue()
test_guarantees(tmp)
server = Server(MODEL, "--api-key", "alice")
equal("the only key sees all: there are no others", stats(server, ALICE)["of"], "all")
server.stop()
server = Server(MODEL, "--admin-key", "root")
equal("an administrator's key alone closes the server", server.request("GET", "/v1/models")[0], 401)
server.stop()
end()
