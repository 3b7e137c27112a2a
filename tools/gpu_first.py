#!/usr/bin/env python3
"""Prints the five numbers that decide the next work on the GPU, from the first parts of
gpu_check.sh.

  gpu_first.py PARTS

A number whose part failed is reported as missing."""
import csv
import os
import re
import sys


def rows(name):
    try:
        with open(os.path.join(sys.argv[1], name + ".csv"), encoding="utf-8", newline="") as f:
            return list(csv.DictReader(f))
    except OSError:
        return []


def best(table, unit):
    rates = [float(r["rate"]) for r in table if r["unit"] == unit]
    return f"{max(rates):.4g} {unit}" if rates else "missing"


def copies():
    try:
        with open(os.path.join(sys.argv[1], "first-products.log"), encoding="utf-8") as f:
            found = re.search(r"pinned copies up ([\d.]+) GB/s, down ([\d.]+) GB/s", f.read())
    except OSError:
        found = None
    return f"{found[1]} GB/s up, {found[2]} GB/s down" if found else "missing"


products, restores, saves = (rows("first-" + n) for n in ("products", "restore", "save"))
print("1. pinned copies:", copies())
print("2. projections:", best(products, "TFLOP/s"))
for letter, method in zip("abc", ("hidden", "kv", "auto")):
    of = [r for r in restores if r["method"] == method]
    text = ", ".join(f"{r['tokens']} tokens {float(r['median_ms']):.1f} ms ({r['plan']})" for r in of) or "missing"
    print(f"3{letter}. restored by {method}: {text}")
of = [r for r in saves if r["arm"] == "save"]
print("4. saving costs a decode step:", ", ".join(f"batch {r['batch']}: {r['median_overhead_pct']} %" for r in of) or "missing")
scale = rows("cpu-threads")
print("5. the CPU's speed by threads:", ", ".join(f"{r['threads']}: {r['rate']} {r['unit']}" for r in scale) or "missing")
