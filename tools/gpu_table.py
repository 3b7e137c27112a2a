#!/usr/bin/env python3
"""Joins the files that the parts of gpu_check.sh have left in one directory to one CSV file per
kind in another, and prints the tables: restores by method beside their lower bounds and PyTorch,
and decoding beside the memory's bandwidth.

  gpu_table.py PARTS OUT

A part that failed has no file, or an incomplete one: only its rows are missing."""
import csv
import glob
import os
import re
import sys


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as f:
        return [r for r in csv.DictReader(f) if None not in r and None not in r.values()]


def write(path, rows):
    if not rows:
        return
    with open(path, "w", encoding="utf-8", newline="") as f:
        w = csv.DictWriter(f, list(rows[0]))
        w.writeheader()
        w.writerows(rows)


def join(parts, pattern, names):
    """Returns all rows of the matching files. Each row begins with the values in its file's name."""
    joined = []
    for path in sorted(glob.glob(os.path.join(parts, pattern + ".csv"))):
        said = os.path.basename(path)[:-4].split("-", 1)[1:]
        said = said[0].rsplit("-", len(names) - 1) if said else []
        joined += [{**dict(zip(names, said)), **r} for r in rows_of(path)]
    return joined


def log_of(parts, name):
    try:
        with open(os.path.join(parts, name + ".log"), encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def restores(rows, torch):
    print("\n## Restores\n\nTimes in ms; the floor is the plan's bytes at the rate of pinned copies, or its "
          "operations at that of a large product, whichever is longer.")
    beside = {(r["model"], method, r["tokens"]): float(r[column]) for r in torch
              for method, column in (("recompute", "prefill_ms"), ("kv", "kv_copy_up_ms"))}
    for model, place in sorted({(r["model"], r["place"]) for r in rows}):
        print(f"\n### {model}, from {place}\n\n| tokens | method | plan | predicted | measured | share of floor | "
              "auto is faster by | PyTorch |\n|---|---|---|---|---|---|---|---|")
        mine = [r for r in rows if (r["model"], r["place"]) == (model, place)]
        auto = {r["tokens"]: float(r["median_ms"]) for r in mine if r["method"] == "auto"}
        for r in mine:
            ms, n = float(r["median_ms"]), r["tokens"]
            times = f"{ms / auto[r['tokens']]:.2f}x" if r["tokens"] in auto and r["method"] != "auto" else ""
            torch_ms = beside.get((model, r["method"], n))
            plan = re.sub(r"(.)\1*", lambda m: f"{m.group(1)}{len(m.group(0))}", r["plan"])
            print(f"| {n} | {r['method']} | {plan} | {float(r['predicted_ms']):.1f} | {ms:.1f} | "
                  f"{float(r['share_of_floor']):.2f} | {times} | {f'{torch_ms:.1f}' if torch_ms else ''} |")


def decodes(title, rows, log):
    head = re.search(r"memory reserved, MiB: weights ([0-9.]+)", log)
    if not rows or not head:
        return
    print(f"\n## {title}\n\nWeights {float(head.group(1)) / 953.67:.2f} GB are read in each step. "
          "\n\n| batch | saving | ms a token | p99 | overhead % | weights GB/s |\n|---|---|---|---|---|---|")
    for r in rows:
        ms = float(r["median_ms"])
        print(f"| {r['batch']} | {r['arm']} | {ms:.3f} | {float(r['p99_ms']):.3f} | {float(r['paired_overhead_pct']):+.2f} | "
              f"{float(head.group(1)) * 1.048576 / ms:.0f} |")


def cost_of(math, rows):
    """Returns how many times longer operations take in the mode whose bits do not depend on the
    batch."""
    times = {(r["t"], r["kind"], r["shape"]): float(r["median_ms"]) for r in rows}
    pairs = [(kind, shape, times["bf16", kind, shape], ms) for (t, kind, shape), ms in times.items()
             if t == math and ("bf16", kind, shape) in times]
    if pairs:
        print(f"\n## What {math} math costs (the same bits for every batch)\n\n"
              f"| operation | shape | fast, ms | {math}, ms | times |\n|---|---|---|---|---|")
    for kind, shape, fast, slow in pairs:
        print(f"| {kind} | {shape} | {fast:.3f} | {slow:.3f} | {slow / fast if fast > 0 else 0:.2f} |")


def show(title, text):
    if text.strip():
        print(f"\n## {title}\n\n```\n{text.strip()}\n```")


def main():
    parts, out = sys.argv[1:]
    restored = join(parts, "restore-*", ["model", "place"])
    torch = join(parts, "torch", [])
    save, early = join(parts, "save", []), join(parts, "early-save", [])
    fixed = join(parts, "fixed-save", [])
    for name, rows in (("restore", restored), ("torch", torch), ("save", save), ("early-save", early), ("fixed-save", fixed), ("device", join(parts, "device-*", ["t"])),
                       ("greedy", join(parts, "greedy", [])), ("fixed", join(parts, "fixed", [])), ("exact", join(parts, "exact", [])),
                       ("resume", join(parts, "resume", []))):
        write(os.path.join(out, name + ".csv"), rows)
    ceilings = sorted({line for name in glob.glob(os.path.join(parts, "*.log"))
                       for line in log_of(parts, os.path.basename(name)[:-4]).splitlines()
                       if line.startswith("ceilings of")})
    show("Ceilings, as several parts measured them", "\n".join(ceilings))
    if restored:
        restores(restored, torch)
    decodes("Decoding, saving off and on", save, log_of(parts, "save"))
    decodes("The same with kernels launched early (HCACHE_CUDA_EARLY=on)", early, log_of(parts, "early-save"))
    decodes("The same in fixed math (HCACHE_CUDA_MATH=fixed)", fixed, log_of(parts, "fixed-save"))
    show("The first token behind a restored history", log_of(parts, "resume"))
    show("Operations", log_of(parts, "device-bf16"))
    show("PyTorch, the same shape", log_of(parts, "torch"))
    for math in "fixed", "exact":
        show(f"Operations in {math} math, whose bits do not depend on the batch", log_of(parts, f"device-{math}"))
        cost_of(math, join(parts, "device-*", ["t"]))
    ends = [[f"{name}: {line}"] for name in ("greedy", "fixed", "exact")
            for line in log_of(parts, name).splitlines()[-1:]]
    show("Greedy tokens after restores; in fixed and exact math, all logits too", "\n".join(sum(ends, [])))


if __name__ == "__main__":
    main()
