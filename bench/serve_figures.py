#!/usr/bin/env python3
"""Chats, documents and a trace against servers that differ only in how state is restored: HCache's
Figures 9, 10 and 15 at this machine's scale.

  bench/serve_figures.py --out DIR [--only chats,rates,documents,skew,trace] [--seconds 40]
  [--llama-server FILE --gguf FILE]

  recompute   no store: every turn computes its history again
  kv          KV offload
  auto        hcache with its defaults
  ideal       nothing is ever evicted from the device
  llama       llama-server whose waiting threads do not spin, if both of its options are given

Stores are throttled (--throttle), because a CPU computes so slowly that its disk would not matter.
Guesses are off: random weights repeat themselves.
Except for ideal and llama, servers keep nothing on the device between requests. In `skew` every
server has room for a few documents (LRU), and the skew decides how often the next document is among
them. `rates` are chats at several rates of sessions. State is saved before it is measured:
documents and traces are requested once before, in another order of arrival. Writes
DIR/serve-figures.csv (a line for each run), and DIR/serve-<workload>.csv (a line for each
request)."""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

a = argparse.ArgumentParser()
a.add_argument("--out", required=True)
a.add_argument("--only", default="chats,documents,skew,trace")
a.add_argument("--servers", default="recompute,kv,auto,ideal,llama")
a.add_argument("--program", default="build/hcache")
a.add_argument("--shared", default="../shared", help="where tokenizers/ and traces/ are")
a.add_argument("--model", help="a folder with a tokenizer; default: bench-220m with a cut vocabulary, made anew")
a.add_argument("--store", help="where stores are made; default: beside other temporary files")
a.add_argument("--throttle", default="100M")
a.add_argument("--seconds", type=int, default=40)
a.add_argument("--drain", type=int, default=20)
a.add_argument("--llama-server")
a.add_argument("--gguf", help="the same weights and vocabulary (tools/compare_llama/to_gguf.py --vocabulary)")
a = a.parse_args()

CONTEXT, SEQUENCES = 4096, 8


def words_tokenizer(n):
    """Returns a byte-level tokenizer with n tokens: the bytes, and words of up to four letters behind a
    space. A text of random tokens has these tokens again."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    names = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    vocab, merges = {names[b]: b for b in range(256)}, []
    ends, letters = [names[32]], [chr(c) for c in range(ord("a"), ord("z") + 1)]
    while len(vocab) < n:
        longer = [(word, c) for word in ends for c in letters][: n - len(vocab)]
        merges += [f"{word} {c}" for word, c in longer]
        vocab |= {word + c: len(vocab) + i for i, (word, c) in enumerate(longer)}
        ends = [word + c for word, c in longer]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": byte_level,
            "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": merges}}


def cut_tokenizer(path, n):
    """Returns the first n tokens of a real byte-level tokenizer."""
    with open(path) as f:
        t = json.load(f)
    vocab = t["model"]["vocab"] = {text: i for text, i in t["model"]["vocab"].items() if i < n}
    pairs = (m.split(" ") if isinstance(m, str) else m for m in t["model"]["merges"])
    t["model"]["merges"] = [m for m in pairs if m[0] in vocab and m[1] in vocab and m[0] + m[1] in vocab]
    return t


def make_model(folder):
    """Makes bench-220m with a byte-level vocabulary of as many tokens as the model has rows, so
    that random ids are text: a real one if it lies beside the checkout, else one of made-up words."""
    subprocess.run([a.program, "model", "synth", "--shape", "bench-220m", "--out", folder], check=True)
    with open(os.path.join(folder, "config.json")) as f:
        n_ids = json.load(f)["vocab_size"]
    n, real = n_ids - 2, os.path.join(a.shared, "tokenizers/llama3/tokenizer.json")
    t = cut_tokenizer(real, n) if os.path.exists(real) else words_tokenizer(n)
    t["added_tokens"] = [{"id": n + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, c in enumerate(("<|begin|>", "<|end|>"))]
    t["post_processor"] = None
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(t, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"bos_token": "<|begin|>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}, f)


class Server:
    """One of the five servers, on a fresh store; the constructor returns when the server is
    ready."""

    def __init__(self, name, kv_tokens=None):
        self.store = tempfile.mkdtemp(dir=a.store)
        env = dict(os.environ)
        if name == "llama":
            # by default its waiting threads spin, which would starve the client on a small machine
            env["OMP_WAIT_POLICY"] = "passive"
            self.url, args = "http://127.0.0.1:18080", [
                a.llama_server, "-m", a.gguf, "-t", str(os.cpu_count()), "--poll", "0", "-np", str(SEQUENCES),
                "-c", str(kv_tokens or CONTEXT * SEQUENCES), "--port", "18080", "--chat-template", "chatml"]
        else:
            self.url, args = None, [
                a.program, "serve", a.model, "--port", "0", "--plain-chat", "--max-sequences", str(SEQUENCES),
                "--max-context", str(CONTEXT), "--kv-tokens", str(kv_tokens or CONTEXT * SEQUENCES),
                "--dram", "0", "--speculate", "off"]
            if name in ("kv", "auto"):
                args += ["--plan", name, "--store", self.store, "--throttle", a.throttle]
            if name != "ideal" and kv_tokens is None:
                args += ["--no-reuse"]
        self.log = open(os.path.join(self.store, "log"), "w+")
        self.p = subprocess.Popen(args, stdout=self.log, stderr=self.log, env=env)
        for _ in range(600):
            time.sleep(0.1)
            if self.ready():
                return
        self.stop()
        sys.exit(f"{name} did not start: {' '.join(args)}")

    def ready(self):
        if self.p.poll() is not None:
            return False
        self.log.flush()
        with open(self.log.name) as f:
            found = re.search(r"ready at (http://\S+)", f.read())
        self.url = self.url or (found and found[1])
        try:
            return self.url is not None and urllib.request.urlopen(self.url + "/health", timeout=5).status == 200
        except OSError:
            return False

    def load(self, label, csv, options):
        """Runs bench serve. Returns its rows by name, (p50, p95, p99, max, n), and its summary."""
        out = subprocess.run([a.program, "bench", "serve", "--url", self.url, "--label", label, "--csv", csv,
                              "--max-prompt", str(CONTEXT - 1200)] + [str(o) for o in options],
                             # the exit status only says whether any request was answered
                             stdout=subprocess.PIPE, text=True).stdout
        rows = {m[1].strip(): [float(x) for x in m[2].split()]
                for m in re.finditer(r"^([A-Za-z, ]{20})((?: +-?[\d.nai]+){5})$", out, re.M)}
        asked = re.search(r"(\d+) requests sent, (\d+) answered", out)
        total = re.search(r"(\S+) generated tokens/s, \d+ prompt tokens, (\S+) %", out)
        return rows, int(asked[1]), int(asked[2]), float(total[1]), float(total[2])

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        try:
            self.p.wait(60)
        except subprocess.TimeoutExpired:
            self.p.kill()
        shutil.rmtree(self.store)


COLUMNS = ("workload", "server", "sent", "answered", "ttft_p50_ms", "ttft_p95_ms", "ttft_max_ms", "later_p50_ms",
           "later_n", "tbt_p50_ms", "tbt_p99_ms", "tokens_per_s", "not_computed_pct")


def run(server, workload, name, options, results):
    lines = os.path.join(tempfile.gettempdir(), "serve_figures.csv")
    rows, sent, answered, speed, hit = server.load(name, lines, options)
    first, later, between = rows["TTFT"], rows["TTFT, later turns"], rows["time between texts"]
    line = (workload, name, sent, answered, first[0], first[1], first[3], later[0], int(later[4]), between[0],
            between[2], speed, hit)
    print("%-11s %-10s %5d %8d %10.1f %10.1f %10.1f %10.1f %6d %8.1f %8.1f %8.1f %8.1f" % line, flush=True)
    results.write(",".join(map(str, line)) + "\n")
    results.flush()
    with open(lines) as new, open(os.path.join(a.out, f"serve-{workload}.csv"), "a") as every:
        text = new.read().splitlines(True)
        every.writelines(text if every.tell() == 0 else text[1:])


def measure(workload, name, options, results, kv_tokens=None, warm=None, cases=((),)):
    """Runs a workload. `warm` has the options of an earlier run that saves the state. `cases` are
    pairs: a suffix of the workload's name, and further options."""
    server = Server(name, kv_tokens)
    try:
        if warm and name != "recompute":
            server.load("warm", os.devnull, options + warm)
        for suffix, more in cases:
            run(server, workload + suffix, name, options + list(more), results)
    finally:
        server.stop()


