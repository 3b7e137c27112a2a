#!/usr/bin/env python3
"""Writes llama.cpp's token ids of some texts, from the scores of a vocabulary, into
tests/e2e/golden: llama2_ids.json for Llama 2's vocabulary, llama2_like_ids.json for the folder
tests/model/golden/llama2-like.

  golden_ids.py TOKENIZER.model|FOLDER JUDGE      (JUDGE: judge.cpp, built as build.sh builds logits.cpp)
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "golden"))
import vocab_gguf  # noqa: E402

TEXTS = [
    "Hello world", "  two  spaces", "a", " ", "    ", "\n\n\t x", "The quick brown fox jumps over the lazy dog.",
    "unbelievably antidisestablishmentarianism", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "1234567890 3.14159 0x1F", "don't can't it's",
    "日本語のテキスト", "Привет, мир! Ёлка", "naïve café œuvre", "🙂🙃 👩‍👩‍👧", "ﬁ ½ ² Å", "\u2581already\u2581there", "\u0000zero",
    "<s> [INST] hi [/INST] </s>", "x<s>y</s>z", "<0x0A> <unk>", "def f(x):\n    return x**2 + 1  # square\n",
    "http://example.com/a?b=c&d=%20", "tokentokentokentoken", "ÀÈÌÒÙ àèìòù ÄËÏÖÜ", "مرحبا بالعالم", "हिन्दी", "ไทย", "한국어", "e\u0301 é",
]
TEXTS = [t for t in TEXTS if "\0" not in t]
source = pathlib.Path(sys.argv[1])
with tempfile.TemporaryDirectory() as tmp:
    path = f"{tmp}/v.gguf"
    (vocab_gguf.scores if source.is_dir() else vocab_gguf.spm)(source, path)
    done = subprocess.run([sys.argv[2], "ids", path], input=b"".join(t.encode() + b"\0" for t in TEXTS), capture_output=True,
                          check=True)
lines = done.stdout.decode().splitlines()
assert len(lines) == len(TEXTS)
out = {"oracle": "llama.cpp of llama-cpp-python 0.3.36",
       "cases": [{"text": t, "ids": [int(i) for i in line.split()]} for t, line in zip(TEXTS, lines)]}
path = ROOT / "tests" / "e2e" / "golden" / ("llama2_like_ids.json" if source.is_dir() else "llama2_ids.json")
path.write_text(json.dumps(out).replace('{"text"', '\n{"text"') + "\n")
