"""Compares hcache with llama.cpp: speed, and the error of 8-bit weights, on the same machine in the
same run.

  compare.py [--threads 2] [--llama DIR] speed [--rounds 3] [--file F.gguf]      F, or bench-220m, random weights
  compare.py kl MODEL_DIR TEXT [--context 512] [--windows 20]    a llama checkpoint with a tokenizer

Build llama.cpp with build.sh first (DIR: .venv/llama).  `speed` alternates between the programs,
round after round, and prints medians: prefill of 512 tokens, and decoding of 64 after an empty
context (hcache: after one token) and after 512 tokens, with bf16 and q8, or with F's own types.  Each is preceded by a
warm-up run that does not count.  --csv FILE adds every round to FILE, with the versions that ran.
"""
import argparse
import csv
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--llama", default=os.path.join(ROOT, ".venv", "llama"))
parser.add_argument("--hcache", default=os.path.join(ROOT, "build", "hcache"))
parser.add_argument("--threads", type=int, default=2)
commands = parser.add_subparsers(dest="command", required=True)
speed_args = commands.add_parser("speed")
speed_args.add_argument("--rounds", type=int, default=3)
speed_args.add_argument("--file", help="a GGUF file that both run, held as it is")
speed_args.add_argument("--csv", help="add a row per round, weights and program to this file")
speed_args.add_argument("--bench", help="the llama-bench to run, instead of DIR's")
speed_args.add_argument("--no-repack", action="store_true", help="llama.cpp without AMX and repacked weights")
kl_args = commands.add_parser("kl")
kl_args.add_argument("model")
kl_args.add_argument("text")
kl_args.add_argument("--context", type=int, default=512)
kl_args.add_argument("--windows", type=int, default=20)
args = parser.parse_args()
python = os.path.join(args.llama, "venv", "bin", "python")


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{words[0]}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def gguf(model, name, dtype):
    """Returns the path of the checkpoint as GGUF. llama.cpp itself makes q8_0 from bf16."""
    path = os.path.join(args.llama, f"{name}-{dtype}.gguf")
    if dtype == "q8_0":
        run(os.path.join(args.llama, "build/bin/llama-quantize"), gguf(model, name, "bf16"), path, "q8_0")
    else:
        run(python, os.path.join(HERE, "to_gguf.py"), model, path, "--dtype", dtype)
    return path


def llama_speed(path):
    """Returns (prefill, decode, decode after 512 tokens) and the version that ran."""
    bench = args.bench or os.path.join(args.llama, "build/bin/llama-bench")
    extra = ["--repack", 0] if args.no_repack else []
    out = json.loads(run(bench, "-m", path, "-t", args.threads, "-p", 512, "-n", 64, "-d", "0,512", "-r", 1, "-o", "json",
                         *extra))
    ran = f"{os.path.basename(bench)} {out[0]['build_commit']}" + (" without repacking" if args.no_repack else "")
    return tuple(next(t["avg_ts"] for t in out if t[work] > 0 and t["n_depth"] == depth)
                 for work, depth in (("n_prompt", 0), ("n_gen", 0), ("n_gen", 512))), ran


def hcache_speed(model, prompts, weights):
    """Measures hcache like llama_speed. The last two prompts are a long and a short one. The first one
    warms up, as in llama-bench. Guesses, which need text that repeats itself, are off, as they are there."""
    timings = []
    server = subprocess.Popen([args.hcache, "serve", model, "--port", "0", "--no-reuse", "--max-sequences", "1", "--threads",
                               str(args.threads), "--weights", weights, "--speculate", "off"], stderr=subprocess.PIPE, text=True)
    try:
        url = next(m[1] for m in (re.search(r"ready at (http://\S+)", line) for line in server.stderr) if m)
        for ids in prompts:
            body = {"prompt": ids, "max_tokens": 64, "ignore_eos": True, "temperature": 0}
            ask = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
            timings.append(json.load(urllib.request.urlopen(ask))["timings"])
    finally:
        server.terminate()
        server.wait()
    long, short = timings[-2:]
    ran = f"{run(args.hcache, '--version').strip()} {os.environ.get('HCACHE_ISA', 'native')}"
    return (long["prefilled_tokens"] * 1e3 / long["prefill_ms"], short["decode_tokens_per_s"],
            long["decode_tokens_per_s"]), ran


