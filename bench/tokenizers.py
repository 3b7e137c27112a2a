"""The speed of encoding text, in MB/s of one core, for every tokenizer in the given folders.

  tokenizers.py [--hcache build/hcache] [--mb 20] [--rounds 3] FOLDER...

The text is this repository's documents (English, with tables and code), repeated.  Each run is
`hcache tokenize --count` on one core; the processor time of a run without text (start-up, reading
the tokenizer) is subtracted.  A folder with only Llama-2's tokenizer.model is measured in its
tokenizer.json form: the pieces become a vocabulary, and every split of a piece into two others
becomes a merge, in order of pieces; the rest is that of tests/model/golden/llama2-like."""
import argparse
import glob
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--hcache", default=os.path.join(ROOT, "build", "hcache"))
parser.add_argument("--mb", type=int, default=20)
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("folders", nargs="+", metavar="FOLDER")
args = parser.parse_args()


def fields(buf):
    """Yields the fields of a protocol buffer message as (field number, value). A value is a number
    or bytes."""
    i = 0

    def varint():
        nonlocal i
        value = shift = 0
        while True:
            byte = buf[i]
            i += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while i < len(buf):
        key = varint()
        kind = key & 7
        n = {0: 0, 1: 8, 5: 4}.get(kind)
        if n is None:
            n = varint()
        value = varint() if kind == 0 else buf[i:i + n]
        i += n
        yield key >> 3, value


def pieces_of(path):
    """Returns the pieces of a tokenizer.model in order of their ids. In the file, field 1 is a
    repeated message, whose own field 1 is the piece."""
    with open(path, "rb") as f:
        return [dict(fields(value))[1].decode() for number, value in fields(f.read()) if number == 1]


def as_tokenizer_json(model, folder):
    pieces = pieces_of(model)
    ids = {p: i for i, p in enumerate(pieces)}
    merges = [(max(ids[p[:i]], ids[p[i:]]), p[:i], p[i:], ids[p]) for p in pieces for i in range(1, len(p))
              if p[:i] in ids and p[i:] in ids]
    merges.sort(key=lambda m: (m[3], m[0]))
    with open(os.path.join(ROOT, "tests/model/golden/llama2-like/tokenizer.json"), encoding="utf-8") as f:
        form = json.load(f)
    form["model"]["vocab"] = ids
    form["model"]["merges"] = [[a, b] for _, a, b, _ in merges]
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(form, f, ensure_ascii=False)
    return folder


def processor_seconds(folder, text):
    """Returns the processor seconds of one run, and the number of ids."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([args.hcache, "tokenize", folder, "--count"], input=text, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(done.stderr.decode().strip())
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, int(done.stdout)


def measure(name, folder, text):
    rates = []
    for _ in range(args.rounds):
        start, _ = processor_seconds(folder, b"")
        whole, n_ids = processor_seconds(folder, text)
        rates.append(len(text) * 1e-6 / (whole - start))
    print(f"{name:16} {min(rates):7.1f} {statistics.median(rates):7.1f} {max(rates):7.1f} {len(text) / n_ids:9.2f}",
          flush=True)


def english():
    paths = sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))) + [os.path.join(ROOT, "README.md")]
    once = b"".join(open(p, "rb").read() for p in paths)
    return once * (args.mb * 1000000 // len(once) + 1)


text = english()
print(f"{'MB/s':16} {'min':>7} {'median':>7} {'max':>7} {'bytes/id':>9}")
with tempfile.TemporaryDirectory() as tmp:
    for folder in args.folders:
        name = os.path.basename(os.path.normpath(folder))
        model = os.path.join(folder, "tokenizer.model")
        if os.path.exists(model) and not os.path.exists(os.path.join(folder, "tokenizer.json")):
            folder = as_tokenizer_json(model, tmp)
        measure(name, folder, text)
