"""Checks every #include "..." against the table of layers below: which directory may include which.

tests/ and bench/ may include everything; examples/ and tools/ are built against an installed copy.  A header
without a directory ("x.h") is in the same directory; the public header is "hcache.h"."""
import os
import re
import subprocess
import sys

# folder: other folders whose headers it may include
MAY = {
    "src/base": [],
    "lib/jinja": ["base"],
    "lib/grammar": ["base"],
    "lib/pack": ["base"],
    "lib/seal": ["base"],
    "lib/redis": ["base"],
    "lib/opt": ["base"],
    "lib/bpe": ["base"],
    "lib/checkpoint": ["base"],
    "src/io": ["seal", "base"],
    "src/tensor": ["base"],
    "cuda": ["tensor", "base"],
    "mpi": ["model", "store", "io", "pack", "seal", "tensor", "base"],
    "src/model": ["checkpoint", "io", "tensor", "base"],
    "src/text": ["model", "jinja", "bpe", "checkpoint", "io", "base"],
    "src/store": ["io", "seal", "redis", "base"],
    "sim": ["restore", "save", "store", "model", "checkpoint", "io", "tensor", "base"],
    "src/save": ["store", "model", "pack", "tensor", "io", "base"],
    "src/restore": ["save", "store", "model", "pack", "tensor", "io", "base"],
    "src/engine": ["hcache.h", "restore", "save", "store", "model", "grammar", "tensor", "io", "base"],
    "src/api": ["hcache.h", "engine", "restore", "save", "store", "text", "model", "grammar", "redis", "opt", "tensor", "io", "seal", "base"],
    "src/server": ["hcache.h", "api", "base"],
    "include": [],
}
# The files of src/api that the public functions are made of. Its other files, of conversations, requests
# and batches, see the library as its users do.
SERVICE = set("context control counts dialog forms hcache hcache_impl memory_plan service stack ticket "
              "truncate truncate_text".split())
# Made of the same parts, and used by the server.
OPENS_SEVERAL = {"models"}
API_PUBLIC_ONLY = ["hcache.h", "api", "io", "seal", "base"]
# Most commands see the library as its users do. Commands that are tools may include other headers.
PUBLIC_ONLY = ["hcache.h", "opt", "base", "apps", "api", "server"]
APPS_PUBLIC_ONLY = {"apps/cmd_run.c", "apps/cmd_serve.c", "apps/cmd_batch.c"}
FREE = ("tests/", "bench/", "apps/", "examples/", "tools/")

# Only the CUDA backend may include its own parts that no GPU has run yet.
UNTRIED = "cuda/untried/"

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def folder_of(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] in ("src", "lib") else parts[0]


def layer_of(header):
    """Returns the table's name for the place of a header: "base", "hcache.h", "apps". Returns None
    for a header of the same directory."""
    if "/" not in header:
        return header if header in ("hcache.h", "build_id.h") else None
    return header.split("/")[0]


files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h", "*.cu", "*.cuh"],
                       capture_output=True, text=True, check=True).stdout.split()
bad = []
n = 0
for path in files:
    try:
        text = open(path, encoding="utf-8").read()
    except FileNotFoundError:
        continue
    folder = folder_of(path)
    if path in APPS_PUBLIC_ONLY:
        allowed = PUBLIC_ONLY
    # opens a tokenizer without its model, because it needs no weights
    elif path == "apps/cmd_tokenize.c":
        allowed = PUBLIC_ONLY + ["text"]
    elif path.startswith(FREE):
        continue
    elif folder == "src/api" and os.path.splitext(os.path.basename(path))[0] not in SERVICE | OPENS_SEVERAL:
        allowed = API_PUBLIC_ONLY
    elif folder in MAY:
        allowed = MAY[folder] + [folder.split("/")[-1]]
    else:
        bad.append(f"{path}: the folder {folder} is in no layer (tools/tidy/layering.py)")
        continue
    for header in INCLUDE.findall(text):
        n += 1
        if header.startswith(UNTRIED) and not path.startswith("cuda/"):
            bad.append(f'{path}: "{header}" is private to cuda')
        if header.startswith("api/") and header[4:-2] in SERVICE and (folder == "src/server" or allowed == API_PUBLIC_ONLY):
            bad.append(f'{path}: "{header}" is private to the library')
        layer = layer_of(header)
        if layer == "build_id.h" and folder == "apps" or layer is None or layer in allowed:
            continue
        bad.append(f'{path}: "{header}" is not below {folder} (may include: {", ".join(allowed)})')
        if ".." in header.split("/"):
            bad.append(f'{path}: "{header}" is written relative to a folder')
print(f"# {n} includes" if not bad else "\n".join(bad))
sys.exit(bool(bad))
