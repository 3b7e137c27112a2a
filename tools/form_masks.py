#!/usr/bin/env python3
"""Masks of forms beside those of llguidance, a second engine, and every kind of difference with its judge's verdict.

    tools/form_masks.py DIR [--schemas 300] [--samples 2] [--seed 1]

DIR is that of tools/form_proxy.py, whose schemas it takes; llguidance is installed there (development only). For each
schema that both engines compile, `hcache bench form` writes answers of random allowed tokens with the mask in front of
each token, and llguidance makes its mask for the same beginning. A token of one mask alone is followed to the first byte
that the other engine does not take. Its kind is that byte's place in the JSON text. What llguidance alone allows is
completed by llguidance at random; what is allowed here alone is the answer itself, where it took the token. Two
validators judge the completed text:

    here   WRONG      an invalid text was written here: a fault
           valid      llguidance does not take a valid text, or only in its own tokens where one text is forced
    there  invalid    llguidance takes a text that is not valid, or no JSON
           spelling   valid; its value is admitted here in the spelling of docs/STRUCTURED.md
           missed     valid, and not admitted here in that spelling, either
           endless    did not end within 200 tokens

Exit status 1: something is wrong."""
import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import form_proxy  # noqa: E402

MODEL = "models/demo"
HC = os.path.join(os.environ.get("HCACHE_BUILD", "build/release"), "hcache")


def bench(lines, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as f:
        f.write("".join(json.dumps(x) + "\n" for x in lines))
        f.flush()
        return json.loads(subprocess.run([HC, "bench", "form", MODEL, f.name, "--json", *options], check=True,
                                         capture_output=True).stdout)


def place(text, byte):
    """The kind of a place in a JSON text, and of the byte that may follow there."""
    string, key, backslash, digits, before = False, False, False, 0, b""
    for i in range(len(text)):
        c = text[i:i + 1]
        if not string:
            string, key = c == b'"', c == b'"' and before in (b"{", b",") and nest_of(text[:i]) == "{"
            before = c if c.strip() else before
        elif digits:
            digits -= 1
        elif backslash:
            backslash, digits = False, 4 if c == b"u" else 0
        elif c == b"\\":
            backslash = True
        elif c == b'"':
            string, before = False, c
    if byte is None:
        return "end of the answer"
    where = "key" if key else "string"
    if string:
        return f"{where}: escape" if backslash or digits or byte == b"\\" else f"{where}: U+007F" if byte == b"\x7f" else \
            f"{where}: its end" if byte == b'"' else f"{where}: character"
    return "blank" if not byte.strip() else "number" if byte in b"0123456789+-.eE" and before != b'"' else f"syntax {byte.decode()!r}"


def nest_of(text):
    """The innermost bracket that is open behind a text."""
    stack, string, skip = [], False, False
    for c in text.decode(errors="replace"):
        if skip:
            skip = False
        elif string:
            skip, string = c == "\\", c != '"'
        elif c == '"':
            string = True
        elif c in "{[":
            stack.append(c)
        elif c in "}]" and stack:
            stack.pop()
    return stack[-1] if stack else ""


class Engine:
    """llguidance over the tokenizer of the demo model."""

    def __init__(self):
        import llguidance
        self.m = llguidance
        with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as f:
            self.t = llguidance.LLTokenizer(f.read())
        self.bytes = [self.t.decode_bytes([i]) for i in range(self.t.vocab_size)]
        self.special = {i for i in range(self.t.vocab_size) if self.t.is_special_token(i)}
        self.of_byte = {b: i for i, b in enumerate(self.bytes) if len(b) == 1 and i not in self.special}

    def matcher(self, schema):
        try:
            m = self.m.LLMatcher(self.t, self.m.LLMatcher.grammar_from_json_schema(json.dumps(schema)))
        except ValueError:
            return None
        return None if m.is_error() else m

    def mask(self, m):
        bits = m.compute_bitmask()
        return {i for i in range(self.t.vocab_size) if bits[i >> 3] >> (i & 7) & 1} - self.special

    def refused_byte(self, m, token):
        """The number of the first byte that it does not take."""
        m = m.deep_copy()
        for i, b in enumerate(self.bytes[token]):
            if not m.try_consume_tokens([self.of_byte[bytes([b])]]):
                return i
        return None

    def complete(self, m, token, r):
        m, out = m.deep_copy(), self.bytes[token]
        m.consume_token(token)
        for _ in range(200):
            if m.is_accepting() and (m.is_stopped() or r.random() < .5):
                return out
            may = sorted(self.mask(m))
            if not may:
                return out if m.is_accepting() else None
            ends = [i for i in may if self.bytes[i] in (b'"', b"}", b"]", b'"}', b'"]')]
            token = r.choice(ends) if ends and r.random() < .6 else r.choice(may)
            m.consume_token(token)
            out += self.bytes[token]
        return None


def judge_of(schema):
    import jsonschema
    import jsonschema_rs
    judges = [jsonschema_rs.validator_for(schema, validate_formats=True),
              jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)]
    return lambda v: all(j.is_valid(v) for j in judges)


