"""docs/GETTING_STARTED.md: every command of the page runs, in the page's order and in one shell,
and does what the page says.

Blocks marked "sh setup" take minutes, or need root or a network. For these the test only checks
that the programs they name exist. The model is models/demo, as on a machine without a network. With
REAL_MODEL_ALL=1 it is the page's own model, if that was fetched."""
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

from ports import free_port
from tap import PATIENCE, check, end, equal, scratch

PAGE = "docs/GETTING_STARTED.md"
BUILD = os.path.abspath(os.environ["HCACHE_BUILD"])
REAL_MODEL = os.path.expanduser("~/.cache/hcache/SmolLM2-135M-Instruct.Q4_1.gguf")


def blocks(path):
    """Returns (kind, text) for each fenced block."""
    return re.findall(r"^```(.*)\n((?:.*\n)*?)^```$", open(path).read(), re.M)


def what_is_missing(line):
    """Returns why a command of a set-up block cannot work, or None."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        targets = [w for w in words[1:] if w[0] != "-" and "=" not in w]
        makefile = open("Makefile").read()
        absent = [t for t in targets if not re.search(rf"^{re.escape(t)}:", makefile, re.M)]
        return f"no targets {absent}" if absent or not targets else None
    if words[0].startswith("tools/"):
        if not os.access(words[0], os.X_OK):
            return "no such program"
        absent = [w for w in words[1:] if f"{w})" not in open(words[0]).read() and f"= {w} ]" not in open(words[0]).read()]
        return f"no options {absent}" if absent else None
    return None if shutil.which(words[0]) else "not installed"


def run_all(texts):
    """Runs the blocks in one shell.  Returns its exit status, the number of blocks that ended, and
    the output of each."""
    script = "set -eo pipefail\n" + "".join(f"{t}\necho; echo '@@ end {i}'\n" for i, t in enumerate(texts))
    shell = subprocess.Popen(["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True)
    try:
        out = shell.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        out = shell.communicate()[0]
    finally:  # ends a server that a failed command has left
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    parts = re.split(r"^@@ end \d+\n", out, flags=re.M)
    return shell.returncode, len(parts) - 1, parts


if os.path.basename(BUILD) != "release":
    print("1..0 # SKIP the page builds the release program")
    sys.exit()
all_blocks = blocks(PAGE)
equal("each block says whether it runs or sets up", {k for k, _ in all_blocks}, {"sh", "sh setup"})
for kind, text in all_blocks:
    if kind == "sh setup":
        for line in text.splitlines():
            equal(f"set-up: {line.split('#')[0].strip()}", what_is_missing(line), None)

tmp = scratch("getting-started")
home = os.path.join(tmp, "home")
os.makedirs(home + "/.cache/hcache")
if os.environ.get("REAL_MODEL_ALL") and os.path.exists(REAL_MODEL):
    os.symlink(REAL_MODEL, home + "/.cache/hcache/" + os.path.basename(REAL_MODEL))
env = {k: v for k, v in os.environ.items() if not k.startswith(("HCACHE_", "XDG_", "MAKE", "MFLAGS"))}
env["HOME"] = home
# Differences from a reader's machine: the port is any free one, the tree is already built, and
# state is restored even if computing is faster on a busy machine.
env["HCACHE_PLAN"] = "kv"
text = "\0".join(t for k, t in all_blocks if k == "sh")
for old, new in (("PATH=$PWD/build:", f"PATH={shlex.quote(BUILD)}:"), ("PORT=8080", f"PORT={free_port()}"),
                 ("make install ", f"make --no-print-directory install-built B={shlex.quote(BUILD)} ")):
    equal(f"the page has {old.strip()} once", text.count(old), 1)
    text = text.replace(old, new)
chat = '~/hcache-first/chat "$MODEL" ~/hcache-first/state'
equal("the page runs the C program twice", text.count(chat), 2)
text = text.replace(chat, chat + " kv")
texts = text.split("\0")
status, n_ended, outs = run_all(texts)
equal("every block runs to its end", (status, n_ended), (0, len(texts)))
if n_ended < len(texts):
    check("the block that failed", False, texts[n_ended] + "\n" + outs[n_ended][-900:])


def said(command):
    """Returns the output of the block that contains this command."""
    held = [i for i, t in enumerate(texts) if command in t]
    equal(f"one block has {command!r}", len(held), 1)
    return outs[held[0]] if held and held[0] < n_ended else ""


def number(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else -1


stored = said("hcache store ls")
check("the chat's state is stored", number(r"(\d+) chunks?, \d+ tokens", stored) > 0, stored)
ingested = said("hcache ingest")
n_document = number(r"CONTRIBUTING\.md: (\d+) tokens", ingested)
check("the document is ingested", n_document > 200 and "all durable" in ingested, ingested)
# the last chunk may contain text that the template writes after the message
found = n_document // 64 * 64 - 64
asked = said("python3 -m json.tool ~/hcache-first/answer.json")
check("the document is found by a client's message", number(r'"cached_tokens": (\d+)', asked) >= found, asked)
page = said("<title>")
check("the page is there, and has the terminal's conversation", "<title>hcache" in page and '"first"' in page, page)
after = said("after.json").split("{", 1)[-1]
check("after the kill the document is found", number(r"'cached_tokens': (\d+)", after) >= found, after)
goes_on = said("What is my dog called?")
check("after the kill the chat goes on, with what was told", "continues after 1 turn" in goes_on, goes_on)
check("its answer knows the name", "Biscuit" in goes_on.split("last answer was")[-1], goes_on)
verified = said("hcache store verify")
check("the store is sound", number(r"(\d+) damaged", verified) == 0, verified)
c_program = said('chat "$MODEL"')
cached = [int(n) for n in re.findall(r"\[(\d+) of \d+ prompt tokens came from saved state", c_program)]
check("the C program's second process finds the first one's state", len(cached) == 2 and cached[1] >= 128 > cached[0],
      c_program)
end()
