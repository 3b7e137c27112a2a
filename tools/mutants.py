#!/usr/bin/env python3
"""Draws one-line mutants with a seed, builds and runs the tests near each, and reports survivors.

    tools/mutants.py --seed 7 --count 20 src/policy src/engine/schedule.c
    tools/mutants.py --seed 7 --per-folder 10 --wide 60      a sample of every folder of src/

Mutants are drawn from .c files and headers; those of GPU sources are judged on the emulated GPU, and
cuda_blas.c, which no test runs, has none.  A mutant changes one operator, constant, condition, field or
statement of one line.  It *dies* when a test fails, crashes or takes ten times as long as without it.  A
mutant that does not compile is drawn again, and so is one that no test can judge, with a line that says
why.  A survivor is a missing test, or equivalent: the line decides nothing differently.  Mutants in tools/mutants_equivalent.txt are known to be equivalent and are drawn
again.  The work happens in a copy, build/mutants, so the working tree stays as it is.  The file
build/mutants/results.tsv keeps the verdicts: an interrupted run continues where it was.  --again
tries the recorded survivors of the seed once more.

The nearest tests of src/A/b_c.c are tests/A/test_b_c*, else tests/A/test_b* and test_c*, else those of
tests/A that include its header, else all of tests/A.  Those of src/A/B/ for a backend B of src/tensor are
those that compare backends.  --wide S judges survivors again, by all tests of the folder
and then by tests that include a header of the folder, the quickest first, until S seconds are used."""
import argparse
import collections
import filecmp
import glob
import os
import random
import re
import shutil
import signal
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
    (r"\bif \((.*)\)(?= \{$|$)", r"if (!(\1))"), (r"\bwhile \((.*)\) \{$", r"while (\1 && 0) {"),
    (r"^(\s+)(?!return\b|break\b|continue\b|goto\b)[\w>.*\[\]()-]+(\(.*\)| [-+|&]?= .*|\+\+|--);$", r"\1;"),
    (r"\breturn (?!0;|NULL;|false;|true;)[^;]+;", "return 0;"),
]
SKIP = re.compile(r"^\s*(#|//|/?\*|enum|static const|extern|typedef|struct \w+;|CHECK\(|assert)|\bsizeof\b|\bfor \(.*\+\+\)?\s*$")
EQUIVALENT = "tools/mutants_equivalent.txt"
RESULTS = "build/mutants/results.tsv"


def run(argv, cwd, timeout=None):
    """Returns the exit code, 124 if it took too long. Nothing that it started is left."""
    p = subprocess.Popen(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         start_new_session=True)
    try:
        return p.wait(timeout)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()


def code_lines(text):
    """Yields (number, line) of lines outside of comments."""
    inside = False
    for i, line in enumerate(text.split("\n")):
        if not inside and not SKIP.search(line) and line.strip():
            yield i, line
        opened, closed = line.rfind("/*"), line.rfind("*/")
        inside = opened > closed if max(opened, closed) >= 0 else inside


def mutations(line):
    """Returns the lines that differ in one place, which lies before any comment or string."""
    code = re.split(r'"|/\*|\'', line)[0]
    found = []
    for pattern, new in OPERATORS:
        for m in re.finditer(pattern, code):
            if not pattern.endswith("$") or code == line:
                found.append(line[:m.start()] + m.expand(new) + line[m.end():])
    return [f for f in found if f != line]


def draw(files, rng):
    """Returns (path, line number, old, new) of one mutant for each line, in random order."""
    drawn = []
    for path in files:
        for i, line in code_lines(open(path, encoding="utf-8").read()):
            of_line = mutations(line)
            if of_line:
                drawn.append((path, i, line, rng.choice(of_line)))
    rng.shuffle(drawn)
    return drawn


def folder_of(path):
    return path.split("/")[1]


def text_of(path):
    return open(path, encoding="utf-8").read()


def runnable(tests):
    return [t for t in tests if "emulated" not in t and "test_cuda" not in t]


def nearest_tests(path):
    folder, name = folder_of(path), os.path.splitext(os.path.basename(path))[0]
    of_folder = runnable(sorted(glob.glob(f"tests/{folder}/test_*.c")))
    parts = name.split("_")
    if "/cuda/" in path:
        return ["tests/tensor/test_cuda_emulated.c"]
    if path.count("/") == 3:  # a backend of the operations
        return [t for t in of_folder if os.path.basename(t)[5:-2] in ("parity", "q8", "q4", "cpu_sample", "invariance")]
    for stems in ([name], {parts[0], parts[-1]}):
        found = [t for t in of_folder if os.path.basename(t).startswith(tuple(f"test_{s}" for s in stems))]
        if found:
            return found
    header = f'"{folder}/{name}.h"'
    return [t for t in of_folder if header in text_of(t)] or of_folder


def wide_tests(path):
    """Returns the other tests of the folder, then those of other folders that include its headers."""
    folder = folder_of(path)
    if "/cuda/" in path:
        return sorted(glob.glob("tests/engine/test_*_emulated.c")), []
    own = runnable(sorted(glob.glob(f"tests/{folder}/test_*.c")))
    others = [t for t in runnable(sorted(glob.glob("tests/*/test_*.c")))
              if t not in own and f'"{folder}/' in text_of(t)]
    if folder in ("engine", "state"):  # some faults are those of a device with memory of its own
        others += sorted(glob.glob("tests/engine/test_*_emulated.c"))
    return own, others


