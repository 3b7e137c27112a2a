"""The JSON schema organisation's test suite: each schema is refused by name, or its grammar admits exactly the valid
instances. An instance is spelled as answers are: keys in the schema's order, whole numbers without a point.

`hcache bench form` walks the instances, token by token."""
import collections
import glob
import json
import os
import subprocess
import tempfile

from tap import HC, check, end, equal, skip

SUITE = os.environ.get("SCHEMA_SUITE", ".venv/schema-suite")
# Formats are enforced here, where format.json takes them for annotations; optional/format judges them. The keys of a
# const have one order, and no number is spelled with an exponent or beyond 2^53 with a point. Leap seconds are those
# of UTC.
DIFFERS = {("format.json", None), ("const.json", "same object with different property order is valid"),
           ("const.json", "float is valid"), ("float-overflow.json", None)}
DIFFERS_PART = ("leap second",)


def declared(schema, names):
    for key, v in schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ():
        if key == "properties" and isinstance(v, dict):
            names.extend(n for n in v if n not in names)
        declared(v, names)
    return names


def plain(v, order):
    if isinstance(v, dict):
        return {k: plain(v[k], order) for k in [k for k in order if k in v] + [k for k in v if k not in order]}
    if isinstance(v, list):
        return [plain(x, order) for x in v]
    return int(v) if isinstance(v, float) and v == int(v) and abs(v) < 2**53 else v


def spell(v, schema):
    return json.dumps(plain(v, declared(schema, [])), ensure_ascii=False)


def bench(lines):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.write("".join(json.dumps(x) + "\n" for x in lines))
        f.flush()
        return json.loads(subprocess.run([HC, "bench", "form", "models/demo", f.name, "--json", "--verdicts"], check=True,
                                         capture_output=True, text=True).stdout)


def judge(name, folder, least, draft=None):
    """draft: the $schema of schemas that name none."""
    cases = []
    for path in sorted(glob.glob(f"{SUITE}/{folder}/*.json")):
        with open(path, encoding="utf-8") as f:
            cases += [(os.path.basename(path), g) for g in json.load(f)]
    for _, g in cases:
        if draft is not None and isinstance(g["schema"], dict):
            g["schema"] = {"$schema": draft, **g["schema"]}
    verdicts = bench([{"schema": g["schema"], "texts": [spell(t["data"], g["schema"]) for t in g["tests"]]} for _, g in cases])
    n, wrong = collections.Counter(), []
    for (path, g), verdict in zip(cases, verdicts["verdicts"]):
        for i, t in enumerate(g["tests"]):
            if (path, None) in DIFFERS or (path, t["description"]) in DIFFERS or any(p in t["description"] for p in DIFFERS_PART):
                n["differs"] += 1
            elif isinstance(verdict, str) and not any(x["valid"] for x in g["tests"]):
                n["right"] += 1  # a schema without a value is refused, too
            elif isinstance(verdict, str):
                n["refused"] += 1
            elif verdict[i] == t["valid"]:
                n["right"] += 1
            elif path == "idn-hostname.json" and t["valid"]:
                n["narrow"] += 1  # only letters that need no look at other characters are written
            else:
                wrong.append((path, g["description"], t["description"]))
    share = n["right"] / (sum(n.values()) + len(wrong))
    print(f"# {name}: {dict(n)}, {share:.3f} right")
    equal(name + ": nothing is decided wrongly", wrong, [])
    check(f"{name}: at least {least} are decided", share >= least, dict(n))


def judge_grammars(folder):
    """Grammars of llama.cpp's documentation: texts that their comments describe, and others."""
    cases = {"arithmetic": (["x = 1\n", "a+b*(c-2) = 3\nx = y\n"], ["x = 1", "1 + = 2\n", "X = 1\n"]),
             "c": (["int main(){int x = 5;return x+1;}", ""], ["int main(){", "int main(){int x = 5}"]),
             "chess": (["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O e8=Q+\n10. exd5 Qxa1#\n"], ["1. e4 e5\n", "1. i4 e5\n2. a4 a5\n"]),
             "english": (["Hello world.", "It's 5 o'clock"], ["caf\u00e9", " a"]),
             "japanese": (["\u3053\u3093", "\u30ab \u65e5\u672c"], ["hello"]),
             "json": (['{"a": [1, 2.5e3, "x\\n"], "b": null}\n'], ["[1]", '{"a":}', "{a:1}"]),
             "json_arr": (['[\n1,\n"a"]'], ["{}", "1"]), "list": (["- milk\n- eggs\n"], ["milk\n", "- milk"])}
    lines = []
    for name, (yes, no) in cases.items():
        with open(f"{folder}/{name}.gbnf", encoding="utf-8") as f:
            lines.append({"grammar": f.read(), "texts": yes + no})
    for (name, (yes, no)), verdict in zip(cases.items(), bench(lines)["verdicts"]):
        equal(f"{name}.gbnf", verdict, [True] * len(yes) + [False] * len(no))


GRAMMARS = os.environ.get("LLAMA_GRAMMARS", ".venv/llama/source/vendor/llama.cpp/grammars")
if os.path.isdir(GRAMMARS):
    judge_grammars(GRAMMARS)
else:
    skip("grammars of llama.cpp's documentation", f"{GRAMMARS} is missing: tools/compare_llama/build.sh fetches it")
if os.path.isdir(SUITE):
    judge("draft 2020-12", "draft2020-12", 0.75)
    judge("draft 7", "draft7", 0.83, "http://json-schema.org/draft-07/schema#")
    judge("draft 4", "draft4", 0.87, "http://json-schema.org/draft-04/schema#")
    judge("formats", "draft2020-12/optional/format", 0.9)
else:
    skip("the suite", f"{SUITE} is missing: tools/setup.sh --clients fetches it")
end()
