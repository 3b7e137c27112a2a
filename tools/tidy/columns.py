"""Checks that comments and documents have at most 100 columns.  Exceptions: rows of tables, in a
document (they begin with a bar) or in a comment (three spaces separate their cells); strings; code
in a document; and words that cannot be broken."""
import re
import subprocess
import sys

MOST = 100


def listed(*patterns):
    return subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns],
                          capture_output=True, text=True, check=True).stdout.split()


def too_wide(line):
    """Returns whether the line is too wide and could be broken: it has a space within its columns,
    after its first word."""
    return len(line) > MOST and " " in line[:MOST].strip()


def wide_in_c(text):
    for n, line in enumerate(text.splitlines(), 1):
        is_row = re.search(r"\S {3,}\S", line)
        if too_wide(line) and '"' not in line and not is_row:
            yield n


def wide_in_document(text):
    is_code = False
    for n, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        is_shown = is_code or line.startswith("    ")
        if too_wide(line) and not is_shown and not line.lstrip().startswith("|"):
            words = re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", lambda m: m.group().replace(" ", "_"), line)
            if " " in words[:MOST].strip() and len(words.rstrip()) > MOST:
                yield n


bad = []
for names, wide in ((listed("*.c", "*.h"), wide_in_c), (listed("*.md"), wide_in_document)):
    for name in names:
        try:
            with open(name, encoding="utf-8") as f:
                bad += [f"{name}:{n}: more than {MOST} columns" for n in wide(f.read())]
        except FileNotFoundError:
            continue  # removed, and not committed yet
print("\n".join(bad) if bad else f"# comments and documents of at most {MOST} columns")
sys.exit(bool(bad))
