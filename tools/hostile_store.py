#!/usr/bin/env python3
"""Stores that lie: one field of a store has another value, and all checksums are right.

  tools/hostile_store.py BUILD [--count N] [--seconds S] [--seed N]

Each case copies a store of the demo model, by its seed plain or packed, and changes a field of the
superblocks, of extents' headers and tables (with the index, or without it), of rows and tables of
the index, of places to be wiped, or of erasures that are owed.  Then BUILD's program verifies the
store and runs the prompt twice.  The answer must have the tokens and the logits of a run without a
store: the state is restored, computed again, or the store is refused with a message.  Any other
answer, a signal, a report of a sanitizer or a run of more than five minutes is a finding.  Findings
stay in build/hostile, each with its number, and the exit status is then 1."""
import argparse
import collections
import ctypes
import ctypes.util
import hashlib
import json
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time

xxh = ctypes.CDLL(ctypes.util.find_library("xxhash")).XXH3_64bits
xxh.restype, xxh.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
PROMPT = "The little bird sang in the tall green tree every morning and told its friends about the river. " * 14
BLOCK, TABLE, ENTRY = 4096, 512, 14
ENDS = {124: "hangs", 66: "sanitizer"}
# Offsets of fields and their bytes (docs/STORE_FORMAT.md).
SUPERBLOCK = [(8, 4), (12, 4), (24, 16), (40, 4), (44, 4), (48, 8)]
HEADER = [(8, 4), (12, 4), (24, 16), (40, 8), (48, 8), (56, 8), (64, 4), (68, 4), (72, 2), (74, 2), (76, 4), (80, 32), (112, 32),
          (144, 32), (176, 4), (240, 4), (428, 4), (432, 8), (440, 8)]
RECORD = [(0, 1), (1, 1), (2, 4), (6, 8)]
META = [(8, 4), (12, 4), (16, 16), (32, 8), (40, 8), (48, 8), (56, 8)]
ROW = [(8, 8), (16, 8), (24, 4), (28, 4), (32, 4), (36, 2), (38, 2), (40, 32), (72, 32), (104, 32), (136, 8), (152, 8), (168, 8),
       (176, 4), (180, 4)]
WIPE = [(8, 8), (16, 8), (24, 4), (28, 4), (32, 2), (34, 6)]


def checksum(data):
    return struct.pack("<Q", xxh(bytes(data), len(data)))


def change(r, data, at, n):
    """Gives the field of n bytes another value."""
    old = int.from_bytes(data[at:at + n], "little")
    top = 1 << 8 * n
    near = [0, 1, 2, 63, 64, 65, 127, 128, 255, 256, 257, 4095, 4096, 4097, 1 << 16, 1 << 20, 1 << 26, 1 << 31, 1 << 32, 1 << 63,
            top - 1, top - 2, top // 2, old + 1, old - 1, old * 2, old + 4096, old - 4096, old ^ 1 << r.randrange(8 * n),
            r.randrange(top)]
    new = old
    while new == old:
        new = r.choice(near) % top
    data[at:at + n] = new.to_bytes(n, "little")


def seal_header(h):
    h[16:24] = bytes(8)
    h[16:24] = checksum(h)


def change_superblock(r, folder):
    path = os.path.join(folder, "superblock")
    with open(path, "r+b") as f:
        data = bytearray(f.read()[:BLOCK])
        change(r, data, *r.choice(SUPERBLOCK))
        seal_header(data)
        f.seek(0)
        f.write(data * 2)


def headers(segment):
    return [o for o in range(0, len(segment), BLOCK) if segment[o:o + 8] == b"HCEXTENT"]


def seal_key(r, h):
    """In half of the cases the key is made that of the changed parent and tokens."""
    if r.random() < 0.5:
        n = min(struct.unpack_from("<I", h, 12)[0], 64)
        field = lambda tag, value: struct.pack("<Q", len(tag)) + tag + struct.pack("<Q", len(value)) + bytes(value)  # noqa: E731
        h[80:112] = hashlib.sha256(field(b"hcache chunk", h[112:144]) + field(b"tokens", h[176:176 + 4 * n])).digest()


