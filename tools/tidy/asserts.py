"""Checks that bugs are asserted with CHECK and faults are returned: there is no assert() (it
vanishes with NDEBUG), no abort() or exit() in the library, and no CHECK on data just decoded from
bytes.  Also checks that certain calls occur only in the one file that may make them."""
import re
import subprocess
import sys

# The two places that may end the program, the one that ends a child which could not become another, and
# a stand-in of cuFile that ends tests which break its rules.
ENDS = {"src/base/check.c", "src/base/mem.c", "src/server/api_pdf.c", "sim/cuda_emu/cufile/cufile_fake.c"}
files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "src/*.[ch]", "lib/*.[ch]", "sim/*.[ch]", "cuda/*.[ch]", "cuda/*.cu"],
                       capture_output=True, text=True, check=True).stdout.split()
# Code that only one file may have: its pattern, that file, and the directory whose other files may
# not have it.
OWNED = [
    (re.compile(r"->\s*phase\s*=[^=]"), "src/engine/seq.c", "src/engine/",
     "seq.c alone changes a sequence's phase: request the edge (seq.h)"),
    (re.compile(r"\batomic_(load|store)\s*\("), "src/base/step.h", "src/restore/restore",
     "use shared_load and shared_store (base/step.h): a test lets other threads go on there"),
    (re.compile(r"\batomic_(load|store)\s*\("), "src/base/step.h", "src/save/save",
     "use shared_load and shared_store (base/step.h): a test lets other threads go on there"),
]
RULES = [
    (re.compile(r"\bassert\s*\("), "assert(): use CHECK, which stays on in release builds"),
    (re.compile(r"#\s*include\s*<assert\.h>"), "<assert.h>: use base/check.h"),
    (re.compile(r"\b(abort|_?exit|quick_exit)\s*\("), "ends the program: return a code"),
    (re.compile(r"\bCHECK\w*\(.*\b(get_u(16|32|64))\s*\("), "CHECK on decoded bytes: that is a fault, not a bug"),
    (re.compile(r"\b(gets|strcat|sprintf|vsprintf|atoi|atol|atof|alloca)\s*\("), "unbounded or unchecked: use the sized form"),
]


def code_only(text):
    """Returns the text with comments and strings replaced by spaces. Line breaks stay."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


bad = []
for path in files:
    try:
        text = code_only(open(path, encoding="utf-8").read())
    except FileNotFoundError:
        continue
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, why in RULES:
            if pattern.search(line) and path not in ENDS:
                bad.append(f"{path}:{number}: {why}")
        for pattern, owner, folder, why in OWNED:
            if path.startswith(folder) and path != owner and pattern.search(line):
                bad.append(f"{path}:{number}: {why}")
print("\n".join(bad) if bad else f"# {len(files)} files")
sys.exit(bool(bad))
