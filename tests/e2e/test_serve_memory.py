"""A server that may not use more memory (RLIMIT_AS). Only the requests that need memory fail, with
503, and the server lives. Also tested is the memory of a large message that fits its context, of
log-probabilities, and of a large kept conversation."""
import json
import os
import resource
import shutil
import threading

from serve_client import SANITIZED, Server, until
from tap import check, end, equal, scratch, skip

MIB = 1 << 20


def limit(s, room):
    """Limits the growth of the server's address space to `room` bytes; None removes the limit."""
    most = resource.RLIM_INFINITY if room is None else s.memory("VmSize") + room
    resource.prlimit(s.p.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def bodies(n):
    text = "word and word about it. " * (n // 24)
    chat = [{"role": "user", "content": text}]
    parts = [{"role": "user", "content": [{"type": "text", "text": text[:1000]}] * (n // 1000)}]
    return [("/v1/completions", {"prompt": text, "max_tokens": 1}),
            ("/v1/completions", {"prompt": [5] * (n // 8), "max_tokens": 1}),
            ("/v1/chat/completions", {"messages": chat, "max_tokens": 1}),
            ("/v1/chat/completions", {"messages": parts, "max_tokens": 1}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text[:2000]}] * (n // 2100), "max_tokens": 1}),
            ("/v1/messages", {"messages": chat, "max_tokens": 1}),
            ("/v1/messages/count_tokens", {"messages": chat}),
            ("/v1/responses", {"input": text, "max_output_tokens": 1, "store": False}),
            ("/v1/conversations", {"items": [{"role": "user", "content": text}]}),
            ("/tokenize", {"content": text[:1000000]}),
            ("/detokenize", {"tokens": [5] * (n // 8)}),
            ("/v1/cache/lookup", {"prompt": text})]


def small(s):
    return s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})[0]


def test_limited(model):
    s = Server(model, "--store", os.path.join(tmp, "s"), "--max-sequences", "2", "--kv-tokens", "4K")
    try:
        equal("before: an answer", small(s), 200)
        seen = set()
        for room in (1, 40):
            limit(s, room * MIB)
            for path, body in bodies(2 * MIB):
                out = []
                threads = [threading.Thread(target=lambda: out.append(s.post(path, body))) for _ in range(2)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                seen |= {r[0] for r in out}
                told = [r for r in out if r[0] not in (200, 400, 413, 503)]
                check(f"{room} MiB of room, {path}: answered, or refused alone", len(out) == 2 and not told, str(out)[:300])
        check("some had too little", 503 in seen, seen)
        limit(s, None)
        equal("afterwards: an answer", small(s), 200)
        equal("and the server stops well", s.stop(), 0)
    finally:
        s.kill()


def test_fitting(model):
    """An ordinary text of 8 MB, 2.1M tokens, that fits its context. It is read, rendered, tokenized and
    queued. It is ended by its timeout before its first token."""
    n_context = 2_200_000  # each position of a larger one costs the start 2 us
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump({**config, "max_position_embeddings": n_context}, f)
    s = Server(model, "--max-sequences", "1", "--kv-tokens", str(n_context))
    try:
        small(s)
        text = "word and word about it. " * (8 * MIB // 24)
        chat = [{"role": "user", "content": text}]
        parts = [{"role": "user", "content": [{"type": "input_text", "text": text[:len(text) // 16]}] * 16}]
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + text}]}]
        for path, want, body in [("/v1/completions", 504, {"prompt": text, "max_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/chat/completions", 504, {"messages": chat, "max_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/messages/count_tokens", 200, {"messages": chat}),
                                 ("/v1/responses", 504, {"input": text, "max_output_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/responses", 504, {"input": parts, "max_output_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/responses", 400, {"input": image, "max_output_tokens": 1}),
                                 ("/v1/responses", 400, {"input": text.replace(" ", "x"), "max_output_tokens": 1}),
                                 ("/v1/conversations", 200, {"items": chat})]:
            (status, _, r), peak = peak_of(s, lambda: s.post(path, body))
            check(f"{path}: a text that fits: {want}", status == want, str(r)[:300])
            at_most_4_times(path, peak, len(text), 16)
    finally:
        s.stop()


def peak_of(s, ask):
    """Returns (the result of ask, the growth of the peak memory in bytes)."""
    with open(f"/proc/{s.p.pid}/clear_refs", "w") as f:
        f.write("5")  # resets VmHWM
    before = s.memory("VmRSS")
    out = ask()
    return out, s.memory("VmHWM") - before


def at_most_4_times(name, peak, n_bytes, room=8):
    if SANITIZED:
        skip(f"{name}: at most 4 times its size", "the sanitizer keeps freed memory")
    else:
        check(f"{name}: at most 4 times its size, and {room} MiB", peak <= 4 * n_bytes + room * MIB,
              f"{peak / n_bytes:.2f} times {n_bytes} bytes")


def test_logprobs():
    """Answers that consist mostly of log-probabilities: 21 for each token."""
    s = Server("models/demo", "--kv-tokens", "2K", "--max-sequences", "4", "--no-reuse")
    asked = {"max_tokens": 450, "ignore_eos": True, "n": 4}
    chat = {**asked, "messages": [{"role": "user", "content": "Hi"}]}
    try:
        # uses every block of the KV cache once, so that its memory is not counted for the answers
        for _ in range(2):
            s.post("/v1/chat/completions", chat)
        for path, body in [("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 20}),
                           ("/v1/completions", {**asked, "prompt": "Hi", "logprobs": 20})]:
            (status, _, r), peak = peak_of(s, lambda: s.post(path, body))
            n = sum(len((c["logprobs"].get("content") or c["logprobs"].get("tokens"))) for c in r["choices"])
            check(f"{path}: an answer with 37800 log-probabilities", (status, n) == (200, 1800), (status, n))
            at_most_4_times(f"{path} with log-probabilities", peak, len(json.dumps(r)))

            def late():  # this client reads nothing until the whole answer is generated
                data = json.dumps({**body, "stream": True}).encode()
                with s.open() as c:
                    c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                              % (path.encode(), len(data), data))
                    check("a late reader's stream is generated", until(lambda: s.metric("hcache_requests_running") == 0
                                                                      and s.metric("hcache_requests_waiting") == 0))
                    return sum(len(piece) for piece in iter(lambda: c.recv(1 << 20), b""))
            n, peak = peak_of(s, late)
            at_most_4_times(f"{path}, streamed to a late reader", peak, n)
    finally:
        s.stop()


def test_kept():
    """A conversation larger than a request body may be."""
    s = Server("models/demo", "--store", os.path.join(tmp, "kept"))
    part = {"type": "input_text", "text": "word and word about it. " * 14}
    try:
        for name, item in [("of long texts", {"role": "user", "content": "word and word about it. " * 12000}),
                           ("of many parts", {"role": "user", "content": [part] * 700})]:
            c = "/v1/conversations/" + s.post("/v1/conversations", {})[2]["id"]
            n = 0
            for _ in range(4):
                body = json.dumps({"items": [item] * 20})
                n += len(body)
                equal(f"a conversation {name}: items are added", s.post(c + "/items", body)[0], 200)
            last = s.request("GET", c + "/items?limit=1")[2]["data"][0]["id"]
            for what, want, ask in [
                    ("all items", 200, lambda: s.request("GET", c + "/items?limit=100")),
                    ("one item", 200, lambda: s.request("GET", c + "/items/" + last)),
                    ("a turn that cannot fit", 400, lambda: s.post("/v1/responses", {"input": "Hi", "conversation": c[18:]})),
                    ("a branch", 200, lambda: s.post(c + "/branch", {"at": last})),
                    ("an item taken out", 200, lambda: s.request("DELETE", c + "/items/" + last)),
                    ("deleting it", 200, lambda: s.request("DELETE", c))]:
                (status, _, r), peak = peak_of(s, ask)
                check(f"a conversation {name}, {what}: {want}", status == want, str(r)[:300])
                at_most_4_times(f"a conversation {name}, {what}", peak, n)
    finally:
        s.stop()


def test_idle():
    """Thread-local memory, the reserve, and rotations of positions that no row has used take no pages."""
    s = Server("synth:tiny-gqa", "--max-context", "131072")
    used = s.memory("RssAnon") / MIB
    check(f"an idle server of a tiny model takes at most 9 MiB: {used:.1f}", used <= 9)
    s.stop()


tmp = scratch("memory")
folder = shutil.copytree("models/demo", os.path.join(tmp, "m"))
if SANITIZED:
    skip("a server with bounded address space", "sanitizers reserve terabytes of it")
else:
    test_idle()
    test_limited(folder)
test_fitting(folder)
test_logprobs()
test_kept()
end()
