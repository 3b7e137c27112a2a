#!/usr/bin/env python3
"""The damage campaign: damaged models and tokenizers must either be refused or be used; anything
else is a finding.

  tools/damage.py BUILD [--count N] [--seconds S] [--seed N] [--only KIND,...]

Each case damages one file of a small model, by its seed: bits, spans and lengths anywhere, or
fields of the format (the numbers, names and types of a GGUF file, of a safetensors header, of a
packed file's description with right checksums, of config.json and tokenizer.json).  Then the
program of BUILD loads the model, tokenizes and generates.  A finding is a status other than 0, 1
and 2, a report of a sanitizer, a run that takes too long, or one that takes much more memory than
the undamaged model.  Findings stay in build/damage/broken, each with its seed.

Without --count and --seconds there are 2,000 cases.  `make damage` runs it on the build with ASan
and UBSan."""
import argparse
import copy
import ctypes
import ctypes.util
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FAMILIES = os.path.join(ROOT, "tests/model/golden/families")
GGUFS = os.path.join(ROOT, "tests/model/golden/gguf")
TOKENIZERS = os.path.join(ROOT, "tests/model/golden")
BROKEN = os.path.join(ROOT, "build/damage/broken")
# Limit of one run.  An undamaged model takes half a second under the sanitizers; the limit allows
# for a busy machine.
SECONDS = 120
# Bytes of memory that a run may take beyond the undamaged model's. The sanitizers' own memory grows
# with each allocation.
MORE_BYTES = 768 << 20
TEXT = ("Once upon a time. \u00a0\u200d naïve 日本 \U0001f469\u200d\U0001f467 <|user|> \t\r\n 12345 don't\n"
        + "ab" * 2000 + " " * 500 + "\x00 end")

NUMBERS = [0, 1, -1, 2, 7, 127, 255, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1,
           2**63, 2**64 - 1, 2**64, 10**30, 0.5, -0.0, 1e308, 1e-308]
PATTERNS = ["(a+)+$", "a+b|a", "(?:a|aa)+$", "(?i:'s)|", "\\p{L}{1000}", "(?<=a)b", "(", "[", "\\", "", ".", "^", "\\s+(?!\\S)",
            "(?:(?:a{0,30}){0,30}){0,30}b", "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", "\\x{110000}", "\\1", "(?R)", "(*COMMIT)a"]


# --- bytes --------------------------------------------------------------------------------------------------------

def harm_bytes(r, data):
    """Damages bits, spans and lengths anywhere."""
    data = bytearray(data)
    if data and r.random() < 0.3:
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
        return bytes(data)
    for _ in range(r.choice([1, 1, 1, 2, 8])):
        n = len(data)
        if n == 0:
            break
        at = min(r.choice([r.randrange(n), r.randrange(min(n, 4096)), r.randrange(min(n, 64))]), n - 1)
        span = min(r.choice([1, 2, 4, 8, 64, 4096]), n - at)
        how = r.randrange(9)
        if how <= 1:
            for _ in range(r.choice([1, 1, 3, 64])):
                data[r.randrange(n)] ^= 1 << r.randrange(8)
        elif how == 2:
            data[at] ^= 1 << r.randrange(8)
        elif how == 3:
            data[at:at + span] = r.randbytes(span)
        elif how == 4:
            data[at:at + span] = bytes([r.choice([0, 0xff, 0x7f, 0x80])]) * span
        elif how == 5:
            del data[at:]
        elif how == 6:
            del data[at:at + span]
        elif how == 7:
            data[at:at] = data[at:at + span] * r.choice([1, 2, 100])
        else:
            data += r.randbytes(r.choice([1, 4096]))
    return bytes(data)


# --- JSON ---------------------------------------------------------------------------------------------------------

def places(value, out, limit):
    """Returns (container, key) of the values, shallow ones first."""
    queue = [value]
    while queue and len(out) < limit:
        v = queue.pop(0)
        for k in (list(v) if isinstance(v, dict) else range(len(v)) if isinstance(v, list) else ()):
            out.append((v, k))
            if isinstance(v[k], (dict, list)):
                queue.append(v[k])
    return out


