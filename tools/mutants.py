#!/usr/bin/env python3
"""Draws one-line mutants with a seed, builds and runs the tests near each, and reports survivors.

    tools/mutants.py --seed 7 --count 20 src/restore src/engine/schedule.c
    tools/mutants.py --seed 7 --per-folder 10 --wide 60      a sample of every folder of src/

Mutants are drawn from .c files and headers. The emulated GPU judges GPU sources; cuda_blas.c, which no
test runs, has no mutants, and AMX sources have none on a processor without AMX.  A mutant changes one operator, constant, condition, field or statement of one
line.  It *dies* when a test fails, crashes or takes ten times as long as without it.  A mutant that does
not compile is drawn again, and so is one that no test can judge.  A survivor is a missing test, or
equivalent: the line decides nothing differently.  A survivor of which the compiler makes the same code is
equivalent and is drawn again.  So are the mutants in tools/mutants_equivalent.txt, which people have judged.

The tool keeps a copy of the tree in build/mutants and builds it there once.  A mutant's object is compiled
beside that build and linked with each test, so --jobs mutants are judged side by side.  A test ends at its
first failure.  The file build/mutants/results.tsv keeps the verdicts: an interrupted run continues where
it was.  --seconds S draws nothing after S seconds.  --again judges the recorded survivors of the seed once
more.

The nearest tests of src/A/b_c.c are tests/A/test_b_c*, else tests/A/test_b* and test_c*, else those of
tests/A that include its header, else all of tests/A.  Those of src/A/B/ for a backend B of src/tensor are
those that compare backends.  --wide S judges survivors again for at most S seconds: by all tests of the
folder, by tests that include a header of the folder, then by end-to-end tests, the quickest first."""
import argparse
import collections
import concurrent.futures
import filecmp
import glob
import hashlib
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# Each row replaces one match in a line. Comments and strings are left alone.
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
SKIP = re.compile(r"^\s*(#|//|/?\*|enum|static const|extern|typedef|struct \w+;|CHECK\(|assert|_Static_assert)|\bsizeof\b|\bfor \(.*\+\+\)?\s*$")
EQUIVALENT = "tools/mutants_equivalent.txt"
RESULTS = "build/mutants/results.tsv"
SECONDS = "build/mutants/seconds.tsv"
# Source files that run only on a device with memory of its own, and the test with such a device.
NEAREST = dict.fromkeys(("src/restore/restore_up.c", "src/restore/restore_direct.c", "src/save/save_down.c"),
                        ["tests/restore/test_lives.c"])
# And a file whose own test may be too slow to judge, with another one.
NEAREST["src/restore/plan_cut.c"] = ["tests/restore/test_plan_cut.c", "tests/restore/test_plan_decisions.c"]
# A header that is included by more objects than this is not judged, because that would take
# minutes.
MOST_OBJECTS = 60
# End-to-end tests, by their names, that judge a folder after the folder's own tests.
END_TO_END = {
    "server": "serve", "api": "serve|stateful|retoken|moved|shaping|zero|batch", "remote": "remote", "store": "store_cmd|heal|owed",
    "sim": "bench_tiers", "model": "golden|bad_input|packed|gguf", "text": "golden|bad_input|gguf|answers",
    "restore": "forced_plans|_plan", "engine": "forced_plans|hybrid",
}


def code_lines(text):
    """Yields (number, line) of lines outside of comments."""
    inside = False
    for i, line in enumerate(text.split("\n")):
        if not inside and not SKIP.search(line) and line.strip():
            yield i, line
        opened, closed = line.rfind("/*"), line.rfind("*/")
        inside = opened > closed if max(opened, closed) >= 0 else inside


def mutations(line):
    """Returns all lines that differ from this one in one place, which lies before any comment or
    string."""
    code = re.split(r'"|/\*|\'', line)[0]
    found = []
    for pattern, new in OPERATORS:
        for m in re.finditer(pattern, code):
            if not pattern.endswith("$") or code == line:
                found.append(line[:m.start()] + m.expand(new) + line[m.end():])
    return [f for f in found if f != line]


