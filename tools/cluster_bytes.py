#!/usr/bin/env python3
"""Checks that equal keys have equal bytes everywhere: compares the chunks of stores, of a Redis,
and of a server that computes the chunks again.

  tools/cluster_bytes.py [--redis PORT] [--model DIR] STORE...

A chunk's key identifies everything that determines its state's bits. So two servers with the same
chunk must have the same bits, whichever server computed, restored or fetched them. Each record (a
layer and a kind) of each chunk is compared. With --model, a server without state computes all
chains of chunks again from the token ids in their headers, and its chunks are compared, too.

A wrong state shows here before it shows in a text. tools/cluster_campaign.py uses this module.
HCACHE_BUILD names the directory of the program. Exit status 0: no two records differ."""
import argparse
import hashlib
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

HC = os.path.join(os.environ.get("HCACHE_BUILD", "build"), "hcache")
BLOCK, FULL = 4096, 64
TIGHT = 0x40  # bit of a record's kind: it begins at a multiple of 64
SCAN = 1000  # names requested from Redis at a time


class Chunk:
    """A parcel (src/store/parcel.h): a chunk's header and its records, outside of a store."""

    def __init__(self, parcel):
        h = parcel[:BLOCK]
        n_records, = struct.unpack_from("<H", h, 74)
        self.n_tokens, = struct.unpack_from("<I", h, 12)
        self.index, = struct.unpack_from("<I", h, 68)
        self.key, self.parent = h[80:112], h[112:144]
        self.tokens = struct.unpack_from(f"<{self.n_tokens}i", h, 176)
        self.records, self.n_bytes, at = {}, 0, BLOCK
        for i in range(n_records):
            layer, kind, n = struct.unpack_from("<BBI", h, 512 + 14 * i)
            align = 64 if kind & TIGHT else BLOCK
            at = -(-at // align) * align
            self.records[layer, kind] = hashlib.blake2b(parcel[at:at + n], digest_size=16).digest()
            self.n_bytes += n
            at += n


def of_bundle(path):
    """Yields the chunks of a file written by `hcache store export`."""
    with open(path, "rb") as f:
        f.read(BLOCK)
        while (h := f.read(BLOCK))[:8] == b"HCEXTENT":
            yield Chunk(h + f.read(struct.unpack_from("<Q", h, 48)[0] - BLOCK))
    if h[:8] != b"HCBUNEND":
        raise RuntimeError(f"{path} ends early")


def of_store(folder):
    """Yields the chunks of a store, which a server may have open."""
    tmp = tempfile.mkdtemp(prefix="hcache-bytes.", dir="/var/tmp")
    try:
        out = os.path.join(tmp, "all")
        subprocess.run([HC, "store", "export", folder, "--all", "--out", out], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        yield from of_bundle(out)
    finally:
        shutil.rmtree(tmp)


def of_redis(port, known=()):
    """Yields the chunks of a Redis whose names are not in `known`. Raises OSError or ValueError if
    the Redis ends meanwhile."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
        f = s.makefile("rb")

        def line():
            text = f.readline()
            if not text.endswith(b"\r\n"):
                raise OSError("the Redis is gone")
            return text[:-2]

        def value():
            n = int(line()[1:])
            if n < 0:
                return None
            text = f.read(n + 2)
            if len(text) != n + 2:
                raise OSError("the Redis is gone")
            return text[:-2]

        def send(*words):
            s.sendall(b"*%d\r\n" % len(words) +
                      b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))

        cursor = b""
        while cursor != b"0":
            send(b"SCAN", cursor or b"0", b"MATCH", b"hcache:1:chunk:*", b"COUNT", b"%d" % SCAN)
            line()
            cursor = value()
            names = [value() for _ in range(int(line()[1:]))]
            for name in names:
                if name in known:
                    continue
                send(b"GET", name)
                parcel = value()
                if parcel is not None:
                    chunk = Chunk(parcel)
                    if name != b"hcache:1:chunk:" + chunk.key.hex().encode():
                        raise RuntimeError(f"{name} holds the chunk {chunk.key.hex()}")
                    yield chunk


class Compare:
    """Keeps a digest of every record by its key, and the differences that were found."""

    def __init__(self):
        self.records, self.chunks, self.differences = {}, {}, []
        # numbers of chunks, records and bytes that were compared with another source
        self.n_chunks = self.n_records = self.n_bytes = 0

    def add(self, source, chunks):
        """Compares the chunks with those of earlier sources. Returns the number of chunks."""
        n = 0
        for c in chunks:
            n, is_compared = n + 1, False
            self.chunks.setdefault(c.key, (c.parent, c.tokens, c.index))
            for record, digest in c.records.items():
                first = self.records.setdefault((c.key, record), (digest, source))
                if first[1] == source:
                    continue
                is_compared = True
                self.n_records += 1
                if first[0] != digest:
                    self.differences.append(
                        f"chunk {c.index} of {c.n_tokens} tokens, {c.key.hex()[:16]}, layer "
                        f"{record[0]}, {'KV' if record[1] else 'hidden'}: {source} differs from "
                        f"{first[1]}")
            self.n_chunks += is_compared
            self.n_bytes += c.n_bytes * is_compared
        return n

    def text(self):
        return (f"{len(self.chunks)} keys; {self.n_chunks} chunks ({self.n_records} records, "
                f"{self.n_bytes / 1e6:.0f} MB) held against another copy: "
                f"{len(self.differences)} records differ")

    def chains(self):
        """Yields the token ids of every complete chain of chunks, up to a chunk that no other chunk
        continues."""
        continued = {parent for parent, _, _ in self.chunks.values()}
        for key in self.chunks.keys() - continued:
            tokens, index = [], None
            while key in self.chunks:
                key, part, index = self.chunks[key]
                tokens.append(part)
            if index == 0:
                yield [t for part in reversed(tokens) for t in part]


def compute(compare, model, options=()):
    """Runs a server without state that computes all chains, the longest first. Compares the
    server's chunks."""
    tmp = tempfile.mkdtemp(prefix="hcache-bytes.", dir="/var/tmp")
    store = os.path.join(tmp, "store")
    p = subprocess.Popen([HC, "serve", model, "--port", "0", "--plan", "kv", "--no-reuse",
                          "--store", store, *options], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
    try:
        line = next((line for line in p.stderr if "ready at http" in line), None)
        if line is None:
            raise RuntimeError("the server that computes anew does not start")
        port, n = int(line.split("ready at http://")[1].split()[0].split(":")[1].strip("/")), 0
        for tokens in sorted(compare.chains(), key=len, reverse=True):
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            c.request("POST", "/v1/completions", json.dumps(
                {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True}))
            r = c.getresponse()
            text = r.read()
            if r.status != 200:
                raise RuntimeError(f"{len(tokens)} tokens: {r.status} {text[:200]!r}")
            c.close()
            n += 1
        p.terminate()
        p.communicate()
        compare.add("a server that computes anew", of_store(store))
        return n
    finally:
        p.kill()
        p.wait()
        shutil.rmtree(tmp, ignore_errors=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--redis", type=int)
    p.add_argument("--model")
    p.add_argument("store", nargs="*")
    a = p.parse_args()
    compare = Compare()
    for store in a.store:
        print(store, compare.add(store, of_store(store)), "chunks")
    if a.redis:
        print("Redis", compare.add("the Redis", of_redis(a.redis)), "chunks")
    if a.model:
        print(compute(compare, a.model), "chains computed anew")
    for text in compare.differences[:50]:
        print(text)
    print(compare.text())
    sys.exit(bool(compare.differences))


if __name__ == "__main__":
    main()
