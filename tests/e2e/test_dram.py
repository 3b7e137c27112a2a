"""--dram: restores use copies of saved state in memory, and every output with figures shows the
tiers separately."""
import http.client
import json
import os
import subprocess
import threading

from serve_client import HC, SAVING, Server, until
from tap import check, end, equal, scratch

MODEL = "models/demo"
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 6


def ask(s):
    r = s.post("/v1/completions", {"prompt": LONG, "max_tokens": 8, "ignore_eos": True, "temperature": 0})
    return r[2]["choices"][0]["text"], r[2]["timings"]


def tiers(s):
    return {t["name"]: t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"]}


def test_written(s):
    text, first = ask(s)
    equal("the first request finds nothing", first["restore_source"], None)
    s.post("/v1/cache/flush", {})
    again, second = ask(s)
    equal("restored from memory", second["restore_source"], "dram")
    check("as its tokens say", second["dram_tokens"] == second["restored_tokens"] >= 64, second)
    equal("with the same answer", again, text)
    t = tiers(s)
    check("the statistics tell memory and disk apart", t["dram"]["read_bytes"] == second["restore_bytes"] > 0 and
          t["disk"]["chunks"] > 0 and t["dram"]["chunks"] > 0 and t["dram"]["copies_written"] > 0, t)
    equal("so do the metrics", [s.metric(f'hcache_prompt_tokens_total{{source="{k}"}}') for k in ("dram", "disk")],
          [second["dram_tokens"], 0])
    equal("and the memory is bounded", (s.metric("hcache_dram_cap_bytes"), s.metric("hcache_dram_full_total")),
          (64 << 20, 0))
    return text


def test_restarted(s, text):
    equal("a restart begins without copies", tiers(s)["dram"]["used_bytes"], 0)
    again, t = ask(s)
    equal("so the disk serves", (t["restore_source"], t["dram_tokens"]), ("disk", 0))
    equal("with the same answer once more", again, text)


def say(s, text, **fields):
    status, _, r = s.post("/v1/responses", {"input": text, "temperature": 0, "max_output_tokens": 8, **fields})
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    s.post("/v1/cache/flush", {})
    return r


def test_mixed(s, before):
    """After a restart the older turns are on the disk alone, and the newer ones also in memory. The
    answer tells them apart."""
    second = say(s, LONG, previous_response_id=before["id"])
    third = say(s, "And then?", previous_response_id=second["id"])
    r = s.request("GET", f"/v1/responses/{third['id']}/restoration")[2]
    parts = r["prefix"]
    equal("a restore from both tiers names each part", [p["source"] for p in parts], ["disk", "dram", "computed"])
    check("in order and without gaps", [p["from"] for p in parts] == [0] + [p["to"] for p in parts[:-1]]
          and parts[-1]["to"] == r["prompt_tokens"], parts)
    counted = s.request("GET", "/v1/cache/stats")[2]["prompts"]
    equal("the statistics count the tokens from memory", counted["dram_tokens"], parts[1]["to"] - parts[1]["from"])


def test_truncated():
    """The state of a truncated context comes from memory alone, in each view. No tokens count as
    restored from the disk."""
    s = Server(MODEL, "--store", os.path.join(tmp, "cut"), "--no-reuse", "--dram", "64M", "--truncate", "0.5,context=256",
               *SAVING)
    name = s.post("/v1/conversations", {})[2]["id"]
    for _ in range(4):
        r = say(s, LONG, conversation=name)
    found = s.request("GET", f"/v1/responses/{r['id']}/restoration")[2]
    check("the window has moved", found["truncated_tokens"] > 0, found)
    equal("all of it came from memory", [p["source"] for p in found["prefix"]], ["dram", "computed"])
    equal("so no tokens came from the disk", s.metric('hcache_prompt_tokens_total{source="disk"}'), 0)
    s.stop()


def test_run():
    def dram(*options):
        p = subprocess.run([HC, "run", MODEL, "--store", os.path.join(tmp, "run"), "--json", "--max-tokens", "4",
                            "--raw", "-p", LONG, *SAVING, *options], capture_output=True, text=True, check=True)
        return json.loads(p.stdout)["dram"]
    d = dram("--dram", "8M")
    check("run --json has the statistics of the copies", d["cap_bytes"] == 8 << 20 and d["copies_written"] > 0
          and d["used_bytes"] > 0 and [d[k] for k in ("copies_promoted", "promoted_unused", "demoted")] == [0, 0, 0], d)
    equal("without copies it has none", dram("--dram", "0"), None)


def test_refused():
    p = subprocess.run([HC, "run", MODEL, "--store", os.path.join(tmp, "other"), "--dram", "900000G", "-p", "x"],
                       capture_output=True, text=True)
    check("more than the machine has is refused with the sums", p.returncode == 1 and "--dram" in p.stderr and
          "does not fit: weights" in p.stderr and "KV cache of" in p.stderr, p.stderr)


def story(i):
    return [10 + (i * 7919 + k * 104729 + k * k * 31) % 2900 for k in range(650)]


def test_unused():
    for options in ([], ["--store", "memory"]):
        p = subprocess.run([HC, "run", MODEL, "--dram", "64M", "-p", "x", "--max-tokens", "1", *options],
                           capture_output=True, text=True)
        check(f"without a store on a disk it is said that --dram is not used {options}",
              p.returncode == 0 and "--dram is not used" in p.stderr, p.stderr)


def test_ended(store):
    """SIGTERM ends a server whose memory for copies is full while more is read ahead. No state is
    lost."""
    options = ["--store", store, "--no-reuse", "--dram", "8M", "--max-sequences", "1", "--drain", "0",
               "--throttle", "200MB", *SAVING]
    s = Server(MODEL, *options)
    texts = [s.complete(story(i), max_tokens=4, ignore_eos=True)["choices"][0]["text"] for i in range(6)]
    s.post("/v1/cache/flush", {})
    check("the memory for copies is full", until(lambda: s.metric("hcache_dram_demotions_total") > 0))
    bodies = [{"prompt": story(i), "max_tokens": 400, "ignore_eos": True} for i in range(6)]
    waiting = [threading.Thread(target=unanswered, args=(s, b)) for b in bodies]
    for t in waiting:
        t.start()
    check("chunks of waiting requests are read ahead",
          until(lambda: s.metric('hcache_dram_copies_total{how="promoted"}') > 0))
    equal("it ends", s.stop(), 0)
    for t in waiting:
        t.join()
    s = Server(MODEL, *options)
    again = [s.complete(story(i), max_tokens=4, ignore_eos=True) for i in range(6)]
    equal("each answer is the same after the restart", [r["choices"][0]["text"] for r in again], texts)
    check("and each context is restored", all(r["timings"]["restored_tokens"] >= 64 for r in again),
          [r["timings"] for r in again])
    s.stop()


def unanswered(s, body):
    try:
        s.post("/v1/completions", body)
    except (OSError, http.client.HTTPException):
        pass


def test_auto():
    """The demo model's keys and values are larger than its hidden states, so it gets copies by
    default.  A model with grouped heads does not."""
    for model, has_copies in ((MODEL, True), ("synth:tiny-gqa", False)):
        s = Server(model, "--store", os.path.join(tmp, "auto-" + os.path.basename(model)), "--dram", "auto")
        equal(f"--dram auto with {model}", "dram" in tiers(s), has_copies)
        s.stop()
    p = subprocess.run([HC, "serve", MODEL, "--store", os.path.join(tmp, "other"), "--dram", "much"],
                       capture_output=True, text=True)
    check("another word is refused",
          p.returncode != 0 and "--dram 'much': must be auto or a size such as 4G" in p.stderr, p.stderr)


def test_documented(s):
    with open("docs/SERVER.md") as f:
        documented = f.read()
    text = s.request("GET", "/metrics")[2]
    names = {line.split("{")[0].split(" ")[0] for line in text.split("\n") if line.startswith("hcache_dram")}
    check("there are metrics of copies", len(names) >= 9, names)
    equal("each is in docs/SERVER.md", sorted(n for n in names if f"`{n[len('hcache_'):]}" not in documented), [])


tmp = scratch("dram")
args = ["--store", os.path.join(tmp, "store"), "--no-reuse", "--dram", "64M", *SAVING]
server = Server(MODEL, *args)
answer = test_written(server)
test_documented(server)
told = say(server, LONG)
server.stop()
server = Server(MODEL, *args)
test_restarted(server, answer)
test_mixed(server, told)
server.stop()
test_truncated()
test_run()
test_refused()
test_unused()
test_ended(os.path.join(tmp, "full"))
test_auto()
end()