def draw(files, rng):
    """Returns (path, line number, old line, new line) of one mutant for each line, in random order."""
    drawn = []
    for path in files:
        for i, line in code_lines(open(path, encoding="utf-8").read()):
            of_line = mutations(line)
            if of_line:
                drawn.append((path, i, line, rng.choice(of_line)))
    rng.shuffle(drawn)
    return drawn


def folder_of(path):
    """Returns the name of the folder of tests/ with the tests of a source."""
    return "tensor" if path.startswith("src/tensor/") else os.path.basename(os.path.dirname(path))


def text_of(path):
    return open(path, encoding="utf-8").read()


def runnable(tests):
    return [t for t in tests if "emulated" not in t and "test_cuda" not in t]


def nearest_tests(path):
    folder, name = folder_of(path), os.path.splitext(os.path.basename(path))[0]
    of_folder = runnable(sorted(glob.glob(f"tests/{folder}/test_*.c")))
    parts = name.split("_")
    if path in NEAREST:
        return NEAREST[path]
    if path.startswith("cuda/"):
        return ["tests/tensor/test_cuda_emulated.c"]
    if path.startswith("src/tensor/") and path.count("/") == 3:  # a backend of the tensor operations
        return [t for t in of_folder if re.search("parity|_q[48]|_cpu|_fetch|invariance", t)]
    for stems in ([name], {parts[0], parts[-1]}):
        found = [t for t in of_folder if os.path.basename(t).startswith(tuple(f"test_{s}" for s in stems))]
        if found:
            return found
    header = f'"{folder}/{name}.h"'
    return [t for t in of_folder if header in text_of(t)] or of_folder


def wide_tests(path):
    """Returns the other tests of the folder, followed by tests of other folders that include its
    headers."""
    folder = folder_of(path)
    if path.startswith("cuda/"):
        return sorted(glob.glob("tests/engine/test_*_emulated.c")),
    own = runnable(sorted(glob.glob(f"tests/{folder}/test_*.c")))
    ends = [t for t in sorted(glob.glob("tests/e2e/test_*")) if re.search(END_TO_END.get(folder, "^$"), t[15:])]
    others = [t for t in runnable(sorted(glob.glob("tests/*/test_*.c")))
              if t not in own and re.search(f'["/]{folder}/', text_of(t))]
    if folder in ("engine", "save", "restore"):  # some faults show only on a device with memory of its own
        others += sorted(glob.glob("tests/engine/test_*_emulated.c"))
    return own, others, ends


def run(argv, cwd, env=None, timeout=None):
    """Returns whether a command ends well in time. A test is ended at its first "not ok". All
    processes that it started are ended."""
    p = subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         start_new_session=True)
    late = threading.Timer(timeout, os.killpg, (p.pid, signal.SIGKILL)) if timeout else None
    try:
        if late:
            late.start()
        failed = any(line.startswith(b"not ok") and b"# SKIP" not in line for line in p.stdout)
        return not failed and p.wait() == 0
    finally:
        if late:
            late.cancel()
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
        p.stdout.close()


