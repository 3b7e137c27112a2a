"""A redis-server as a child process, and a proxy in front of it that damages the bytes that pass.
For the tests of --remote."""
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from ports import free_port
from tap import PATIENCE

CHUNK = re.compile(rb"hcache:1:chunk:([0-9a-f]{64})")
WRITE = re.compile(rb"\r\nSET(?:EX)?\r\n")


def is_installed():
    return shutil.which("redis-server") is not None


class Redis:
    """A redis-server on a port of its own that keeps nothing on disk."""

    def __init__(self, *options, port=None, tls=False):
        self.tls, port_option = tls, "--tls-port" if tls else "--port"
        if tls:
            options = ("--port", "0", *options)
        self.folder = tempfile.mkdtemp(prefix="hcache-redis.")
        for _ in range(5):  # another process may have taken the port
            self.port = port or free_port()
            self.p = subprocess.Popen(["redis-server", port_option, str(self.port), "--bind", "127.0.0.1", "--save", "",
                                       "--appendonly", "no", "--dir", self.folder, "--databases", "4", *options],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for line in self.p.stdout:
                if b"Ready to accept connections" in line:
                    threading.Thread(target=self.p.stdout.read, daemon=True).start()
                    return
            self.p.wait()
        raise RuntimeError("redis-server does not start")

    def url(self, db=0, user="", host="127.0.0.1", port=None):
        return f"redis{'s' if self.tls else ''}://{user}{host}:{port or self.port}/{db}"

    def ask(self, *words, db=0):
        """Returns the answer to one command, beginning with the protocol's first byte."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as s:
            f = s.makefile("rb")

            def send(args):
                args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
                s.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args))
                return answer(f)
            if db:
                send(["SELECT", db])
            return send(words)

    def chunks(self, db=0):
        return sorted(k for k in self.ask("KEYS", "hcache:1:chunk:*", db=db))

    def stop(self):
        self.p.kill()
        self.p.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def answer(f):
    line = f.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"$":
        n = int(rest)
        return None if n < 0 else f.read(n + 2)[:-2]
    if kind == b"*":
        return [answer(f) for _ in range(int(rest))]
    return int(rest) if kind == b":" else line[:-2]


class Proxy:
    """Passes bytes between clients and a redis-server. `harm` selects the damage:

      None      no damage
      hang      answers stop; connections stay open
      drip      large pieces of an answer come byte by byte, 200 a second
      corrupt   changes one byte of each large piece of an answer
      cut       closes the connection in the middle of a large answer
      truncate  removes bytes from the middle of a large answer
      swap      asks for the value of another chunk
      late      keeps the command that writes a chunk, and all later commands on that connection,
                until deliver() is called"""

    def __init__(self, port):
        self.to, self.harm, self.n_harmed, self.other = port, None, 0, None
        self.late = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def accept(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            try:
                b = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                a.close()
                continue
            threading.Thread(target=self.up, args=(a, b), daemon=True).start()
            threading.Thread(target=self.down, args=(b, a), daemon=True).start()

    def up(self, a, b):
        kept = None
        try:
            while piece := a.recv(65536):
                if self.harm == "late" and kept is None and WRITE.search(piece):
                    self.n_harmed += 1
                    kept = []
                    self.late.append((b, kept))
                if kept is not None:
                    kept.append(piece)
                    continue
                if self.harm == "swap" and b"GETEX" in piece and self.other is not None:
                    self.n_harmed += 1
                    piece = CHUNK.sub(lambda m: b"hcache:1:chunk:" + self.other, piece)
                b.sendall(piece)
        except OSError:
            pass
        close(a, *(() if kept is not None else (b,)))

    def deliver(self):
        """Sends the kept commands to the Redis. The client may have gone. Then the thread for
        answers closes the connection when the first answer comes, by which time the Redis has the
        whole first command."""
        for b, kept in self.late:
            try:
                b.sendall(b"".join(kept))
                b.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        self.late = []

    def down(self, b, a):
        try:
            while piece := b.recv(65536):
                while self.harm == "hang":  # until the harm is over, or the client has gone
                    a.settimeout(0.05)
                    try:
                        if a.recv(1, socket.MSG_PEEK) == b"":
                            raise OSError
                    except TimeoutError:
                        pass
                    a.settimeout(None)
                if self.harm == "drip" and len(piece) >= 4096:
                    self.n_harmed += 1
                    piece = self.drip(piece, a)
                a.sendall(self.harmed(piece, a))
        except OSError:
            pass
        close(a, b)

    def drip(self, piece, a):
        """Returns the rest of the piece when the harm ends."""
        a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while piece and self.harm == "drip":
            a.sendall(piece[:1])
            piece = piece[1:]
            time.sleep(0.005)
        return piece

    def harmed(self, piece, a):
        if len(piece) < 4096 or self.harm not in ("corrupt", "cut", "truncate"):
            return piece
        self.n_harmed += 1
        middle = len(piece) // 2
        if self.harm == "corrupt":
            return piece[:middle] + bytes([piece[middle] ^ 0x10]) + piece[middle + 1:]
        if self.harm == "truncate":
            return piece[:middle] + piece[middle + 16:]
        a.sendall(piece[:middle])
        raise OSError


def close(*sockets):
    for s in sockets:
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        s.close()