class Lab:
    """A copy of the tree in which mutants are built."""

    def __init__(self, make, slowest):
        self.make, self.slowest = make, slowest
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

    def judges(self, tests):
        """Returns the tests that can judge, the quickest first: they pass without a mutant, and are not too slow."""
        new = [t for t in tests if t not in self.seconds]
        if new and not self.build(new) and not self.build(new):
            sys.exit("the tree does not build")
        for t in new:
            start = time.monotonic()
            code = run(["./" + self.program(t)], self.dir, self.slowest)
            self.seconds[t] = time.monotonic() - start if code == 0 else None
            if code != 0:
                print(f"# {t} judges nothing: without a mutant its status is {code} (124: over {self.slowest:.0f} s)", flush=True)
        return sorted((t for t in tests if self.seconds[t] is not None), key=self.seconds.get)

    def killer(self, tests):
        """Returns the first test that fails, or None."""
        for t in tests:
            if run(["./" + self.program(t)], self.dir, 20 + 10 * self.seconds[t]) != 0:
                return t
        return None

    def judge(self, mutant, near, wide_s):
        """Returns what kills the mutant, None if nothing does, or False if it cannot be built."""
        path, i, _, new = mutant
        where = os.path.join(self.dir, path)
        wide = [self.judges(group) for group in wide_tests(path)] if wide_s > 0 else []
        original = text_of(where)
        lines = original.split("\n")
        lines[i] = new
        try:
            self.write(where, "\n".join(lines))
            if not self.build(near):
                return False
            found, used = self.killer(near), 0
            for t in [t for group in wide for t in group if t not in near]:
                used += self.seconds[t]
                if found is not None or used > wide_s:
                    break
                found = self.killer([t]) if self.build([t]) else None
            return found
        finally:
            self.write(where, original)

    @staticmethod
    def write(where, text):
        with open(where, "w", encoding="utf-8") as f:
            f.write(text)


def git(*argv):
    return subprocess.run(["git", *argv], capture_output=True, text=True, check=True).stdout.strip()


def files_of(paths):
    found = []
    for p in paths:
        of_folder = [f for kind in ("c", "h", "cu", "cuh") for f in glob.glob(f"{p}/**/*.{kind}", recursive=True)]
        found += sorted(of_folder) if os.path.isdir(p) else [p]
    return [f for f in found if not f.endswith("cuda_blas.c")]


def key_of(mutant):
    """A mutant by its text: line numbers move."""
    path, _, old, new = mutant
    return path, old.strip(), new.strip()


def known_equivalents():
    """Each entry is: path, TAB, line, TAB, changed line; the lines above that begin with # say why."""
    if not os.path.exists(EQUIVALENT):
        return set()
    return {tuple(line.split("\t")) for line in text_of(EQUIVALENT).splitlines() if line and line[0] != "#"}


def recorded():
    if not os.path.exists(RESULTS):
        return {}
    rows = (line.split("\t") for line in text_of(RESULTS).splitlines())
    return {tuple(r[:3]): r[3] for r in rows}


class Session:
    def __init__(self, o):
        self.o, self.lab = o, Lab(o.make.split(), o.slowest)
        self.equivalent, self.results = known_equivalents(), recorded()
        self.tally = collections.defaultdict(lambda: [0, 0])

    def verdict(self, mutant):
        known = self.results.get(key_of(mutant))
        if known is not None and not (self.o.again and known == "SURVIVES"):
            return known
        near = self.lab.judges(nearest_tests(mutant[0]))
        if not near:
            return "no judge"
        found = self.lab.judge(mutant, near, self.o.wide)
        said = "no build" if found is False else found or "SURVIVES"
        with open(RESULTS, "a", encoding="utf-8") as f:
            f.write("\t".join((*key_of(mutant), said)) + "\n")
        return said

    def sample(self, name, files, count):
        n = 0
        for mutant in draw(files, random.Random(f"{self.o.seed} {name}")):
            if n == count:
                break
            if key_of(mutant) in self.equivalent:
                continue
            said = self.verdict(mutant)
            if said == "no judge":
                print(f"# no test judges {mutant[0]}", flush=True)
            if said in ("no build", "no judge"):
                continue
            n += 1
            self.tally[name][0] += 1
            self.tally[name][1] += said == "SURVIVES"
            path, i, old, new = mutant
            print(f"{said:8} {path}:{i + 1}\n  - {old.strip()}\n  + {new.strip()}", flush=True)

    def close(self):
        for name, (n, alive) in self.tally.items():
            print(f"# seed {self.o.seed}: {name}: {n} mutants, {n - alive} die, {alive} survive")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("paths", nargs="*", default=[])
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--count", type=int, default=20)
    a.add_argument("--per-folder", type=int, default=0, help="so many of each folder, instead of --count of all")
    a.add_argument("--wide", type=float, default=0, help="seconds of further tests for what the nearest ones miss")
    a.add_argument("--slowest", type=float, default=120, help="tests that take longer do not judge")
    a.add_argument("--again", action="store_true", help="judge recorded survivors once more")
    a.add_argument("--make", default="make -s CUDA=0 -j2", help="how to build")
    o = a.parse_args()
    os.chdir(git("rev-parse", "--show-toplevel"))
    paths = o.paths or (sorted(glob.glob("src/*")) if o.per_folder else ["src/policy"])
    s = Session(o)
    if o.per_folder:
        for p in paths:
            s.sample(p, files_of([p]), o.per_folder)
    else:
        s.sample("all", files_of(paths), o.count)
    s.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