class Lab:
    """A copy of the tree that is built once.  Mutants are compiled and linked in folders beside it."""

    def __init__(self, make, slowest):
        self.make, self.slowest, self.dir = make, slowest, "build/mutants"
        for path in git("ls-files", "-co", "--exclude-standard").splitlines():
            self.copy(path)
        # A test must not depend on the caller's options (tools/run_tests.sh).
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HCACHE_")}
        self.env |= {"HCACHE_DRAM": "0", "CMOCKA_MESSAGE_OUTPUT": "TAP", "HCACHE_SHARED": os.path.realpath("../shared")}
        self.learn_commands()
        if not self.build(sorted(o for o in self.compiles if "/test_" in o) + ["build/release/hcache", "build/release/tests/libtests.a"]):
            sys.exit("the tree does not build")
        self.learn_sources()
        self.seconds, self.lock = {}, threading.Lock()
        self.known = dict(line.rsplit("\t", 1) for line in text_of(SECONDS).splitlines()) if os.path.exists(SECONDS) else {}

    def copy(self, path):
        """Copies a file. A file that is unchanged keeps its time, so that nothing is built again."""
        to = os.path.join(self.dir, path)
        if os.path.isfile(path) and not (os.path.isfile(to) and filecmp.cmp(path, to, shallow=False)):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(path, to)

    def build(self, targets):
        return run([*self.make, *targets], self.dir)

    def learn_commands(self):
        """Asks make how it would compile each object and link each program."""
        said = subprocess.run([*self.make, "-n", "-B", "all", "tests"], cwd=self.dir, capture_output=True, text=True, check=True)
        self.compiles, self.links = {}, {}
        for line in said.stdout.splitlines():
            argv = shlex.split(line) if " -o " in line and not line.startswith("echo") else []
            if "-o" in argv:
                of = self.compiles if "-c" in argv else self.links
                of[argv[argv.index("-o") + 1]] = argv

    def learn_sources(self):
        """Reads from the compiler's dependency files which objects each source goes into."""
        self.objects = collections.defaultdict(list)
        for o in self.compiles:
            notes = os.path.join(self.dir, o[:-2] + ".d")
            for path in text_of(notes).split(":", 1)[1].split("\n\n")[0].split() if os.path.exists(notes) else []:
                if path.startswith(("src/", "lib/", "sim/", "cuda/")):
                    self.objects[path.rstrip(":")].append(o)

    @staticmethod
    def program(test):
        return "build/release/" + (test[:-2] if test.endswith(".c") else "hcache")

    def passes(self, test, build, timeout):
        env = self.env | {"HCACHE_BUILD": build}
        argv = [f"{build}/{self.program(test)[14:]}"] if test.endswith(".c") else \
            ["bash" if test.endswith(".sh") else "python3", test]
        return run(argv, self.dir, env, timeout)

    def judges(self, tests):
        """Returns the tests that can judge, the quickest first. These pass without a mutant and are
        not too slow."""
        with self.lock:
            for t in (t for t in tests if t not in self.seconds):
                self.seconds[t] = self.time(t)
            return sorted((t for t in tests if self.seconds[t] is not None), key=self.seconds.get)

    def time(self, test):
        """Returns the seconds that a test takes without a mutant, or None if the test cannot judge.
        The seconds are kept until the test changes."""
        key = f"{test}\t{hashlib.sha1(text_of(test).encode()).hexdigest()}\t{self.slowest:.0f}"
        if key not in self.known:
            if not self.build([self.program(test)]):
                sys.exit(f"{test} does not build")
            start = time.monotonic()
            well = self.passes(test, "build/release", self.slowest)
            self.known[key] = f"{time.monotonic() - start:.2f}" if well else "-"
            with open(SECONDS, "a", encoding="utf-8") as f:
                f.write(f"{key}\t{self.known[key]}\n")
            if not well:
                print(f"# {test} judges nothing: it fails without a mutant, or takes over {self.slowest:.0f} s", flush=True)
        return None if self.known[key] == "-" else float(self.known[key])

    def mutant(self, path, text):
        """Returns a Mutant, or None if the mutant does not compile or is in too many objects. The
        caller closes the Mutant."""
        m = Mutant(self, path, text)
        wanted = [o for o in self.objects[path] if o.startswith("build/release/emu/" if path.startswith("cuda/") else "build/release/")]
        if 0 < len(wanted) <= MOST_OBJECTS and all(m.compile(o) for o in wanted):
            return m
        m.close()
        return None