def odd_value(r, old):
    if isinstance(old, bool) or old is None:
        return r.choice([None, True, False, 1, "true", {}, []])
    if isinstance(old, (int, float)):
        return r.choice([r.choice(NUMBERS), r.choice(NUMBERS), old + r.choice([-1, 1]), old * r.choice([2, 1000, -1]),
                         str(old), None, [old], {"x": old}])
    if isinstance(old, str):
        return r.choice([r.choice(PATTERNS), r.choice(PATTERNS), "", old + old, old[:-1], "x" * 100000, "\u0000" + old, "\ud800",
                         old.upper(), "../" + old, "\u00e9" * 300, 7, None, [old], {"String": old}, {"Regex": r.choice(PATTERNS)}])
    return r.choice([None, 0, "", [], {}, [copy.deepcopy(old)], [[]] * 1000])


def nest(r, old):
    for _ in range(r.choice([10, 100, 400])):
        old = [old] if r.random() < 0.5 else {"a": old}
    return old


def harm_json(r, value):
    """Replaces some values. Returns the changed Python value, which may be a new object."""
    for _ in range(r.choice([1, 1, 1, 2, 5])):
        all_places = places(value, [], 20000)
        if not all_places:
            return value
        # Most of the damage goes to the top levels: in a tokenizer nearly all places are entries of
        # the vocabulary.
        some = all_places[:60] if r.random() < 0.7 else all_places
        box, key = r.choice(some)
        how = r.randrange(10)
        if how <= 4:
            box[key] = odd_value(r, box[key])
        elif how == 5:
            del box[key]
        elif how == 6:
            other, k = r.choice(all_places)
            box[key] = copy.deepcopy(other[k])
        elif how == 7:
            if isinstance(box, list):
                box[key:key] = [copy.deepcopy(box[key])] * r.choice([1, 2, 1000])
            else:
                box[str(key) + r.choice(["", "x", "\u0000"])] = copy.deepcopy(box[key])
        elif how == 8:
            if isinstance(box, list):
                r.shuffle(box)
            else:
                box[key] = odd_value(r, box[key])
        elif len(json.dumps(box[key])) < 10000:
            box[key] = nest(r, box[key])
    return value


def dump(value):
    return json.dumps(value).encode()


def harm_json_file(r, data):
    if r.random() < 0.15:
        return harm_bytes(r, data)
    text = dump(harm_json(r, json.loads(data)))
    if r.random() < 0.05:  # one key occurs twice
        text = text.replace(b'{"', b'{"model": 1, "', 1)
    return text


# --- safetensors ----------------------------------------------------------------------------------------------------

def harm_safetensors(r, data):
    if r.random() < 0.3:
        return harm_bytes(r, data)
    n = struct.unpack("<Q", data[:8])[0]
    header, rest = json.loads(data[8:8 + n]), data[8 + n:]
    if r.random() < 0.5:
        name = r.choice([k for k in header if k != "__metadata__"])
        t = header[name]
        how = r.randrange(6)
        if how == 0:
            t["data_offsets"][r.randrange(2)] = r.choice(NUMBERS)
        elif how == 1:
            t["shape"] = [r.choice(NUMBERS) for _ in range(r.choice([0, 1, 2, 3, 9]))]
        elif how == 2:
            t["shape"][r.randrange(len(t["shape"]))] = r.choice(NUMBERS)
        elif how == 3:
            t["dtype"] = r.choice(["F32", "BF16", "F16", "F64", "I64", "BOOL", "F8_E4M3", "U4", ""])
        elif how == 4:
            t["data_offsets"] = list(header[r.choice([k for k in header if k != "__metadata__"])]["data_offsets"])
        else:
            header[name + ".x"] = header.pop(name)
    else:
        header = harm_json(r, header)
    text = dump(header)
    length = len(text) if r.random() < 0.9 else r.choice([len(text) + 1, len(text) - 1, 0, 2**63, 2**64 - 8])
    return struct.pack("<Q", length) + text + rest


