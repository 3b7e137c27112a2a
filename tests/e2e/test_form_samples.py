"""Random texts of the forms of random JSON schemas, judged by the jsonschema package: none may be invalid, and no walk
may end where no byte can follow. SCHEMAS and SEED choose how many and which."""
import json
import os
import random
import subprocess
import sys
import tempfile

from tap import HC, check, end, equal, skip

VENV = os.path.abspath(".venv/bin/python")
try:
    import jsonschema
except ImportError:
    if os.path.exists(VENV) and os.path.abspath(sys.executable) != VENV and "FORM_SAMPLES" not in os.environ:
        os.execve(VENV, [VENV, *sys.argv], {**os.environ, "FORM_SAMPLES": "1"})
    skip("random schemas", "the jsonschema package is missing: tools/setup.sh --clients installs it")
    end()
try:
    import jsonschema_rs  # a second judge, where it is installed
except ImportError:
    jsonschema_rs = None
SCHEMAS, SEED = int(os.environ.get("SCHEMAS", "300")), int(os.environ.get("SEED", "1"))
VALUES = [1, "a", None, True, 2.5, [1], {"k": "v"}, "\u00e9\"\\", "", -7]


def some(r, share, **fields):
    return {k: v for k, v in fields.items() if r.random() < share}


def scalar(r):
    kind = r.randrange(5)
    if kind == 0:
        return {"type": "integer", **some(r, .5, minimum=r.randrange(-20, 5), maximum=r.randrange(5, 2000),
                                          multipleOf=r.choice([1, 2, 5, 7]))}
    if kind == 1:
        return {"type": "string", **some(r, .4, minLength=r.randrange(4), maxLength=r.randrange(4, 12),
                                         pattern=r.choice(["^a", "b$", "^[a-z]+$", "[0-9]{2}", "^(x|yz)*$", "^(?!ab)", "^(\u00e9b{4}.*)?$", "^(abc)*$"]))}
    if kind == 2:
        return {"enum": r.sample(VALUES, r.randrange(1, 4))}
    if kind == 3:
        return {"type": r.sample(["null", "boolean", "number", "string"], r.randrange(1, 3))}
    return {"type": "number", **some(r, .6, minimum=r.choice([-3.5, 0, 0.25]), exclusiveMaximum=r.choice([4, 7.75, 100]))}


def schema(r, depth=0):
    kind = r.randrange(5) if depth < 3 else 0
    if kind == 0:
        return scalar(r)
    if kind == 1:
        return {"type": "array", "items": schema(r, depth + 1),
                **some(r, .4, minItems=r.randrange(3), maxItems=r.randrange(3, 5),
                       **(r.choice([{"contains": scalar(r)}, {"uniqueItems": True}])),
                       prefixItems=[schema(r, depth + 1)])}
    if kind == 2:
        keys = r.sample(["a", "b", "c", "dd", "\u00e9"], r.randrange(1, 4))
        return {"type": "object", "properties": {k: schema(r, depth + 1) for k in keys},
                "required": [k for k in keys + ["zz"] if r.random() < .4],
                **some(r, .25, additionalProperties=r.choice([False, {"type": "null"}]), maxProperties=len(keys),
                       patternProperties={"^p": scalar(r)}, minProperties=1, dependentRequired={keys[0]: ["q"]})}
    if kind == 3:
        return {r.choice(["anyOf", "oneOf", "allOf"]): [schema(r, depth + 1) for _ in range(2)]}
    return r.choice([{"not": scalar(r)}, {"if": scalar(r), "then": schema(r, depth + 1), "else": schema(r, depth + 1)}])


r = random.Random(SEED)
schemas = [schema(r) for _ in range(SCHEMAS)]
with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
    f.write("".join(json.dumps({"schema": s, "texts": []}) + "\n" for s in schemas))
    f.flush()
    out = json.loads(subprocess.run([HC, "bench", "form", "models/demo", f.name, "--json", "--samples", "4"], check=True,
                                    capture_output=True, text=True).stdout)
bad, n = [], 0
for s, texts in zip(schemas, out["samples"]):
    judges = [jsonschema.Draft202012Validator(s)] + ([jsonschema_rs.Draft202012Validator(s)] if jsonschema_rs else [])
    for text in texts or []:
        n += 1
        if not all(judge.is_valid(json.loads(text)) for judge in judges):
            bad.append((s, text))
print(f"# {SCHEMAS} schemas, {out['refused']} refused, {n} texts")
equal("every text is valid", bad[:3], [])
equal("no walk is stuck", out["stuck"], 0)
check("most schemas are taken", out["refused"] < 0.4 * SCHEMAS, out["refused"])
check("and have texts", n > 2 * SCHEMAS, n)
end()