class Mutant:
    """The objects of one changed source, and programs linked with them."""

    def __init__(self, lab, path, text):
        self.lab, self.path = lab, path
        self.dir = tempfile.mkdtemp(prefix="mutant-", dir=lab.dir)
        self.here = os.path.basename(self.dir)
        self.made = {}
        os.makedirs(os.path.dirname(os.path.join(self.dir, path)))
        with open(os.path.join(self.dir, path), "w", encoding="utf-8") as f:
            f.write(text)

    def compile(self, o):
        """Compiles an object from the changed source, or with the changed header."""
        to = self.made[o] = f"{self.here}/{o.replace('/', '-')}"
        argv = [a for a in self.lab.compiles[o] if a not in ("-g", "-MMD", "-MP")]
        argv = [f"{self.here}/{a}" if a == self.path else to if a == o else a for a in argv]
        i = argv.index("-Isrc")
        return run([*argv[:i], f"-I{self.here}/src", f"-ffile-prefix-map={self.here}/=", *argv[i:]], self.lab.dir)

    def link(self, program):
        """Links a program. The changed objects come before the archives that hold the unchanged
        ones."""
        to = f"{self.here}/{program[14:]}"
        os.makedirs(os.path.join(self.lab.dir, os.path.dirname(to)), exist_ok=True)
        argv = []
        for a in self.lab.links[program]:
            if a.endswith("libhcache.a"):
                argv += [new for o, new in self.made.items() if o.startswith("build/release/src/")]
            argv.append(to if a == program else self.made.get(a, a))
        return run(argv, self.lab.dir)

    def fails(self, test):
        program = self.lab.program(test)
        for o in self.lab.objects[self.path]:  # a changed header is compiled into the test, too
            if o == f"{program}.o" and o not in self.made and not self.compile(o):
                return False
        if not os.path.exists(os.path.join(self.dir, program[14:])) and not self.link(program):
            sys.exit(f"{test} cannot be linked with a changed {self.path}")
        return not self.lab.passes(test, self.here, 20 + 10 * self.lab.seconds[test])

    def is_same_code(self):
        """Returns whether the compiler makes the same objects of the unchanged source."""
        unchanged = Mutant(self.lab, self.path, text_of(os.path.join(self.lab.dir, self.path)))
        try:
            return all(unchanged.compile(o) and
                       filecmp.cmp(*(os.path.join(self.lab.dir, x.made[o]) for x in (self, unchanged)), shallow=False)
                       for o in self.made)
        finally:
            unchanged.close()

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def git(*argv):
    return subprocess.run(["git", *argv], capture_output=True, text=True, check=True).stdout.strip()


def files_of(paths):
    found = []
    for p in paths:
        of_folder = [f for kind in ("c", "h", "cu", "cuh") for f in glob.glob(f"{p}/**/*.{kind}", recursive=True)]
        found += sorted(of_folder) if os.path.isdir(p) else [p]
    has_amx = " amx_tile " in text_of("/proc/cpuinfo")
    return [f for f in found if not f.endswith("cuda_blas.c") and ("amx" not in f or has_amx)]


def key_of(mutant):
    """Returns the key of a mutant: its file and texts, because line numbers move."""
    path, _, old, new = mutant
    return path, old.strip(), new.strip()


def known_equivalents():
    """Returns the listed mutants. An entry is: path, TAB, line, TAB, changed line. Lines above it
    that begin with # give the reason."""
    if not os.path.exists(EQUIVALENT):
        return set()
    return {tuple(line.split("\t")) for line in text_of(EQUIVALENT).splitlines() if line and line[0] != "#"}


def recorded():
    if not os.path.exists(RESULTS):
        return {}
    rows = (line.split("\t") for line in text_of(RESULTS).splitlines())
    return {tuple(r[:3]): r[3] for r in rows}


def default_make():
    """Returns the make command, with the quick linker and the compiler's cache if these are
    installed."""
    found = ["make", "-s", "CUDA=0", "-j2"]
    if shutil.which("ccache"):
        found += ["CC=ccache cc", "CXX=ccache c++"]
    if shutil.which("mold"):
        found += ["LDFLAGS=-pthread -fuse-ld=mold"]
    return found