CSV_HEADER = ["program", "weights", "threads", "round", "prefill_tokens_per_s", "decode_tokens_per_s",
              "decode_behind_512_tokens_per_s"]


def csv_open(path):
    """Opens the CSV file to add rows: a new file, or one that this program has written before."""
    file = open(path, "a+", newline="")
    file.seek(0)
    header = file.readline().strip()
    if header == "":
        csv.writer(file).writerow(CSV_HEADER)
    elif header != ",".join(CSV_HEADER):
        sys.exit(f"{path}: not a file of compare.py speed: it begins with {header!r}; give another --csv")
    return file


def speed():
    rows = csv_open(args.csv) if args.csv else None
    model = args.file or os.path.join(args.llama, "bench-220m")
    if not os.path.exists(model):
        run(args.hcache, "model", "synth", "--shape", "bench-220m", "--dtype", "bf16", "--out", model)
    held = {"file": "checkpoint"} if args.file else {"bf16": "checkpoint", "q8_0": "q8"}
    files = {d: args.file or os.path.join(args.llama, f"bench-220m-{d}.gguf") for d in held}
    for dtype, path in files.items():
        if not os.path.exists(path):
            gguf(model, "bench-220m", dtype)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, 3000 if args.file else 32000) for _ in range(n)] for n in (512, 512, 1)]
    seen = {}
    for i in range(args.rounds):
        for dtype, weights in held.items():
            for who, measured in (("llama.cpp", lambda: llama_speed(files[dtype])),
                                  ("hcache", lambda: hcache_speed(model, prompts, weights))):
                speeds, ran = measured()
                seen.setdefault((dtype, who), []).append(speeds)
                if rows:
                    csv.writer(rows).writerow([ran, dtype, args.threads, i + 1, *(f"{x:.1f}" for x in speeds)])
                    rows.flush()
    print(f"{'':6} {'tokens/s':18} {'llama.cpp':>10} {'hcache':>10} {'ratio':>6}")
    for dtype in held:
        for i, what in enumerate(("prefill", "decode, empty", "decode behind 512")):
            a, b = (statistics.median(r[i] for r in seen[dtype, who]) for who in ("llama.cpp", "hcache"))
            print(f"{dtype:6} {what:18} {a:10.1f} {b:10.1f} {b / a:6.2f}")


def kl():
    name = re.sub(r"\W", "-", os.path.basename(os.path.normpath(args.model)))
    with tempfile.TemporaryDirectory() as tmp:
        kept = {}
        for state in ("f32", "bf16"):
            for weights in ("checkpoint", "q8"):
                kept["hcache", state, weights] = out = os.path.join(tmp, f"hcache-{state}-{weights}")
                run(args.hcache, "ppl", args.model, args.text, "--context", args.context, "--max-windows", args.windows,
                    "--dtype", state, "--weights", weights, "--logits-out", out)
        for dtype in ("f32", "bf16", "q8_0"):
            kept["llama.cpp", dtype] = out = os.path.join(tmp, f"llama-{dtype}")
            run(os.path.join(args.llama, "logits"), gguf(args.model, name, dtype),
                kept["hcache", "f32", "checkpoint"], out, args.threads)
        for a, b in ((("hcache", "f32", "checkpoint"), ("llama.cpp", "f32")),
                     (("hcache", "f32", "checkpoint"), ("hcache", "f32", "q8")),
                     (("hcache", "f32", "checkpoint"), ("hcache", "bf16", "q8")),
                     (("hcache", "bf16", "checkpoint"), ("hcache", "bf16", "q8")),
                     (("llama.cpp", "f32"), ("llama.cpp", "q8_0")),
                     (("llama.cpp", "bf16"), ("llama.cpp", "q8_0"))):
            result = run(python, os.path.join(HERE, "kl.py"), kept[a], kept[b]).strip()
            print(f"KL({' '.join(a):24} || {' '.join(b):18}) {result}", flush=True)


{"speed": speed, "kl": kl}[args.command]()