# --- GGUF -----------------------------------------------------------------------------------------------------------

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def gguf_fields(data):
    """Returns (offset, bytes) of every number before the tensors."""
    out = [(4, 4), (8, 8), (16, 8)]
    n_tensors, n_pairs = struct.unpack_from("<QQ", data, 8)
    at = 24

    def text(at):
        out.append((at, 8))
        return at + 8 + struct.unpack_from("<Q", data, at)[0]

    def value(kind, at):
        if kind == 8:
            return text(at)
        if kind == 9:
            of, n = struct.unpack_from("<IQ", data, at)
            out.append((at, 4))
            out.append((at + 4, 8))
            at += 12
            for _ in range(n):
                at = value(of, at)
            return at
        out.append((at, SCALARS[kind]))
        return at + SCALARS[kind]

    for _ in range(n_pairs):
        at = text(at)
        out.append((at, 4))
        at = value(struct.unpack_from("<I", data, at)[0], at + 4)
    for _ in range(n_tensors):
        at = text(at)
        n_dims = struct.unpack_from("<I", data, at)[0]
        out += [(at, 4)] + [(at + 4 + 8 * i, 8) for i in range(n_dims)] + [(at + 4 + 8 * n_dims, 4), (at + 8 + 8 * n_dims, 8)]
        at += 16 + 8 * n_dims
    return out


def harm_gguf(r, data):
    if r.random() < 0.3:
        return harm_bytes(r, data)
    fields = gguf_fields(data)
    data = bytearray(data)
    for _ in range(r.choice([1, 1, 1, 2, 6])):
        # Fields at the beginning and at the end are drawn more often, because most fields are texts
        # of the vocabulary.
        at, n = r.choice(r.choice([fields, fields[:120], fields[-200:]]))
        old = int.from_bytes(data[at:at + n], "little")
        new = r.choice([r.choice([v for v in NUMBERS if isinstance(v, int)]), old + r.choice([-1, 1, 32, 4096]), old * 2, old // 2,
                        r.getrandbits(8 * n), r.randrange(16)])
        data[at:at + n] = (new & ((1 << 8 * n) - 1)).to_bytes(n, "little")
    return bytes(data)


# --- packed files -----------------------------------------------------------------------------------------------------

def xxh3():
    lib = ctypes.CDLL(ctypes.util.find_library("xxhash") or sys.exit("damage.py: libxxhash is missing"))
    lib.XXH3_64bits.restype = ctypes.c_uint64
    lib.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return lambda data: lib.XXH3_64bits(bytes(data), len(data))


def sign_packed(data, text=None):
    """Updates the checksums of header and description (docs/PACKED_FORMAT.md)."""
    hash_of = xxh3()
    if text is not None:
        data[4096:4096 + len(text)] = text
        struct.pack_into("<QQ", data, 24, len(text), hash_of(text))
    struct.pack_into("<Q", data, 4088, hash_of(data[:4088]))
    return bytes(data)


def harm_packed(r, data):
    how = r.random()
    if how < 0.25:
        return harm_bytes(r, data)
    data = bytearray(data)
    n_text = struct.unpack_from("<Q", data, 24)[0]
    if how < 0.4:
        at, n = r.choice([(8, 4), (16, 8), (24, 8), (40, 8), (48, 8), (r.randrange(4088), 1)])
        old = int.from_bytes(data[at:at + n], "little")
        new = r.choice([r.choice([v for v in NUMBERS if isinstance(v, int)]), old + r.choice([-1, 1, 4096]), old * 2, r.getrandbits(8 * n)])
        data[at:at + n] = (new & ((1 << 8 * n) - 1)).to_bytes(n, "little")
        return sign_packed(data)
    description = json.loads(data[4096:4096 + n_text])
    if how < 0.6:  # a member is damaged, and the checksum is corrected
        member = r.choice(description["files"])
        at, n = member["at"], member["bytes"]
        old = bytes(data[at:at + n])
        new = (harm_json_file(r, old) if member["name"].endswith(".json") else harm_bytes(r, old))
        new = new[:n] if len(new) > n else new
        data[at:at + len(new)] = new
        member["bytes"] = len(new)
        member["checksum"] = f"{xxh3()(new):016x}"
    else:
        description = harm_json(r, description)
    text = dump(description)
    room = min([f["at"] for f in json.loads(data[4096:4096 + n_text])["files"]]) - 4096
    return sign_packed(data, text) if len(text) <= room else sign_packed(data, text[:room])


# --- cases ------------------------------------------------------------------------------------------------------------

