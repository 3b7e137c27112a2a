"""Checks the sizes in tools/tidy/budgets.txt, which only fall: lines and files of src/, lines of the
code of tests, rows of the option tables, and tests that include a private header.  A commit
that raises one says in its body what it removed for it, or why it cannot.  `make walk` checks the
files that one chat turn crosses."""
import re
import subprocess
import sys


def listed(*patterns):
    return subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns], capture_output=True, text=True,
                          check=True).stdout.split()


def lines(paths):
    total = 0
    for p in paths:
        try:
            total += open(p, encoding="utf-8", errors="replace").read().count("\n")
        except FileNotFoundError:
            pass  # deleted and not yet committed
    return total


def private_tests():
    """Counts the test programs that include a header with _impl or _parts in its name."""
    return sum(bool(re.search(r'#include "[^"]*_(impl|parts)\.h"', open(p, encoding="utf-8").read()))
               for p in listed("tests/*/test_*.c"))


source = [p for p in listed("src/") if p.endswith((".c", ".h"))]
now = {
    "src_lines": lines(source),
    "src_files": len(source),
    "test_lines": lines(p for p in listed("tests/") if p.endswith((".c", ".h", ".py", ".sh", ".cc"))),
    "option_rows": sum(len(re.findall(r'\{"[a-z0-9-]+",\s*OPT', open(p, encoding="utf-8").read()))
                       for p in listed("apps/*.[ch]", "bench/*.[ch]")),
    "private_tests": private_tests(),
}
budgets = dict(re.findall(r"^([a-z_]+) +(\d+)", open("tools/tidy/budgets.txt").read(), re.M))
bad = [f"{name} is {n}; tools/tidy/budgets.txt allows {budgets[name]}" for name, n in now.items() if n > int(budgets[name])]
print("\n".join(bad) if bad else "# " + ", ".join(f"{name} {n}" for name, n in now.items()))
sys.exit(bool(bad))
