"""--remote with a peer that is not a Redis. The peer floods, drips, lies about kinds, lengths and
times, and sends control characters. Answers stay right, displayed text contains no control
characters, and the server stops when asked to."""
import json
import os
import socket
import threading

from serve_client import SAVING, Server, until
from tap import check, end, equal, scratch

LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 6
HONEST = {b"PING": b"+PONG\r\n", b"STRLEN": b":0\r\n", b"XRANGE": b"*0\r\n", b"HSET": b":1\r\n", b"HGETALL": b"*0\r\n",
          b"UNLINK": b":0\r\n", b"XADD": b"$3\r\n1-1\r\n", b"XINFO": b"-ERR no such key\r\n", b"SCAN": b"*2\r\n$1\r\n0\r\n*0\r\n", b"SET": b"+OK\r\n", b"EXPIRE": b":1\r\n",
          b"GETEX": b"$-1\r\n", b"TIME": b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n"}
BIG = b":1\r\n" * 4096


def bulk(text):
    return b"$%d\r\n%s\r\n" % (len(text), text)


def flood(begin, more=BIG):
    yield begin
    while True:
        yield more


def endless_stream():
    """Each answer to XRANGE has the entry that was read last, and another entry that is no erasure.
    So the stream never ends.
    """
    endless_stream.n += 1
    yield b"*2\r\n" + b"".join(b"*2\r\n" + bulk(b"%d-0" % (endless_stream.n + i)) + b"*2\r\n" + bulk(b"e") + bulk(b"no erasure")
                              for i in (0, 1))


endless_stream.n = 0

# The answers to each command. The items of a list are sent in turn. A generator goes on until the
# connection ends.
LIES = {
    "a list of numbers without an end": {None: lambda: flood(b"*2147483647\r\n")},
    "a PING whose answer has no end": {b"PING": lambda: flood(b"+P", b"P")},
    "a text of 2 GB": {None: lambda: flood(b"$2000000000\r\n", b"x" * 65536)},
    "lengths beyond all": {None: [b"$9223372036854775807\r\n", b"$-2\r\n", b"*-7\r\n", b"*9223372036854775807\r\n", b"$4294967297\r\n"]},
    "other kinds": {None: [b"*1\r\n*1\r\n*1\r\n$1\r\na\r\n", b":-9223372036854775808\r\n", b"+OK\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n",
                           b":9223372036854775807\r\n", bulk(b"x" * 100), b"*2\r\n:1\r\n$-1\r\n"]},
    "control characters": {None: [b"-ERR \x1b]0;title\x07 \xff\xfe \x00 \xc3\n\t no\r\n"]},
    "an erasure at every place": {
        b"XRANGE": endless_stream,
        b"XINFO": [b"*6\r\n" + bulk(b"length") + b":1000000000\r\n" + bulk(b"entries-added") + b":1000000000\r\n" +
                   bulk(b"last-generated-id") + bulk(b"1000000001-0")]},
    "a scan without an end": {b"SCAN": [b"*2\r\n$1\r\n7\r\n*1\r\n$5\r\nother\r\n"]},
    "servers of other times": {b"HGETALL": [b"*6\r\n" + bulk(b"a") + bulk(b"0 9223372036854775807") + bulk(b"b") +
                                            bulk(b"1" * 4000) + bulk(b"c") + bulk(b"-1 -9223372036854775808")]},
}
# In these tricks each answer is valid by itself.
PLAUSIBLE = ("an erasure at every place", "a scan without an end", "servers of other times")


class Liar:
    """A peer that answers correctly until `lies` is set."""

    def __init__(self):
        self.lies, self.n_told = {}, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}/0"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            c, _ = self.listener.accept()
            threading.Thread(target=self.talk, args=(c,), daemon=True).start()

    def talk(self, c):
        try:
            f = c.makefile("rb")
            while line := f.readline():
                words = []
                for _ in range(int(line[1:])):
                    words.append(f.read(int(f.readline()[1:]) + 2)[:-2])
                for piece in self.answer(words[0]):
                    c.sendall(piece)
        except (OSError, ValueError):
            pass
        c.close()

    def answer(self, word):
        lie = self.lies.get(word, self.lies.get(None) if word != b"PING" else None)
        if lie is None:
            return [HONEST.get(word, b"-ERR unknown\r\n")]
        self.n_told += 1
        return lie() if callable(lie) else [lie[self.n_told % len(lie)]]


def ask(s, prompt=LONG):
    status, _, r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0})
    return (status, r["choices"][0]["text"]) if status == 200 else (status, r)


def remote(s):
    return next(t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"] if t["name"] == "remote")


def is_plain(text):
    return all(c == "\n" or (c.isprintable() and c != "\ufffd") for c in text)


def test_lie(name, lies, want):
    liar = Liar()
    s = Server("models/demo", "--store", os.path.join(tmp, name), "--no-reuse", "--remote", liar.url, "--remote-timeout", "1", *SAVING)
    check(f"{name}: the remote is reached", until(lambda: remote(s)["up"] or remote(s)["down_because"]), s.log)
    liar.lies = lies
    equal(f"{name}: the answer is right", ask(s), want)
    if name.startswith("a scan"):  # scans are a part of erasing all state of a client
        s.post("/v1/cache/clear", {})
    check(f"{name}: it was told", until(lambda: liar.n_told > 0), liar.n_told)
    if name not in PLAUSIBLE:
        check(f"{name}: the connection is given up", until(lambda: remote(s)["failures"] > 0), remote(s))
    equal(f"{name}: the answer stays right", ask(s), want)
    if name.startswith("an erasure"):
        s.post("/v1/cache/flush", {})
        check(f"{name}: chunks are written between", until(lambda: remote(s)["written_chunks"] > 0), remote(s))
    stats = json.dumps(remote(s), ensure_ascii=False)
    check(f"{name}: statistics are text", is_plain(stats), stats)
    equal(f"{name}: the server ends when it is told to", s.stop(), 0)
    log = "".join(s.log)
    check(f"{name}: the log is text, and short", is_plain(log) and len(s.log) < 200, (len(s.log), log[-1000:]))


tmp = scratch("hostile")
alone = Server("models/demo", "--no-reuse")
answer = ask(alone)
alone.stop()
for lie_name, lie_lies in LIES.items():
    test_lie(lie_name, lie_lies, answer)
end()
