"""How `hcache serve` accepts connections: many that are ready at once, the maximum number, more
than the system allows, and none once the server refuses new connections."""
import http.client
import os
import resource
import signal
import socket

from serve_client import MODEL, Server, Stream, until
from tap import PATIENCE, check, end


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(server, n):
    return [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(n)]


def is_served(c, seconds=PATIENCE):
    """Returns whether a whole answer arrives, each piece within `seconds`."""
    c.settimeout(seconds)
    try:
        answer = http.client.HTTPResponse(c)
        answer.begin()
        answer.read()
        return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False


def ask(c):
    c.sendall(HEALTH)
    return is_served(c)


def burst(server, n):
    """Makes n connections whose requests have all arrived before the server reads one of them."""
    connections = connect(server, n)
    check(f"{n} connections are served", all(ask(c) for c in connections))
    server.p.send_signal(signal.SIGSTOP)
    for c in connections:
        c.sendall(HEALTH)
    server.p.send_signal(signal.SIGCONT)
    n_served = sum(is_served(c) for c in connections)
    check(f"{n} requests at once are answered", n_served == n, n_served)
    for c in connections:
        c.close()


def with_server(test, *options, **more):
    server = Server(MODEL, *options, **more)
    try:
        test(server)
    except Exception as e:  # noqa: BLE001
        check(repr(e), False, "".join(server.log)[-800:])
    status = server.stop()
    check("status 0", status == 0, (status, "".join(server.log)[-300:]))


def bursts(server):
    # libmicrohttpd fetches 128 events at a time (src/server/loops.h).
    for n in (127, 128, 129, 256):
        burst(server, n)


def bound(server):
    held = connect(server, 8)
    check("as many connections as are allowed are served", all(ask(c) for c in held))
    more = connect(server, 3)
    for c in more:
        c.sendall(HEALTH)
    check("one more waits", not is_served(more[0], 0.5))
    for c in held[:3]:
        c.close()
    check("until others are closed", all(is_served(c) for c in more))
    check("and those that were there go on", all(ask(c) for c in held[3:]))


def slow_clients(server):
    """Clients that never complete their request, and send a byte now and then, take every
    connection. A new client must get an answer in the end."""
    for name, begin in [("has sent nothing", b""), ("sends its header slowly", b"GET /health HTTP/1.1\r\nX-Slow: "),
                        ("sends its body slowly", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n")]:
        held = connect(server, 16)
        for c in held:
            c.sendall(begin)
        check(f"a client that {name} keeps no other out", ask(connect(server, 1)[0]))

        def drip(c):
            try:
                return c.send(b"a") == 1
            except OSError:
                return False
        if begin:
            check(f"but one that {name} is let be while there is room", any(drip(c) for c in held))
        for c in held:
            c.close()


def descriptors(server):
    first = connect(server, 1)[0]
    check("a connection is served", ask(first))
    n_open = len(os.listdir(f"/proc/{server.p.pid}/fd"))
    _, hard = resource.prlimit(server.p.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.p.pid, resource.RLIMIT_NOFILE, (n_open + 4, hard))
    more = connect(server, 8)
    for c in more:
        c.sendall(HEALTH)
    check("more than the system allows: the log says so",
          until(lambda: any("the system allows no more" in line for line in server.log)), server.log)
    check("the others go on", ask(first))
    served = 0
    for c in more:  # a closed connection makes room for one that waits
        served += is_served(c)
        c.close()
    check("and each is served in its turn", served == 8, served)


def stopping(server):
    s = Stream(server, "/v1/completions", {"prompt": "Once", "max_tokens": 400, "ignore_eos": True})
    next(s.events)
    server.p.send_signal(signal.SIGTERM)

    def is_refused():
        try:
            connect(server, 1)[0].close()
        except ConnectionRefusedError:
            return True
        return False

    check("once it stops, connections are refused", until(is_refused))
    check("a stream that ran goes on to its end", list(s.events)[-1:] == [None])
    s.close()
    check("and the server ends", server.p.wait(PATIENCE) == 0)


def small_stacks(server):
    check("threads have stack enough whatever the limit of the process says",
          all(server.complete("Once upon a time", max_tokens=4)["choices"][0]["text"] for _ in range(2)))


# (The time limits are long, so that no timeout wakes a loop that sleeps although requests have
# arrived.)
with_server(bursts, "--http-threads", "1", "--idle-timeout", "3600", "--read-timeout", "3600")
with_server(bound, "--max-connections", "8", "--read-timeout", "3600")
with_server(slow_clients, "--max-connections", "16", "--idle-timeout", "3600", "--read-timeout", "3600")
with_server(descriptors)
with_server(stopping)
with_server(small_stacks, prefix=("prlimit", "--stack=131072:131072"))
end()
