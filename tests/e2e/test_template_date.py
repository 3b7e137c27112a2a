"""The date that a chat template prints: kept conversations and ingested documents keep theirs over
midnight and restarts; other requests see today's, a fixed one, or the one with the longest match."""
import json
import os
import sqlite3
import subprocess

import scripted_model
from serve_client import HC, SAVING, Server
from tap import check, end, equal, scratch

tmp = scratch("dates")
# The time zone moves the local date: UTC-12 and UTC+14 differ by more than a day at any moment.
EARLY, LATE = {"TZ": "AAA12"}, {"TZ": "BBB-14"}
TEMPLATE = ("{{ '<|s|>system\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
            "{{ '\nToday Date: ' + strftime_now('%d %b %Y') + '\n' }}"
            "{% for m in messages %}{% if m.role != 'system' %}{{ '<|s|>' + m.role + '\n' + m.content + '\n' }}{% endif %}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|s|>assistant\n' }}{% endif %}")
FIRST = TEMPLATE.replace("{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}", "") \
    .replace("%Y') + '\n' }}", "%Y') + '\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}")
MODEL = scripted_model.make_chain(os.path.join(tmp, "m"), [b"Fine", b". ok"], FIRST, special=["<|s|>"])
LONG = "The contract says this and that. " * 12


def local_date(zone):
    return subprocess.run(["date", "+%F"], env={**os.environ, **zone}, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def serve(zone, store, *options):
    return Server(MODEL, "--store", store, *SAVING, *options, env=zone)


def chat(server, *messages, **fields):
    body = {"messages": [dict(zip(("role", "content"), m)) for m in messages], "temperature": 0, **fields}
    r = server.post("/v1/chat/completions", body)[2]
    return r["usage"]["prompt_tokens_details"]["cached_tokens"], r["usage"]["prompt_tokens"], r


def respond(server, **fields):
    r = server.post("/v1/responses", {"temperature": 0, **fields})[2]
    return r, r["usage"]["input_tokens_details"]["cached_tokens"]


def ingest(zone, store, *options):
    out = subprocess.run([HC, "ingest", MODEL, "--store", store, "--plan", "kv", "--chat", "system", "--json",
                          os.path.join(tmp, "doc.txt"), *options], env={**os.environ, **zone}, check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)["files"][0]


def test_kept():
    store = os.path.join(tmp, "kept")
    s = serve(EARLY, store)
    a, _ = respond(s, input=LONG)
    n = a["usage"]["input_tokens"]
    equal("a new conversation has today's date", a["usage"]["template_date"], local_date(EARLY))
    s.post("/v1/cache/flush", {})
    s.kill()
    for unnamed in (False, True):
        if unnamed:  # a file from before dates were kept: the first turn's time stands in
            db = sqlite3.connect(os.path.join(store, "conversations.db"))
            db.execute("ALTER TABLE turn DROP COLUMN moment")
            db.commit()
            db.close()
        s = serve(LATE if not unnamed else EARLY, store)
        b, cached = respond(s, input="next", previous_response_id=a["id"])
        equal(f"it keeps its date over midnight and kill -9, {unnamed}", b["usage"]["template_date"], local_date(EARLY))
        check("and all its state", cached >= n // 64 * 64, (cached, n))
        s.stop()
    s = serve(LATE, store)
    cached, n, r = chat(s, ("user", LONG))
    equal("a request without a conversation sees today's", r["usage"]["template_date"], local_date(LATE))
    check("the miss names the date", cached < 64 and "the date has changed" in (r["timings"]["miss"] or ""), r["timings"]["miss"])
    status, _, m = s.post("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": LONG}]})
    equal("messages, too", m["usage"]["template_date"], local_date(LATE))
    s.stop()
    s = serve(LATE, store, "--template-date", "sticky")
    cached, n, r = chat(s, ("user", LONG), ("assistant", "Fine. ok"), ("user", "next"))
    check("sticky finds one of both days", cached >= 384, (cached, n))
    s.stop()
    s = serve(LATE, store, "--template-date", local_date(EARLY))
    cached, n, r = chat(s, ("user", LONG), ("assistant", "Fine. ok"), ("user", "next"))
    check("a fixed date finds its day's state", cached >= 384 and r["usage"]["template_date"] == local_date(EARLY), (cached, n))
    s.stop()


def test_sticky():
    """Sticky takes the date of the longest match, and today's if nothing matches."""
    store = os.path.join(tmp, "sticky")
    s = serve(EARLY, store)
    chat(s, ("user", LONG))
    s.post("/v1/cache/flush", {})
    s.stop()
    s = serve(LATE, store, "--template-date", "sticky")
    _, _, r = chat(s, ("user", "something else " * 40))
    equal("nothing matches: today's date", r["usage"]["template_date"], local_date(LATE))
    cached, n, r = chat(s, ("user", LONG), ("assistant", "Fine. ok"), ("user", "more"))
    equal("a match: its date", r["usage"]["template_date"], local_date(EARLY))
    check("and its state", cached >= 384, (cached, n))
    s.stop()


def test_ingest():
    store = os.path.join(tmp, "docs")
    with open(os.path.join(tmp, "doc.txt"), "w") as f:
        f.write(LONG)
    doc = ingest(EARLY, store)
    equal("ingest says which date it used", doc.get("template_date"), local_date(EARLY))
    s = serve(LATE, store)
    cached, n, r = chat(s, ("system", LONG), ("user", "q"))
    check("a chat with the document keeps its date", cached >= 384 and r["usage"]["template_date"] == local_date(EARLY), (cached, r["usage"]))
    _, _, r = chat(s, ("system", LONG + "x"), ("user", "q"))
    equal("another text does not", r["usage"]["template_date"], local_date(LATE))
    _, _, r = chat(s, ("system", LONG), ("user", "q"), cache_salt="other")
    equal("nor does another salt", r["usage"]["template_date"], local_date(LATE))
    s.stop()
    doc = ingest(LATE, store)
    check("ingesting again finds it", doc["template_date"] == local_date(EARLY) and doc["cached_tokens"] >= 384, doc)
    doc = ingest(EARLY, store, "--template-date", "2024-02-29")
    equal("a given date replaces it", doc["template_date"], "2024-02-29")
    out = subprocess.run([HC, "run", MODEL, "--store", store, "--plan", "kv", "--system", LONG, "--prompt", "q", "--json"], check=True,
                         stdout=subprocess.PIPE)
    r = json.loads(out.stdout)
    check("run takes it, too", r["template_date"] == "2024-02-29" and r["cached_tokens"] >= 384, (doc, r))
    bad = subprocess.run([HC, "serve", MODEL, "--template-date", "2026-02-30"], stderr=subprocess.PIPE, text=True)
    check("a date that does not exist is refused", bad.returncode == 2 and "--template-date" in bad.stderr, bad)


test_kept()
test_sticky()
test_ingest()
end()
