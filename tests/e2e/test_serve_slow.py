"""Streams without events for a long time, and a server whose weights are streamed."""
import json
import os
import re
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from serve_client import HC, Server, Stream, until  # noqa: E402
from tap import check, end, equal, scratch  # noqa: E402

tmp = scratch("slow")
packed = os.path.join(tmp, "demo.packed")
subprocess.run([HC, "model", "pack", "models/demo", "--out", packed], check=True, stdout=subprocess.DEVNULL)
server = Server(packed, "--weights-memory", "0%", "--max-sequences", "1", "--keep-alive", "1", "--drain", "0",
                "--speculate", "off")
log = "".join(server.log)
check("the start says what stays and what a step takes", "layers stay in memory" in log and "a step takes at least" in log, log)
whole = Server("models/demo")
asked = {"prompt": "Once upon a time there was a mole.", "max_tokens": 12}
equal("streamed weights answer as resident ones do", server.complete(**asked)["choices"][0]["text"],
      whole.complete(**asked)["choices"][0]["text"])
whole.stop()

# One request holds the only place until it ends. The other stream waits, and gets an SSE comment
# that reports this wait.
body = {"prompt": "A mole", "max_tokens": 1900, "ignore_eos": True, "temperature": 0, "stream": True}
first = Stream(server, "/v1/completions", body)
next(first.events)
second = server.open()
text = json.dumps({**body, "max_tokens": 4}).encode()
second.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
got = b""
while b": layer " not in got and b"data: " not in got:
    more = second.recv(4096)
    if not more:
        break
    got += more
check("a stream that waits gets comments", b": keep-alive\n\n" in got, got)
check("... and one that says how far the step is", re.search(rb"\n\n: layer [1-4] of 4\n\n", got), got)
equal("metrics have the layers of a step", server.metric("hcache_step_layers"), 4)
second.close()
equal("SIGTERM with no time to drain ends it in mid-answer", server.stop(), 0)
first.close()

# A client reads a few bytes now and then. Within --write-timeout the client's socket must accept
# more of the answer.
server = Server("models/demo", "--write-timeout", "1")
text = json.dumps({"content": "A mole and a bird. " * 40000}).encode()
slow = socket.socket()
slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
slow.connect(("127.0.0.1", server.port))
slow.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
check("a slow reader gets the beginning of its answer", slow.recv(12) == b"HTTP/1.1 200")


def is_dropped():
    slow.recv(1)  # part of the bytes that the two sockets hold
    return server.metric("hcache_http_connections") == 1


check("one that reads a byte now and then is dropped", until(is_dropped), server.metric("hcache_http_connections"))
slow.close()
equal("and the server goes on", server.stop(), 0)
end()
