#!/usr/bin/env python3
# Within src/store calls run one way: a file calls only functions of files before it in the list that
# src/store/store_impl.h begins with.
import glob
import os
import re
import sys

FOLDER = "src/store"
CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
DEFINED = re.compile(r"^(?!static\b|typedef\b|extern\b)[A-Za-z_][\w \t*]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)

head = open(f"{FOLDER}/store_impl.h", encoding="utf-8").read()
listed = head[head.index("Files call only files before them"):head.index("A save goes down the list")]
order = re.findall(r"\w+\.c\b", listed)
files = {os.path.basename(f): CODE.sub(" ", open(f, encoding="utf-8").read()) for f in glob.glob(f"{FOLDER}/*.c")}
bad = [f"{FOLDER}/{f}: not in the list of store_impl.h" for f in sorted(files) if f not in order]
bad += [f"{FOLDER}/store_impl.h: lists {f}, which does not exist" for f in order if f not in files]
place = {f: i for i, f in enumerate(order)}
owner = {name: f for f, text in files.items() for name in DEFINED.findall(text)}
for f, text in sorted(files.items()):
    for name in sorted(set(re.findall(r"\b\w+\b", text))):
        g = owner.get(name, f)
        if f in place and g in place and place[g] > place[f]:
            bad.append(f"{FOLDER}/{f}: calls {name} of {g}, which stands behind it")
print("\n".join(bad) if bad else f"# {len(order)} files of {FOLDER}")
sys.exit(1 if bad else 0)
