"""Prints the branch coverage of the code that must not lose data (src/store, src/io), from the
counters that `make coverage` has just written: a table by file.  The exit status is 1 if a
directory is below the goal.

  python3 tools/coverage.py BUILD [--missing FILE...]     --missing lists the branches not taken

Every branch that gcc makes of the source at -O0 counts, so `a && b` has four.  Branches of
CHECK(...) do not count and have their own column: only a bug can make a CHECK fail (base/check.h),
and that ends the program."""
import glob
import json
import os
import subprocess
import sys

GOAL = 90.0
FOLDERS = ("src/store", "src/io")


def lines_of(build, folder):
    """Yields (file, line number, [times each branch was taken]) for all lines with code."""
    for data in sorted(glob.glob(f"{build}/{folder}/*.gcda")):
        p = subprocess.run(["gcov", "-b", "-t", "--json-format", data], capture_output=True, check=True)
        for doc in p.stdout.splitlines():
            for f in json.loads(doc)["files"]:
                if f["file"].startswith(FOLDERS):
                    for line in f["lines"]:
                        yield f["file"], line["line_number"], [b["count"] for b in line["branches"]]


def statement_at(source, line):
    """Returns the text of the statement that contains a line. Also looks at the lines above, where
    a CHECK may begin."""
    first = line
    while first > 1 and line - first < 4 and not source[first - 2].rstrip().endswith((";", "{", "}", ":")):
        first -= 1
    return "".join(source[first - 1:line])


def main():
    build, show = sys.argv[1], [a for a in sys.argv[2:] if a != "--missing"]
    # (file, line, index of the branch) -> times taken, summed over all objects that include a
    # header
    taken = {}
    for folder in FOLDERS:
        for file, line, counts in lines_of(build, folder):
            for i, n in enumerate(counts):
                taken[file, line, i] = taken.get((file, line, i), 0) + n
    if not taken:
        sys.exit(f"no counters in {build}: make coverage")
    sources, files = {}, {}
    for (file, line, i), n in sorted(taken.items()):
        if file not in sources:
            with open(file, encoding="utf-8") as f:
                sources[file] = f.readlines()
        row = files.setdefault(file, [0, 0, 0])
        if "CHECK(" in statement_at(sources[file], line):
            row[2] += 1
            continue
        row[0] += n > 0
        row[1] += 1
        if n == 0 and any(s in file for s in show):
            print(f"{file}:{line}: branch {i}: {sources[file][line - 1].strip()}")
    print(f"{'':32} {'taken':>6} {'of':>6} {'%':>6} {'CHECK':>6}")
    failed = False
    for folder in FOLDERS:
        total = [0, 0, 0]
        for file, row in files.items():
            if os.path.dirname(file) != folder:
                continue
            total = [a + b for a, b in zip(total, row)]
            if row[1] > 0:
                print(f"{file:32} {row[0]:6} {row[1]:6} {100 * row[0] / row[1]:6.1f} {row[2]:6}")
        share = 100 * total[0] / max(total[1], 1)
        failed |= share < GOAL
        print(f"{folder + ', all':32} {total[0]:6} {total[1]:6} {share:6.1f} {total[2]:6}"
              f"{'' if share >= GOAL else f'   under the goal of {GOAL:.0f}'}")
    sys.exit(failed)


main()