def change_header(r, folder):
    path = os.path.join(folder, "seg-000000.hc")
    with open(path, "r+b") as f:
        segment = bytearray(f.read())
        at = r.choice(headers(segment))
        h = segment[at:at + BLOCK]
        if r.random() < 0.5:
            change(r, h, *r.choice(HEADER))
            seal_key(r, h)
        else:
            n = struct.unpack_from("<H", h, 74)[0]
            o, size = r.choice(RECORD)
            change(r, h, TABLE + ENTRY * r.randrange(n) + o, size)
        seal_header(h)
        f.seek(at)
        f.write(h)
    if r.random() < 0.6:
        os.unlink(os.path.join(folder, "index.db"))


def update(folder, what):
    """Lets `what` change the index, and makes the sums in `meta` right again unless it changed those."""
    db = sqlite3.connect(os.path.join(folder, "index.db"))
    keep_meta = what(db)
    meta = bytearray(db.execute("SELECT row FROM meta").fetchone()[0])
    if not keep_meta:
        rows = [row for row, in db.execute("SELECT row FROM extent")]
        struct.pack_into("<QQ", meta, 48, len(rows), sum(struct.unpack_from("<Q", row)[0] for row in rows) % (1 << 64))
    meta[:8] = checksum(meta[8:])
    db.execute("UPDATE meta SET row = ?", (bytes(meta),))
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def change_meta(r, folder):
    def what(db):
        meta = bytearray(db.execute("SELECT row FROM meta").fetchone()[0])
        change(r, meta, *r.choice(META))
        db.execute("UPDATE meta SET row = ?", (bytes(meta),))
        return True
    update(folder, what)


def change_row(r, folder):
    def what(db):
        number, row = r.choice(db.execute("SELECT id, row FROM extent").fetchall())
        row = bytearray(row)
        change(r, row, *r.choice(ROW))
        row[:8] = checksum(row[8:])
        db.execute("UPDATE extent SET row = ? WHERE id = ?", (bytes(row), number))
        new = struct.unpack_from("<q", row, 8)[0]
        if new != number and r.random() < 0.5:  # the row's own number, too
            db.execute("UPDATE OR REPLACE extent SET id = ? WHERE id = ?", (new, number))
    update(folder, what)


