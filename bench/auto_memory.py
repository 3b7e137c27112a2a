#!/usr/bin/env python3
"""Measures the peak memory of `--weights-memory auto` in a memory cgroup, and compares it with the
budget that auto chose.

    bench/auto_memory.py PACKED [--limits 1000,1500,2000] [--max-context 512] [--tokens 4]

PACKED is a packed model that is larger than each limit (in megabytes). Needs root and a cgroup.
Exits with 1 if a peak is more than 5 % above its budget."""
import argparse
import os
import re
import sys
import tempfile

from memory_group import Group, drop_cache

HERE = os.path.dirname(os.path.abspath(__file__))
HC = os.path.join(HERE, "..", "build", "hcache")

# Runs a command as a child, and writes this child's peak memory to a file.
PEAK = """
import resource, subprocess, sys
rc = subprocess.run(sys.argv[2:]).returncode
with open(sys.argv[1], "w") as f:
    f.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(rc)
"""


def measure(args, limit):
    """Returns the budget, the process's peak and the cgroup's peak in bytes, and the printed table."""
    group = Group(limit)
    with tempfile.NamedTemporaryFile("w") as ids, tempfile.NamedTemporaryFile("r") as peak:
        ids.write(" ".join(str(i * 7 % 3000) for i in range(200)))
        ids.flush()
        p = group.run([sys.executable, "-c", PEAK, peak.name, HC, "run", args.packed,
                       "--token-ids", ids.name, "--max-tokens", str(args.tokens),
                       "--max-context", str(args.max_context), "--weights-memory", "auto",
                       "--json"])
        said = re.search(r"memory, GB: ([0-9.]+) in all.*", p.stderr)
        if p.returncode != 0 or said is None:
            sys.exit(f"status {p.returncode}: {p.stderr[-2000:]}")
        result = (float(said.group(1)) * 1e9, int(peak.read()) * 1024, group.peak(),
                  said.group(0))
    group.close()
    return result


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("packed")
    p.add_argument("--limits", default="1000,1500,2000")
    p.add_argument("--max-context", type=int, default=512)
    p.add_argument("--tokens", type=int, default=4)
    args = p.parse_args()
    worst = 0
    for limit in map(int, args.limits.split(",")):
        drop_cache(os.path.dirname(os.path.abspath(args.packed)))
        budget, process, whole, said = measure(args, limit)
        worst = max(worst, process / budget)
        print(f"cgroup {limit} MB: budget {budget / 1e6:.0f} MB, peak of the process "
              f"{process / 1e6:.0f} MB ({process / budget:.3f}), of the group "
              f"{whole / 1e6:.0f} MB\n  {said}", flush=True)
    return worst > 1.05


sys.exit(main())
