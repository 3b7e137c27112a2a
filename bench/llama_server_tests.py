"""Runs the tests of llama.cpp's server against hcache, and against llama-server as the control.

    python3 bench/llama_server_tests.py LLAMA_CPP_SOURCE LLAMA_SERVER MODEL.gguf [--only EXPR] [--python PYTHON]

LLAMA_CPP_SOURCE holds tools/server/tests, PYTHON has what its requirements.txt names. The files are
copied into a folder of their own, which goes afterwards; nothing is downloaded. One model stands in
for all of theirs, so expectations about texts (`match_regex`) always hold; tests of numbers of the
missing models fail on both sides. Rankings are made by a small reranker with random weights, since
hcache refuses other models; llama-server takes any. A small program takes the options of llama-server and starts
hcache with those that mean the same. The result is a count, and a line for each test that passes on
the control and not here. `--json` prints it as one object."""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from scripted_model import make_reranker  # noqa: E402

SLOW = ("test_router", "test_mcp_servers", "test_tools_builtin", "test_proxy", "test_sleep", "test_vision_api",
        "test_lora", "test_speculative")  # features that are out of scope, on both sides

# The program that stands in for llama-server. MODEL replaces every model that a test names.
SHIM = '''#!{python}
import os, sys
SAME = {{"--port": "--port", "--host": "--host", "--alias": "--served-name", "--api-key": "--api-key",
        "--parallel": "--max-sequences", "--threads": "--threads", "--cors-origins": "--allow-origin",
        "--chat-template-file": "--chat-template-file"}}
args, out, context, slots, model = sys.argv[1:], [], 0, 1, {model!r}
MODELS = ("--model", "--model-url", "--hf-repo", "--hf-file")
if {control}:
    keep, skip = [], False
    for a in args:
        if skip or a in MODELS:
            skip = not skip
        elif a != "--offline":
            keep.append(a)
    os.execv({server!r}, [{server!r}, "--model", {model!r}, *keep])
it = iter(args)
for a in it:
    if a in SAME:
        out += [SAME[a], next(it)]
        slots = int(out[-1]) if a == "--parallel" else slots
    elif a == "--reranking":
        model = {reranker!r}
    elif a == "--tools": # llama-server allows fewer origins then
        out += ["--allow-origin", "localhost"]
        next(it)
    elif a == "--ctx-size":
        context = int(next(it))
    elif a == "--pooling":
        kind = next(it)
        out += ["--pooling", kind] if kind in ("mean", "cls", "last") else []
    elif a == "--chat-template":
        text, path = next(it), os.path.join(os.path.dirname(sys.argv[0]), "template.jinja")
        if "{{{{" in text:
            open(path, "w").write(text)
            out += ["--chat-template-file", path]
    elif a == "--seed":
        out += ["--seed", next(it)]
    elif a in MODELS or a in ("--temp", "--n-predict", "--batch-size", "--ubatch-size", "--reasoning-format",
                              "--reasoning"):
        next(it)
if "--allow-origin" not in out:
    out += ["--allow-origin", "*"]
if context and model == {model!r}: # the reranker's tokens are bytes, so its texts are longer
    out += ["--max-context", str(context // slots)]
if "--max-sequences" not in out:
    out += ["--max-sequences", "4"]
os.execv({hcache!r}, [{hcache!r}, "serve", model, "--plain-chat", *out])
'''


def prepare(source, folder, control, a):
    tests = os.path.join(folder, "tests")
    shutil.copytree(os.path.join(source, "tools/server/tests"), tests)
    utils = os.path.join(tests, "utils.py")
    text = open(utils).read()
    text = text.replace("def match_regex(regex: str, text: str) -> bool:\n", "def match_regex(regex: str, text: str) -> bool:\n    return True\n")
    text = text.replace('for name, method in ServerPreset.__dict__.items()\n            if callable(method) and name != "load_all"',
                        "for name, method in ()")
    open(utils, "w").write(text)
    shim = os.path.join(folder, "server")
    with open(shim, "w") as f:
        f.write(SHIM.format(python=sys.executable, control=control, server=os.path.abspath(a.llama_server),
                            model=os.path.abspath(a.model), hcache=os.path.join(ROOT, "build/hcache"),
                            reranker=make_reranker(os.path.join(folder, "reranker"))))
    os.chmod(shim, 0o755)
    return tests, shim


def run(control, a):
    """Returns the outcome of each test by its name."""
    folder = tempfile.mkdtemp(prefix="llama-tests.")
    try:
        tests, shim = prepare(a.source, folder, control, a)
        report = os.path.join(folder, "report.xml")
        command = [a.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "40", "-m", "not slow",
                   f"--junitxml={report}", "-x" if a.stop else "--maxfail=1000"]
        command += ["-k", a.only] if a.only else []
        command += [os.path.join("unit", f) for f in sorted(os.listdir(os.path.join(tests, "unit")))
                    if f.startswith("test_") and f[:-3] not in SLOW]
        env = {**os.environ, "LLAMA_SERVER_BIN_PATH": shim, "PORT": str(a.port), "HCACHE_DRAM": "0"}
        out = subprocess.run(command, cwd=tests, env=env, capture_output=True, text=True)
        if not os.path.exists(report):
            sys.exit(out.stdout[-3000:] + out.stderr[-3000:])
        result = {}
        for case in tree.parse(report).getroot().iter("testcase"):
            bad = [c for c in case if c.tag in ("failure", "error", "skipped")]
            name = case.get("classname").split(".")[-1] + "::" + case.get("name")
            why = bad[0].get("message", "").replace("\n", " ") if bad else ""
            result[name] = ("passed" if not bad else bad[0].tag, why, (bad[0].text or "") if bad else "")
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source")
    p.add_argument("llama_server")
    p.add_argument("model")
    p.add_argument("--only", help="pytest's -k")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--port", type=int, default=18080)
    p.add_argument("--control", help="file of the control's outcomes: read if it exists, else written")
    p.add_argument("--stop", action="store_true", help="stop at the first failure")
    p.add_argument("--log", help="file for the reports of failures here")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    if a.control and os.path.exists(a.control):
        control = json.load(open(a.control))
    else:
        control = run(True, a)
        if a.control:
            json.dump(control, open(a.control, "w"))
    here = run(False, a)
    passed = [n for n, r in control.items() if r[0] == "passed" and (not a.only or n in here)]
    missing = {n: here.get(n, ("absent", "", ""))[1] for n in passed if here.get(n, ("",))[0] != "passed"}
    if a.log:
        with open(a.log, "w") as f:
            for n in missing:
                f.write(f"=== {n}\n{here[n][2]}\n" if n in here else f"=== {n}: absent\n")
    counts = {"tests": len(control), "control": len(passed), "here": len(passed) - len(missing),
              "here_of_all": sum(r[0] == "passed" for r in here.values())}
    if a.json:
        print(json.dumps({**counts, "missing": missing}))
        return
    print(", ".join(f"{k} {v}" for k, v in counts.items()))
    for name, why in missing.items():
        print(f"  {name}: {re.sub(r' +', ' ', why)[:150]}")


if __name__ == "__main__":
    main()
