"""Checks that the names in documents and comments exist: files, documents and their sections,
options, and names with underscores.  A name exists if the tree has the file or the heading, or if
code (not a comment or a document) has the word.  Names of other programs stand in the lists below."""
import os
import re
import subprocess
import sys

FOREIGN = set("""proxy_ignore_client_abort ssl_certificate ssl_certificate_key
run_args run_cmd run_options run_positionals custom_ids tier0_name sm_90 l_len pure
add-host signal ctx-checkpoints extra_buffer language_models openai_compatible api_url available_models
langchain_openai""".split())
SHOWN = re.compile(r"\.(?:md|c|h|cu|cuh)$")  # files whose text is checked
SOURCE = re.compile(r"\.(?:c|h|cu|cuh|cc|cpp|js)$")
READ = re.compile(r"\.(?:md|c|h|cu|cuh|cc|cpp|js|py|sh|html|in|cfg|conf|txt|zsh)$|Makefile$|^\.ci/")
COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"])//[^\n]*", re.S)
FOLDERS = "src|include|apps|bench|tests|tools|docs|examples|models|packaging"
FILE = re.compile(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./*<>{{}}-]+)|"
                  r"(?<![\w/.*<>{}-])([a-z][\w-]*\.(?:c|h|cu|cuh|py|sh))(?![\w.])")
DOCUMENT = re.compile(r"(?<![\w/.-])(?:\w+/)*([A-Z][A-Z_]+\.md)")
SECTION = re.compile(r"([A-Z][A-Z_]{4,})(?:\.md)?[`)\]]{0,2}(?:\([^)]*\))?(?: \(|, )\"([^\"]+)\"")
LINK = re.compile(r"\]\(([^)#:]+\.\w+)\)")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9]+(?:-[a-z0-9]+)*)(?![\w-])")
WORD = re.compile(r"(?<![\w./:$%-])((?:n|[a-z][a-z0-9]+)(?:_[a-z0-9]+)+)(?![\w.:*-])")

files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                       capture_output=True, text=True, check=True).stdout.split("\n")
files = [f for f in files if os.path.exists(f)]
texts = {}
for f in filter(READ.search, files):
    with open(f, encoding="utf-8", errors="replace") as opened:
        texts[f] = opened.read()

paths, words, options, headings = set(), set(FOREIGN), set(FOREIGN), {}
for f in files:
    words.add(os.path.splitext(os.path.basename(f))[0])  # a test is called by its program
    while f:
        paths.update((f, os.path.splitext(f)[0]))
        f = os.path.dirname(f)
names = {os.path.basename(p) for p in paths}
for f, text in texts.items():
    if f.endswith(".md"):
        titles = re.findall(r"^#+ (.*)$|^(?:- )?\*\*([^*]+)\*\*", text, re.M)
        headings[os.path.basename(f)] = headings.get(os.path.basename(f), []) + [
            re.sub(r"[`.:]", "", a or b).lower() for a, b in titles]
    elif f != "tools/tidy/names.py":
        code = COMMENT.sub(" ", text) if SOURCE.search(f) else text
        words.update(re.findall(r"[A-Za-z_]\w*", code))
        options.update(re.findall(r"\"([a-z][a-z0-9-]+)\"", code))
        options.update(OPTION.findall(code))


def file_exists(name):
    name = name.rstrip("/.")
    if re.search(r"[*<>{}]|\.\.|NAME", name):
        return True  # a pattern is not checked
    return name in paths or name in names or any(p.endswith("/" + name) for p in paths)


def section_exists(document, title):
    title = re.sub(r"[`.:]", "", title).lower().rstrip(",")
    return any(h.startswith(title) for h in headings[document])


def faults(f, text):
    """Yields the offset and the description of each name in the text that does not exist."""
    flat = re.sub(r"\s", " ", text)
    for m in FILE.finditer(text):
        name = m.group(1) or m.group(2)
        if not file_exists(name) and not name.startswith("transformer."):  # Falcon's tensors
            yield m.start(), "no file " + name
    for m in DOCUMENT.finditer(text):
        if m.group(1) not in names:
            yield m.start(), "no document " + m.group(1)
    for m in SECTION.finditer(flat):
        if m.group(1) + ".md" in headings and not section_exists(m.group(1) + ".md", m.group(2)):
            yield m.start(), f'no section "{m.group(2)}" in {m.group(1)}.md'
    for m in LINK.finditer(text if f.endswith(".md") else ""):
        if not os.path.exists(os.path.join(os.path.dirname(f), m.group(1))):
            yield m.start(), "no target of the link " + m.group(1)
    for m in OPTION.finditer(text):
        if m.group(1) not in options:
            yield m.start(), "no option --" + m.group(1)
    for m in WORD.finditer(text):
        if m.group(1) not in words and m.group(1).removeprefix("hcache_") not in words \
                and not re.match(r"(?:resp|conv|batch|msg)_\d", m.group(1)):
            yield m.start(), "no name " + m.group(1)


bad = []
for f in filter(SHOWN.search, texts):
    pieces = [(0, texts[f])]
    if not f.endswith(".md"):
        pieces = [(m.start(), re.sub(r"\n( *\*? ?)", lambda m: "\n" + " " * len(m.group(1)), m.group()))
                  for m in COMMENT.finditer(texts[f])]
    for start, text in pieces:
        for at, fault in faults(f, text):
            bad.append(f"{f}:{texts[f].count(chr(10), 0, start + at) + 1}: {fault}")
print("\n".join(bad) if bad else f"# the names in {sum(map(bool, map(SHOWN.search, texts)))} files")
sys.exit(bool(bad))
