#!/usr/bin/env python3
"""Saves a context of a model with the layers of Gemma 3 4B (34, of which 29 see 1,024 tokens) and narrow
rows, and reads how many bytes the store has for it.

  bench/window_state.py HCACHE [--tokens N]

The layers are copies of those of tests/model/golden/families/gemma3. A context of 1,024 tokens keeps all
its records; bytes are given as a share of as many such chunks. Then the context is asked for again, by
another process, and must have the same logits as without a store.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

FAMILY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/model/golden/families/gemma3")


def make_model(folder, n_layers, every, window, context):
    with open(os.path.join(FAMILY, "config.json")) as f:
        config = json.load(f)
    kinds = config["layer_types"]
    types = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(n_layers)]
    config.update(layer_types=types, num_hidden_layers=n_layers, sliding_window=window,
                  max_position_embeddings=context)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(FAMILY, "model.safetensors"), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, body = json.loads(f.read(n)), f.read()
    out, data = {}, b""
    for name, t in head.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        parts = name.split(".")
        copies = [name]
        if parts[1] == "layers":
            first = {k: kinds.index(k) for k in set(kinds)}
            copies = [".".join(parts[:2] + [str(i)] + parts[3:]) for i, k in enumerate(types)
                      if first[k] == int(parts[2])]
        for c in copies:
            out[c] = dict(t, data_offsets=[len(data), len(data) + b - a])
            data += body[a:b]
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("hcache")
    p.add_argument("--tokens", type=int, default=32768)
    a = p.parse_args()
    work = tempfile.mkdtemp(prefix="hcache-window-state.")
    make_model(work, 34, 6, 1024, a.tokens + 1024)
    draw = random.Random(5)
    ids = [draw.randrange(3, 123) for _ in range(a.tokens + 512)]

    def run(n, store, *more):
        path = os.path.join(work, "ids")
        with open(path, "w") as f:
            f.write(" ".join(map(str, ids[:n])))
        args = [a.hcache, "run", work, "--token-ids", path, "-n", "4", "--temperature", "0", "--json",
                "--max-context", str(a.tokens + 1024), "--dtype", "bf16", *more]
        args += ["--store", os.path.join(work, store)] if store else []
        r = subprocess.run(args, capture_output=True, text=True)
        if r.returncode != 0:
            sys.exit(r.stderr)
        return json.loads(r.stdout)

    def used(store):
        r = subprocess.run([a.hcache, "store", "stat", os.path.join(work, store), "--json"], capture_output=True,
                           text=True, check=True)
        return json.loads(r.stdout)["used_bytes"]

    run(513, "8"), run(1025, "16")
    chunk = (used("16") - used("8")) // 8  # a whole one; the two ends have equal bytes
    for name, n in (("one turn", a.tokens), ("two turns", a.tokens + 256)):
        r = run(n, "large")
        print(f"{name}: {n} tokens, {r['cached_tokens']} restored ({r['restored_bytes']} bytes), {used('large')} bytes "
              f"stored, {used('large') / (n // 64 * chunk):.3f} of those of all layers", flush=True)
    alone = run(a.tokens + 256, None)
    same = r["logits_digest"] == alone["logits_digest"]
    print("the logits are those of a run without a store" if same else "THE LOGITS DIFFER")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
