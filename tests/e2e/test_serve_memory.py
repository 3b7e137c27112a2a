"""A server that may not have more memory (RLIMIT_AS): requests that need it fail alone, with 503, and the server lives.
Also: what one message costs that really fits its context."""
import json
import os
import resource
import shutil
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(__file__))
from serve_client import SANITIZED, Server  # noqa: E402
from tap import check, end, equal, skip  # noqa: E402

MIB = 1 << 20


def memory(s, name):
    with open(f"/proc/{s.p.pid}/status") as f:
        return next(int(x.split()[1]) * 1024 for x in f if x.startswith(name))


def limit(s, room):
    """The server's address space may grow by so many bytes; None: without a bound."""
    most = resource.RLIM_INFINITY if room is None else memory(s, "VmSize") + room
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
    """An ordinary text of 8 MB in a context of 4M tokens: read, rendered, tokenized, queued, and given up by its
    timeout before its first token."""
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump({**config, "max_position_embeddings": 4 * MIB}, f)
    s = Server(model, "--max-sequences", "1", "--kv-tokens", str(4 * MIB))
    try:
        small(s)
        text = "word and word about it. " * (8 * MIB // 24)
        chat = [{"role": "user", "content": text}]
        parts = [{"role": "user", "content": [{"type": "input_text", "text": text[:len(text) // 16]}] * 16}]
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + text}]}]
        for path, want, body in [("/v1/completions", 504, {"prompt": text, "max_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/chat/completions", 504, {"messages": chat, "max_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/messages", 504, {"messages": chat, "max_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/messages/count_tokens", 200, {"messages": chat}),
                                 ("/v1/responses", 504, {"input": text, "max_output_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/responses", 504, {"input": parts, "max_output_tokens": 1, "timeout_ms": 1}),
                                 ("/v1/responses", 400, {"input": image, "max_output_tokens": 1}),
                                 ("/v1/responses", 400, {"input": text.replace(" ", "x"), "max_output_tokens": 1}),
                                 ("/v1/conversations", 200, {"items": chat})]:
            with open(f"/proc/{s.p.pid}/clear_refs", "w") as f:
                f.write("5")  # VmHWM begins anew
            before = memory(s, "VmRSS")
            status, _, r = s.post(path, body)
            peak = (memory(s, "VmHWM") - before) / len(text)
            check(f"{path}: a text that fits: {want}", status == want, str(r)[:300])
            if SANITIZED:
                skip(f"{path}: at most 4 times its size", "the sanitizer keeps freed memory")
            else:
                check(f"{path}: at most 4 times its size, and 16 MiB", peak <= 4 + 16 * MIB / len(text), f"{peak:.2f} times")
    finally:
        s.stop()


tmp = tempfile.mkdtemp(prefix="hcache-memory.")
try:
    folder = shutil.copytree("models/demo", os.path.join(tmp, "m"))
    if SANITIZED:
        skip("a server with bounded address space", "sanitizers reserve terabytes of it")
    else:
        test_limited(folder)
    test_fitting(folder)
finally:
    shutil.rmtree(tmp, ignore_errors=True)
end()