def main():
    scratch = None
    if a.model is None:
        a.model = scratch = tempfile.mkdtemp()
        make_model(a.model)
    servers = [s for s in a.servers.split(",") if s != "llama" or (a.llama_server and a.gguf)]
    arrive = ["--seconds", a.seconds, "--drain", a.drain]
    scale = ["--token-scale", 0.15]
    trace = os.path.join(a.shared, "traces/mooncake/conversation_trace.jsonl")
    os.makedirs(a.out, exist_ok=True)
    only = a.only.split(",")
    for workload in only:
        for f in os.listdir(a.out):
            if re.fullmatch(rf"serve-{workload}[\d.]*\.csv", f):
                os.remove(os.path.join(a.out, f))
    with open(os.path.join(a.out, "serve-figures.csv"), "w") as results:
        results.write(",".join(COLUMNS) + "\n")
        print("workload    server      sent answered   TTFT p50        p95        max  later p50      n  TBT p50"
              "      p99 tokens/s  % saved")
        plain = (("", ()),)
        for name in servers if "chats" in only else ():
            measure("chats", name, ["--workload", "chats", "--rate", 30, "--token-scale", 0.4, "--time-scale", 0.05] +
                    arrive, results, cases=plain)
        quick = ["--seconds", a.seconds, "--drain", 60, "--zipf", 0, "--rate", 40]
        for name in servers if "rates" in only else ():
            measure("rates", name, ["--workload", "chats", "--token-scale", 0.4, "--time-scale", 0.05] + arrive, results,
                    cases=[(str(r), ("--rate", r)) for r in (6, 12, 24, 48)])
        for name in servers if "documents" in only else ():
            measure("documents", name, ["--workload", "documents", "--documents", 6] + scale, results, warm=quick,
                    cases=(("", arrive + ["--rate", 15]),))
        for name in [s for s in servers if s not in ("ideal", "llama")] if "skew" in only else ():
            measure("skew", name, ["--workload", "documents", "--documents", 8] + scale, results, kv_tokens=8192,
                    warm=quick, cases=[(str(z), arrive + ["--rate", 15, "--zipf", z]) for z in (0, 1, 2)])
        for name in servers if "trace" in only else ():
            measure("trace", name, ["--workload", "trace", "--trace", trace, "--token-scale", 0.1, "--rate", 15],
                    results, warm=["--seconds", a.seconds, "--drain", 60], cases=(("", arrive),))
    if scratch:
        shutil.rmtree(scratch)


main()