class Session:
    def __init__(self, o):
        self.o, self.start = o, time.monotonic()
        self.lab = Lab(shlex.split(o.make) if o.make else default_make(), o.slowest)
        self.equivalent, self.results = known_equivalents(), recorded()
        self.tally = collections.defaultdict(lambda: [0, 0])

    def verdict(self, mutant):
        """Returns the test that kills a mutant, or SURVIVES, "same code", "no build" or "no judge"."""
        known = self.results.get(key_of(mutant))
        if known is not None and not (self.o.again and known == "SURVIVES"):
            return known
        path, i, _, new = mutant
        near = self.lab.judges(nearest_tests(path))
        if not near:
            return "no judge"
        lines = text_of(path).split("\n")
        lines[i] = new
        m = self.lab.mutant(path, "\n".join(lines))
        if not m:
            said = "no build"
        else:
            try:
                said = next((t for t in near if m.fails(t)), None)
                said = said or ("same code" if m.is_same_code() else self.wide(m, path, near) or "SURVIVES")
            finally:
                m.close()
        with open(RESULTS, "a", encoding="utf-8") as f:
            f.write("\t".join((*key_of(mutant), said)) + "\n")
        return said

    def wide(self, m, path, near):
        used = 0
        for group in wide_tests(path) if self.o.wide > 0 else []:
            for t in self.lab.judges(group):
                used += self.lab.seconds[t] * (t not in near)
                if used > self.o.wide:
                    return None
                if t not in near and m.fails(t):
                    return t
        return None

    def in_time(self):
        return not self.o.seconds or time.monotonic() - self.start < self.o.seconds

    def sample(self, name, files, count):
        drawn = (m for m in draw(files, random.Random(f"{self.o.seed} {name}")) if key_of(m) not in self.equivalent)
        n, running = 0, collections.deque()
        with concurrent.futures.ThreadPoolExecutor(self.o.jobs) as pool:
            while n < count:
                # so that a slow mutant does not keep the others waiting
                ahead = max(self.o.jobs, min(4 * self.o.jobs, count - n))
                while len(running) < ahead and self.in_time():
                    mutant = next(drawn, None)
                    if not mutant:
                        break
                    running.append((mutant, pool.submit(self.verdict, mutant)))
                if not running:
                    break
                mutant, said = running.popleft()
                n += self.tell(name, mutant, said.result())

    def tell(self, name, mutant, said):
        """Prints a verdict. Returns whether the mutant counts."""
        path, i, old, new = mutant
        if said == "no judge":
            print(f"# no test judges {path}", flush=True)
        if said in ("same code", "no build", "no judge"):
            return False
        self.tally[name][0] += 1
        self.tally[name][1] += said == "SURVIVES"
        print(f"{said:8} {path}:{i + 1}\n  - {old.strip()}\n  + {new.strip()}", flush=True)
        return True

    def close(self):
        for name, (n, alive) in self.tally.items():
            print(f"# seed {self.o.seed}: {name}: {n} mutants, {n - alive} die, {alive} survive")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("paths", nargs="*", default=[])
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--count", type=int, default=20)
    a.add_argument("--per-folder", type=int, default=0, help="number of mutants of each folder, instead of --count of all")
    a.add_argument("--wide", type=float, default=0, help="seconds of further tests for mutants that the nearest tests miss")
    a.add_argument("--slowest", type=float, default=120, help="tests that take longer than these seconds do not judge")
    a.add_argument("--seconds", type=float, default=0, help="draw nothing after this many seconds; 0: no limit")
    a.add_argument("--jobs", type=int, default=2, help="mutants that are judged side by side")
    a.add_argument("--again", action="store_true", help="judge recorded survivors once more")
    a.add_argument("--make", help="command that builds the tree, instead of make")
    a.add_argument("--nearest", metavar="SOURCE", help="print the nearest tests of a source, and draw nothing (make near)")
    o = a.parse_args()
    os.chdir(git("rev-parse", "--show-toplevel"))
    if o.nearest:
        print(*nearest_tests(o.nearest))
        return 0
    paths = o.paths or (sorted(glob.glob("src/*")) if o.per_folder else ["src/restore"])
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