def change_table(r, folder):
    def what(db):
        number, tab = r.choice(db.execute("SELECT id, tab FROM record").fetchall())
        tab = bytearray(tab[:-8])
        o, size = r.choice(RECORD)
        change(r, tab, ENTRY * r.randrange(len(tab) // ENTRY) + o, size)
        seal = xxh(bytes(tab), len(tab)) ^ number * 0x9e3779b97f4a7c15 % (1 << 64)
        db.execute("UPDATE record SET tab = ? WHERE id = ?", (bytes(tab) + struct.pack("<Q", seal), number))
    update(folder, what)


def change_wipe(r, folder):
    def what(db):
        row = bytearray(40)
        row[8:34] = struct.pack("<QQIIH", 1 << 20, r.randrange(64) * BLOCK, 0, r.randrange(1, 4), 0)
        change(r, row, *r.choice(WIPE))
        row[:8] = checksum(row[8:])
        db.execute("INSERT INTO wipe VALUES(?, ?)", (struct.unpack_from("<q", row, 8)[0], bytes(row)))
    update(folder, what)


def change_owed(r, folder):
    with open(os.path.join(folder, "seg-000000.hc"), "rb") as f:
        segment = f.read()
    with open(os.path.join(folder, "erase.owed"), "wb") as f:
        for _ in range(r.randrange(1, 4)):
            at = r.choice(headers(segment))
            e = bytearray(64)
            e[8:12] = struct.pack("<I", r.choice([1, 1, 2, 0, 3, 1 << 31]))
            e[16:24] = struct.pack("<Q", r.choice([0, 1, 1 << 63, r.randrange(1 << 64)]))
            e[24:56] = segment[at + 80:at + 112] if r.random() < 0.7 else r.randbytes(32)
            e[:8] = checksum(e[8:])
            f.write(e)
        f.write(r.randbytes(r.choice([0, 0, 1, 63])))


KINDS = {"superblock": change_superblock, "header": change_header, "meta": change_meta, "row": change_row, "table": change_table,
         "wipe": change_wipe, "owed": change_owed}
WEIGHTS = [1, 5, 1, 4, 4, 1, 1]


def program(hc, *args):
    """Returns the status (124: it hangs) and what was printed."""
    env = {**os.environ, "ASAN_OPTIONS": "exitcode=66", "UBSAN_OPTIONS": "halt_on_error=1:exitcode=66", "HCACHE_DRAM": "0"}
    try:
        p = subprocess.run([hc, *args], capture_output=True, text=True, errors="replace", timeout=300, env=env)
        return p.returncode, p.stdout, p.stderr
    except subprocess.TimeoutExpired as e:
        return 124, "", str(e)


def run(hc, folder, pack):
    return program(hc, "run", "models/demo", "--threads", "1", "--plan", "kv", "--pack", pack, "--dtype", "bf16", "-p", PROMPT,
                   "--max-tokens", "6", "--temperature", "0", "--ignore-eos", "--json", *(["--store", folder] if folder else []))


def judge(hc, folder, pack, want):
    """Returns what became of the store: restored, computed, refused, or a finding."""
    ends = []
    said = program(hc, "store", "verify", folder)
    if said[0] not in (0, 1, 2):
        return ENDS.get(said[0], f"verify ends with {said[0]}"), said[2]
    for _ in range(2):
        status, out, err = run(hc, folder, pack)
        if status in (1, 2) and err.strip():
            ends.append("refused")
            continue
        if status != 0:
            return ENDS.get(status, f"a run ends with {status}"), err
        o = json.loads(out)
        if (o["token_ids"], o["logits_digest"]) != want:
            return "another answer", out
        ends.append("restored" if o["cached_tokens"] > 0 else "computed")
    return ends[-1], ""


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("build")
    a.add_argument("--count", type=int, default=1088)
    a.add_argument("--seconds", type=float, default=1e9)
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    hc, kept = os.path.join(a.build, "hcache"), os.path.join("build", "hostile")
    tmp = tempfile.mkdtemp(prefix="hcache-hostile.")
    want, good = {}, {}
    for pack in ("on", "off"):
        good[pack] = os.path.join(tmp, pack)
        o = json.loads(run(hc, None, pack)[1])
        want[pack] = (o["token_ids"], o["logits_digest"])
        for _ in range(2):
            o = json.loads(run(hc, good[pack], pack)[1])
        if o["cached_tokens"] == 0 or (o["token_ids"], o["logits_digest"]) != want[pack]:
            sys.exit("the undamaged store is not restored")
    end, n, ends, findings = time.time() + a.seconds, 0, collections.Counter(), []
    while n < a.count and time.time() < end:
        r = random.Random(a.seed * 1000003 + n)
        pack, kind = r.choice(("on", "off")), r.choices(list(KINDS), WEIGHTS)[0]
        folder = os.path.join(tmp, "case")
        shutil.copytree(good[pack], folder)
        KINDS[kind](r, folder)
        harmed = os.path.join(tmp, "harmed")
        shutil.copytree(folder, harmed)
        what, why = judge(hc, folder, pack, want[pack])
        ends[kind, what] += 1
        if what not in ("restored", "computed", "refused"):
            findings.append(n)
            shutil.copytree(harmed, os.path.join(kept, f"{a.seed}-{n}"), dirs_exist_ok=True)
            print(f"case {n}, {kind}, --pack {pack}: {what}\n{why[-2000:]}", flush=True)
        shutil.rmtree(folder)
        shutil.rmtree(harmed)
        n += 1
    shutil.rmtree(tmp)
    for kind in KINDS:
        print(kind + ": " + ", ".join(f"{k} {v}" for (x, k), v in sorted(ends.items()) if x == kind))
    print(f"{n} cases, seed {a.seed}: " + ", ".join(f"{w} {sum(v for (_, k), v in ends.items() if k == w)}" for w in
                                                     sorted({k for _, k in ends})))
    sys.exit(bool(findings))


main()