def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


class Campaign:
    def __init__(self, args):
        self.hc = os.path.abspath(os.path.join(args.build, "hcache"))
        self.tmp = tempfile.mkdtemp(prefix="hcache-damage.")
        self.families = [os.path.join(FAMILIES, n) for n in sorted(os.listdir(FAMILIES))]
        self.ggufs = [os.path.join(GGUFS, n) for n in sorted(os.listdir(GGUFS)) if n.endswith(".gguf") and "split" not in n]
        self.ggufs.append(self.demo_gguf())
        six = os.path.join(GGUFS, "six.gguf")  # the program holds it as q4 and as q6_k
        self.packed = [self.pack(f) for f in self.families + [six, os.path.join(ROOT, "models/demo")]]
        self.tokenizers = [os.path.join(TOKENIZERS, n) for n in sorted(os.listdir(TOKENIZERS))
                           if os.path.isfile(os.path.join(TOKENIZERS, n, "tokenizer.json"))]
        self.sound = self.run(["run", os.path.join(ROOT, "models/demo"), "-p", "Once", *RUN])
        if self.sound.rc != 0:
            sys.exit(f"damage.py: the sound model does not run: {self.sound.err}")

    def demo_gguf(self):
        sys.path.insert(0, os.path.join(ROOT, "tools/golden"))
        import hf_to_gguf  # pylint: disable=import-outside-toplevel
        path = os.path.join(self.tmp, "demo.gguf")
        hf_to_gguf.convert(os.path.join(ROOT, "models/demo"), path)
        return path

    def pack(self, folder):
        path = os.path.join(self.tmp, os.path.basename(folder) + ".packed")
        subprocess.run([self.hc, "model", "pack", folder, "--out", path], check=True, stdout=subprocess.DEVNULL)
        return path

    def make(self, kind, r, where):
        """Writes the damaged model into the empty directory `where`, and returns its path."""
        if kind == "gguf":
            path = os.path.join(where, "m.gguf")
            write(path, harm_gguf(r, read(r.choice([self.ggufs[-1], r.choice(self.ggufs)]))))
            return path
        if kind == "packed":
            path = os.path.join(where, "m.packed")
            write(path, harm_packed(r, read(r.choice([self.packed[-1], r.choice(self.packed)]))))
            return path
        source = r.choice(self.families) if kind == "safetensors" else os.path.join(ROOT, "models/demo")
        path = os.path.join(where, "model")
        shutil.copytree(source, path)
        if kind == "tokenizer":
            # otherwise the tokenizer of the demo model, with its chat template
            if r.random() < 0.7:
                shutil.copytree(r.choice(self.tokenizers), path, dirs_exist_ok=True)
            name = r.choice(["tokenizer.json"] * 8 + ["tokenizer_config.json", "generation_config.json"])
            write(os.path.join(path, name), harm_json_file(r, read(os.path.join(path, name))))
        elif r.random() < 0.3:
            name = os.path.join(path, "config.json")
            write(name, harm_json_file(r, read(name)))
        else:
            name = r.choice([n for n in sorted(os.listdir(path)) if n.endswith(".safetensors")])
            name = os.path.join(path, name)
            write(name, harm_safetensors(r, read(name)))
        return path

    def run(self, words, given=b""):
        return Run([self.hc, *words], given, self.tmp)

    def judge(self, kind, model):
        """Runs the program with the model.  Returns (number of runs, the finding or None)."""
        runs = []
        if kind != "safetensors":
            runs.append(self.run(["tokenize", model], TEXT.encode()))
            ids = b"1 2 3 " + b" ".join(b"%d" % i for i in range(0, 600, 7))
            runs.append(self.run(["tokenize", model, "--decode"], ids))
        ids_path = os.path.join(self.tmp, "ids")
        write(ids_path, b"1 2 3 4 5 6 7 8 9 10")
        source = ["-p", "Once upon a time"] if kind == "tokenizer" else ["--token-ids", ids_path]
        if kind == "tokenizer" and os.path.getsize(os.path.join(model, "tokenizer.json")) % 2:
            source.append("--raw")  # alternates with the chat template
        runs.append(self.run(["run", model, *source, *RUN]))
        for p in runs:
            if p.finding(self.sound):
                return runs, p.finding(self.sound)
        return runs, None


