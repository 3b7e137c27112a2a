#!/usr/bin/env python3
"""Counts the files that one chat turn with a restore runs through, with valgrind's callgrind.

  tools/walk.py [--hcache build/release/hcache] [--files]

A first server answers a turn and saves its state.  A second one starts under callgrind with an
empty KV cache.  The counts are set to zero, and it answers the next turn, whose beginning is
restored from the store.  For each thread that ran code of src/ or apps/ (named by its outermost
function there) it prints:
  ran       the files of which at least one line ran
  crossed   the files that call into another folder of src/, lib/ or apps/.  base/ and headers count as
            language here: a call into base/ crosses nothing, and neither does a call that the
            server makes when it is idle, too.
--files lists the crossed files, with the folders and functions that they call.

Exit status 1: a function that docs/LIFE.md names did not run, or more files were crossed than
tools/tidy/budgets.txt allows."""
import argparse
import collections
import glob
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time


def serve(argv, prefix=()):
    """Starts a server. Returns its process and port."""
    p = subprocess.Popen([*prefix, *argv], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for line in p.stderr:
        found = re.search(r"ready at http://[^ ]*:(\d+)", line)
        if found:
            return p, int(found.group(1))
    raise SystemExit("the server did not start")


def chat(port, messages, n):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    body = {"messages": messages, "max_tokens": n, "temperature": 0}
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(c.getresponse().read())


def control(what, pid):
    subprocess.run(["callgrind_control", *what, str(pid)], check=True, stdout=subprocess.DEVNULL)


def record(hcache, folder):
    argv = [hcache, "serve", "models/demo", "--port", "0", "--store", folder + "/store", "--threads", "2",
            "--dram", "0"]
    first = [{"role": "user", "content": "Tell me about the sea and its animals. " * 30}]
    p, port = serve(argv)
    answer = chat(port, first, 40)["choices"][0]["message"]
    p.terminate()
    p.wait()
    p, port = serve(argv, ("valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={folder}/out"))
    # lets the work that a server does after its start end: it does not belong to the turn
    time.sleep(5)
    control(["-z"], p.pid)
    time.sleep(7)  # what an idle server does by its clock does not belong to the turn, either
    control(["-d", "idle"], p.pid)
    turn = chat(port, first + [answer, {"role": "user", "content": "And what of the whales?"}], 8)
    time.sleep(2)  # lets the server save the chunks that the turn has filled
    control(["-d", "turn"], p.pid)
    p.terminate()
    p.wait()
    return turn["usage"]["prompt_tokens_details"]["cached_tokens"], turn["usage"]["prompt_tokens"]


def source(path):
    found = re.search(r"(?:^|/)((?:src|lib|apps)/.*\.[ch])$", path or "")
    return found.group(1) if found else None


def read(path):
    """Returns the files that ran, the calls between files, the functions of src/ that are not called
    by functions of src/, and all pairs of file and function that ran."""
    names, ran, calls, called, functions, pairs = {}, set(), set(), set(), set(), set()
    here = callee = name = callee_name = None
    after_call = False
    for line in open(path, errors="replace"):
        m = re.match(r"(c?)(fl|fi|fe|fn)=\((\d+)\)(?: (.*))?$", line)
        if m:
            of_callee, kind, number, text = m.groups()
            key = ("fn" if kind == "fn" else "f") + number
            names[key] = text.strip() if text else names.get(key)
            if of_callee and kind == "fn":
                callee_name = names[key]
            elif of_callee:
                callee = names[key]
            elif kind == "fn":
                name = names[key]
            else:
                here = names[key]
        elif line.startswith("calls="):
            after_call = True
            if source(here) and source(callee or here):
                calls.add((source(here), source(callee or here), callee_name))
                called.add(callee_name)
            callee = None
        elif re.match(r"[+\-*\d]\S* \d+", line):
            if source(here):
                ran.add(source(here))
                functions.add(name)
                pairs.add((source(here), re.sub(r"[.'].*", "", name or "")))
            if after_call:
                after_call = False
    return ran, calls, sorted(f for f in functions - called if f), pairs


def folder_of(path):
    """Returns the folder: src/store for src/store/remote/remote.c, too."""
    return "/".join(path.split("/")[:2])


def crossed(calls):
    to = collections.defaultdict(lambda: collections.defaultdict(set))
    for a, b, name in calls:
        if not folder_of(b).endswith("/base") and not folder_of(a).endswith("/base") and folder_of(a) != folder_of(b) \
                and a.endswith(".c") and b.endswith(".c"):
            to[a][folder_of(b)].add(re.sub(r"[.'].*", "", name))
    return to


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--hcache", default="build/release/hcache")
    a.add_argument("--files", action="store_true")
    o = a.parse_args()
    all_ran, all_calls, all_pairs = set(), set(), set()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        cached, prompt = record(o.hcache, folder)
        print(f"prompt of {prompt} tokens, {cached} of them restored")
        idle = set().union(*(read(path)[1] for path in glob.glob(folder + "/out.1-*")))
        for path in sorted(glob.glob(folder + "/out.2-*")):
            ran, calls, roots, pairs = read(path)
            if not ran:
                continue
            all_ran |= ran
            all_calls |= calls
            all_pairs |= pairs
            print(f"thread {path[-2:]}: ran {len(ran):3}, crossed {len(crossed(calls)):2}: {' '.join(roots)[:80]}")
    to = crossed(all_calls - idle)
    c_files = [f for f in all_ran if f.endswith(".c")]
    print(f"in all: ran {len(all_ran)} files ({len(c_files)} .c) in {len({folder_of(f) for f in all_ran})} folders, "
          f"crossed {len(to)} in {len({folder_of(f) for f in to})}")
    if o.files:
        for f in sorted(to):
            for folder in sorted(to[f]):
                print(f"  {f} -> {folder}: {' '.join(sorted(to[f][folder]))}")
    named = re.findall(r"`([a-z]+/[a-z_]+\.c): ([a-z_]+)`", open("docs/LIFE.md").read())
    missing = [f"{f}: {name}" for f, name in named if ("src/" + f, name) not in all_pairs]
    for m in missing:
        print(f"docs/LIFE.md names {m}, which did not run")
    most = int(re.search(r"^crossed +(\d+)", open("tools/tidy/budgets.txt").read(), re.M).group(1))
    if len(to) > most:
        print(f"{len(to)} files were crossed; tools/tidy/budgets.txt allows {most}")
    return bool(missing) or len(to) > most


if __name__ == "__main__":
    sys.exit(main())