def hex_mask(text, n):
    return {i for i in range(n) if int(text[i // 32 * 8:i // 32 * 8 + 8], 16) >> (i % 32) & 1}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--schemas", type=int, default=300)
    p.add_argument("--samples", type=int, default=2)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    form_proxy.begin(a.dir, ["llguidance==1.9.1"])
    r, engine = random.Random(a.seed), Engine()
    with open(os.path.join(a.dir, "forms-1.jsonl"), encoding="utf-8") as f:
        cases = [c for c in map(json.loads, f) if c["valid"] > 0 and len(json.dumps(c["schema"])) < 20000]
    cases = r.sample(cases, min(a.schemas, len(cases)))
    out = bench([{"schema": c["schema"], "texts": []} for c in cases], "--samples", str(a.samples), "--masks")
    n, kinds, example, asked = collections.Counter(), collections.Counter(), {}, []
    for c, samples in zip(cases, out["samples"]):
        first = engine.matcher(c["schema"]) if samples is not None else None
        if first is None:
            n["refused here" if samples is None else "refused there"] += 1
            continue
        n["schemas"] += 1
        valid = judge_of(c["schema"])
        for s in samples:
            m, behind, mine = first.deep_copy(), b"", valid(json.loads(s["text"]))
            n["answers"] += 1
            for token, mask in zip([*s["ids"], None], s["masks"]):
                here, there = hex_mask(mask, engine.t.vocab_size), engine.mask(m)
                n["masks"] += 1
                n["equal masks"] += here == there
                n["tokens in both"] += len(here & there)
                if token is not None and token not in there:
                    k = engine.refused_byte(m, token)
                    b = engine.bytes[token]
                    kind = "forced text in other tokens" if k is None else place(behind + b[:k], b[k:k + 1])
                    note = ("here", kind, "valid" if mine else "WRONG")
                    kinds[note] += 1
                    example.setdefault(note, (c["name"], behind.decode(errors="replace")[-60:], b))
                    if k is not None:
                        break  # llguidance does not follow
                for t in r.sample(sorted(there - here), min(2, len(there - here))):
                    text = engine.complete(m, t, r)
                    asked.append((c, behind, t, None if text is None else behind + text, valid))
                if token is None or not m.try_consume_tokens([token]):
                    break
                behind += engine.bytes[token]
    verdicts = judge(asked)
    for (c, behind, t, text, _), verdict in zip(asked, verdicts):
        note = ("there", place(behind, engine.bytes[t][:1]), verdict)
        kinds[note] += 1
        example.setdefault(note, (c["name"], behind.decode(errors="replace")[-60:], engine.bytes[t], text))
    for note, k in sorted(kinds.items()):
        print(f"{k:6} {' | '.join(note)}    e.g. {example[note]}")
    print(dict(n))
    sys.exit(any(note[2] == "WRONG" for note in kinds))


def finite(text):
    if abs(float(text)) == float("inf"):
        raise ValueError("no finite double")
    return float(text)


def judge(asked):
    """The verdicts of texts that llguidance completed."""
    out, lines, at = [], [], []
    for c, _, _, text, valid in asked:
        try:
            v = None if text is None else json.loads(text, parse_float=finite)
            good = text is not None and valid(v)
        except (ValueError, RecursionError):
            good = False
        out.append("endless" if text is None else "missed" if good else "invalid")
        if good:
            at.append(len(out) - 1)
            canonical = json.dumps(form_proxy.ordered(c["schema"], v, c["schema"]), ensure_ascii=False)
            lines.append({"schema": c["schema"], "texts": [canonical]})
    for i, verdict in zip(at, bench(lines, "--verdicts")["verdicts"] if lines else ()):
        out[i] = "spelling" if verdict == [True] else "missed"
    return out


if __name__ == "__main__":
    main()
