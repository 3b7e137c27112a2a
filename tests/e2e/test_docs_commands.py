"""The command lines of README.md and docs/ name existing commands with existing options. Those of
the README that need no model except models/demo are run as printed."""
import glob
import os
import re
import shlex
import subprocess

from tap import HC, PATIENCE, check, end, equal, scratch

MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", open("Makefile").read(), re.M))


def hcache(*words, **more):
    return subprocess.run([HC, *words], capture_output=True, text=True, timeout=PATIENCE, **more)


def lines_of(path):
    """Returns the lines of code in a page, indented or fenced; lines continued with a backslash are
    joined."""
    text = re.sub(r"\\\n *", "", open(path).read())
    fenced = False
    for line in text.split("\n"):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield line.strip()


def commands_of(path):
    """Returns, for each call of hcache in a page's code, the words after the program's name."""
    for line in lines_of(path):
        for call in re.findall(r"(?:^|[|;&(] *|\$\()((?:build/)?hcache [a-z-][^|;&)]*)", line):
            words = shlex.split(call.replace("...", ""), comments=True)
            if len(words) > 1 and re.match(r"^[a-z-]+$", words[1]):
                yield words[1:]


names = subprocess.run(["tools/options.sh", HC, "--names"], capture_output=True, text=True, check=True).stdout.split("\n")
options = {}
for name in filter(None, names):
    words = hcache(*name.split(), "--help=words").stdout
    letters = hcache(*name.split(), "--help").stdout
    options[name] = set(re.findall(r"^(--[a-z0-9-]+)", words, re.M)) | set(re.findall(r"^ +(-[a-zA-Z]), --", letters, re.M)) | \
        {"--help", "-h", "--config"}


def fault_of(words):
    """Returns the fault of a command line, or None."""
    if words[0] in ("--version", "--help", "help") or words == ["model", "--families"]:
        return None
    name = " ".join(words[:2]) if " ".join(words[:2]) in options else words[0]
    if name not in options:
        return f"there is no command {words[0]}"
    used = [re.sub(r"=.*", "", w) for w in words if re.match(r"^(--[a-z]|-[a-zA-Z]$)", w)]
    unknown = [o for o in used if o not in options[name]]
    return f"{name} has no {', '.join(unknown)}" if unknown else None


n = 0
for page in ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/*.md"))]:
    found = list(commands_of(page))
    n += len(found)
    equal(f"{page}: {len(found)} command lines", [f"{' '.join(w)}: {f}" for w in found if (f := fault_of(w))], [])
    targets = [w for line in lines_of(page) for w in re.findall(r"^make ([a-z][a-z-]*)", line)]
    equal(f"{page}: make has its {len(targets)} targets", [t for t in targets if t not in MAKE_TARGETS], [])
check("the pages have command lines", n > 40, n)
check("a wrong option is noticed", fault_of(["run", "models/demo", "--no-such-option"]) == "run has no --no-such-option")
check("and a wrong command", fault_of(["walk", "models/demo"]) == "there is no command walk")

# Commands that are run as printed; DIR stands for a directory.
tmp = scratch("docs")
env = {**os.environ, "HOME": tmp, "XDG_CACHE_HOME": os.path.join(tmp, "cache"), "XDG_CONFIG_HOME": os.path.join(tmp, "config")}
ran = []
for words in commands_of("README.md"):
    line = " ".join(words)
    if "models/demo" not in words and words[0] != "plan":
        continue
    p = hcache(*[os.path.join(tmp, "store") if w == "DIR" else os.path.join(tmp, w) if w == "FILE" else w for w in words], env=env)
    ran.append(words[0])
    if words == ["plan"]:
        check("README: hcache plan wants a profile of this machine", p.returncode == 2 and "hcache profile" in p.stderr, p)
    else:
        check(f"README: hcache {line}", p.returncode == 0 and p.stdout.strip() != "", p)
check("README: run, ingest and plan were among them", {"run", "ingest", "plan"} <= set(ran), ran)
end()