RUN = ["--max-tokens", "3", "--temperature", "0", "--threads", "1", "--max-context", "128", "--ignore-eos"]


class Run:
    """One run of the program: its status, its messages, its time and its peak memory."""

    def __init__(self, words, given, tmp):
        with open(os.path.join(tmp, "in"), "w+b") as source, open(os.path.join(tmp, "err"), "w+b") as err:
            source.write(given)
            source.seek(0)
            options = {"ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
            p = subprocess.Popen(words, stdin=source, stdout=subprocess.DEVNULL, stderr=err, env={**os.environ, **options})
            begin = time.monotonic()
            pid = 0
            while pid == 0 and time.monotonic() - begin < SECONDS:
                pid, status, usage = os.wait4(p.pid, os.WNOHANG)
                time.sleep(0 if pid else 0.005)
            self.hangs = pid == 0
            if self.hangs:
                p.kill()
                _, status, usage = os.wait4(p.pid, 0)
            p.returncode = self.rc = os.waitstatus_to_exitcode(status)
            self.seconds = time.monotonic() - begin
            self.bytes = usage.ru_maxrss * 1024
            self.words = words
            err.seek(0)
            self.err = err.read().decode(errors="replace")

    def finding(self, sound):
        if self.hangs:
            return f"takes longer than {SECONDS} s"
        if "Sanitizer" in self.err or "runtime error" in self.err:
            return "sanitizer: " + self.err[:3000]
        if self.rc not in (0, 1, 2):
            return f"status {self.rc}: {self.err[:2000]}"
        if self.rc != 0 and not self.err.strip():
            return f"status {self.rc} without a message"
        if self.bytes > sound.bytes + MORE_BYTES:
            return f"takes {self.bytes >> 20} MiB, the sound model {sound.bytes >> 20}"
        return None


KINDS = ["packed", "gguf", "safetensors", "tokenizer"]


def campaign(c, args):
    table = {k: {"cases": 0, "used": 0, "refused": 0, "broken": 0, "longest s": 0.0, "peak MiB": 0} for k in KINDS}
    only = args.only.split(",") if args.only else KINDS
    begin, n = time.monotonic(), 0
    while n < args.count and (args.seconds == 0 or time.monotonic() - begin < args.seconds):
        seed = args.seed + n
        kind = only[n % len(only)]
        where = tempfile.mkdtemp(dir=c.tmp)
        model = c.make(kind, random.Random(f"{kind} {seed}"), where)
        runs, finding = c.judge(kind, model)
        row = table[kind]
        row["cases"] += 1
        row["used" if runs[-1].rc == 0 else "refused"] += 1
        row["longest s"] = max([row["longest s"]] + [p.seconds for p in runs])
        row["peak MiB"] = max([row["peak MiB"]] + [p.bytes >> 20 for p in runs])
        if finding:
            row["broken"] += 1
            kept = os.path.join(BROKEN, f"{kind}-{seed}")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(where, kept)
            write(os.path.join(kept, "finding"), finding.encode())
            print(f"{kind}, seed {seed}: {finding[:1500]}\n  kept in {os.path.relpath(kept, ROOT)}", flush=True)
        shutil.rmtree(where)
        n += 1
        if n % 200 == 0:
            print(f"{n} cases in {time.monotonic() - begin:.0f} s", flush=True)
    return table


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--count", type=int, default=0)
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    args = p.parse_args()
    if args.count == 0:
        args.count = 2000 if args.seconds == 0 else 10**9
    sys.setrecursionlimit(50000)  # values may be nested deeply
    os.makedirs(BROKEN, exist_ok=True)
    c = Campaign(args)
    try:
        table = campaign(c, args)
    finally:
        shutil.rmtree(c.tmp, ignore_errors=True)
    columns = list(table[KINDS[0]])
    print(f"{'':12}" + "".join(f"{name:>11}" for name in columns))
    for kind, row in table.items():
        print(f"{kind:12}" + "".join(f"{row[k]:>11.1f}" if isinstance(row[k], float) else f"{row[k]:>11}" for k in columns))
    sys.exit(any(row["broken"] for row in table.values()))


main()
