#!/usr/bin/env python3
"""Draws one-line mutants with a seed, builds and runs the nearest tests of each, and reports survivors.

    tools/mutants.py --seed 7 --count 20 src/policy src/engine/schedule.c

A mutant changes one operator, constant or field of one line.  It *dies* when a test fails, crashes or takes ten times
as long as without it; one that does not compile is drawn again.  A survivor is a missing test, or equivalent: nothing
that the line decides has changed.  Work happens in a copy, build/mutants, so the working tree stays as it is.

The nearest tests of src/A/b_c.c are tests/A/test_b_c*, else tests/A/test_b*, else those of tests/A that include its
header, else all of tests/A.  --all-of-folder takes all of tests/A for each."""
import argparse
import filecmp
import glob
import os
import random
import re
import shutil
import subprocess
import sys
import time

# Each replaces one match in a line; comments and strings are left alone.
OPERATORS = [
    (r"(?<![<>=!-])<(?![<=])", "<="), (r"<=(?!=)", "<"), (r"(?<![<>=!-])>(?![>=])", ">="), (r"(?<![<>=])>=(?!=)", ">"),
    (r"==", "!="), (r"!=", "=="), (r"&&", "||"), (r"\|\|", "&&"),
    (r"(?<![\w.]) \+ 1\b(?!\.)", " - 1"), (r" - 1\b(?!\.)", " + 1"), (r"\+ 1\b(?!\.)", "+ 2"),
    (r"(?<=[\w\])]) \+ (?=[\w(])", " - "), (r"(?<=[\w\])]) - (?=[\w(])", " + "), (r" \+= ", " -= "), (r" -= ", " += "),
    (r"\bfmin\(", "fmax("), (r"\bfmax\(", "fmin("), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"(?<=[\s(])!(?=[\w(])", ""), (r"\bcontinue;", "break;"), (r"= 0;", "= 1;"),
    (r"\bh_tokens\b", "kv_tokens"), (r"\bio_h_s\b", "io_kv_s"), (r"\bcomp_h_s\b", "comp_kv_s"), (r"\bhas_h\b", "has_kv"),
    (r"->first\b", "->last"), (r"\bn_done\b", "n_tokens"),
]
SKIP = re.compile(r"^\s*(#|//|/?\*|enum|static const|extern|typedef|struct \w+;|CHECK\(|assert)|\bsizeof\b|\bfor \(.*\+\+\)?\s*$")


def run(argv, cwd, timeout=None):
    """The exit code, 124 where it took too long."""
    try:
        return subprocess.run(argv, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=timeout).returncode
    except subprocess.TimeoutExpired:
        return 124


def code_lines(text):
    """(number, line) of lines outside of comments."""
    inside = False
    for i, line in enumerate(text.split("\n")):
        if not inside and not SKIP.search(line) and line.strip():
            yield i, line
        opened, closed = line.rfind("/*"), line.rfind("*/")
        inside = opened > closed if max(opened, closed) >= 0 else inside


def mutations(line):
    """All lines that differ in one operator, with the text in front of a comment or string only."""
    code = re.split(r'"|/\*|\'', line)[0]
    for pattern, new in OPERATORS:
        for m in re.finditer(pattern, code):
            yield line[:m.start()] + new + line[m.end():]


def all_mutants(files):
    for path in files:
        text = open(path, encoding="utf-8").read()
        for i, line in code_lines(text):
            for new in mutations(line):
                yield path, i, line, new


def nearest_tests(path, whole_folder):
    folder, name = path.split("/")[1], os.path.splitext(os.path.basename(path))[0]
    of_folder = sorted(glob.glob(f"tests/{folder}/test_*.c"))
    of_folder = [t for t in of_folder if "emulated" not in t]
    if whole_folder:
        return of_folder
    for stem in (name, name.split("_")[0]):
        found = [t for t in of_folder if os.path.basename(t).startswith(f"test_{stem}")]
        if found:
            return found
    header = f'"{folder}/{name}.h"'
    return [t for t in of_folder if header in open(t, encoding="utf-8").read()] or of_folder


class Lab:
    """A copy of the tree in which mutants are built."""

    def __init__(self, make):
        self.make = make
        self.dir = "build/mutants"
        self.seconds = {}
        for path in git("ls-files", "-co", "--exclude-standard").splitlines():
            self.copy(path)

    def copy(self, path):
        """Files that are the same keep their time, so that nothing is built again."""
        to = os.path.join(self.dir, path)
        if os.path.isfile(path) and not (os.path.isfile(to) and filecmp.cmp(path, to, shallow=False)):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(path, to)

    def build(self, tests):
        return run([*self.make, *(self.program(t) for t in tests)], self.dir) == 0

    @staticmethod
    def program(test):
        return "build/release/" + test[:-2]

    def baseline(self, tests):
        """Runs what was not run yet without a mutant; tests that fail or are slow by themselves judge nothing."""
        new = [t for t in tests if t not in self.seconds]
        if new and not self.build(new):
            sys.exit("the tree does not build")
        for t in new:
            start = time.monotonic()
            code = run(["./" + self.program(t)], self.dir, 120)
            self.seconds[t] = time.monotonic() - start if code == 0 else None
        return [t for t in tests if self.seconds[t] is not None]

    def survives(self, tests):
        return all(run(["./" + self.program(t)], self.dir, 10 + 10 * self.seconds[t]) == 0 for t in tests)


def git(*argv):
    return subprocess.run(["git", *argv], capture_output=True, text=True, check=True).stdout.strip()


def files_of(paths):
    found = []
    for p in paths:
        found += sorted(glob.glob(p + "/**/*.c", recursive=True)) if os.path.isdir(p) else [p]
    return [f for f in found if "/cuda/" not in f]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("paths", nargs="*", default=["src/policy"])
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--count", type=int, default=20)
    a.add_argument("--all-of-folder", action="store_true")
    a.add_argument("--make", default="make -s CUDA=0 -j2", help="how to build")
    o = a.parse_args()
    os.chdir(git("rev-parse", "--show-toplevel"))
    lab = Lab(o.make.split())
    drawn = list(all_mutants(files_of(o.paths)))
    random.Random(o.seed).shuffle(drawn)
    n, survivors = 0, []
    for path, i, old, new in drawn:
        if n == o.count:
            break
        tests = lab.baseline(nearest_tests(path, o.all_of_folder))
        if not tests:
            continue
        where = os.path.join(lab.dir, path)
        text = open(where, encoding="utf-8").read()
        lines = text.split("\n")
        lines[i] = new
        open(where, "w", encoding="utf-8").write("\n".join(lines))
        if lab.build(tests):
            n += 1
            alive = lab.survives(tests)
            print(f"{'SURVIVES' if alive else 'dies    '} {path}:{i + 1}\n  - {old.strip()}\n  + {new.strip()}", flush=True)
            survivors += [path] * alive
        open(where, "w", encoding="utf-8").write(text)
    print(f"# seed {o.seed}: {n} mutants, {len(survivors)} survive")
    return 0


if __name__ == "__main__":
    sys.exit(main())
