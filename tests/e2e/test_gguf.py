"""GGUF files in place of a model folder: the demo model, converted here, gives the folder's results
to the bit.

tools/golden/hf_to_gguf.py converts as llama.cpp's converter does.  Tokenizers of kind `llama` are
compared with the tokenizers library (with a vocabulary of ours) and with llama.cpp (ours, and Llama
2's if ../shared has it); those of kind `gpt2` with their folders."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path[:0] = [HERE, os.path.join(ROOT, "tools", "golden")]
import hf_to_gguf  # noqa: E402
import vocab_gguf  # noqa: E402
from tap import PATIENCE, check, end, equal  # noqa: E402

HC = os.path.abspath(os.path.join(os.environ["HCACHE_BUILD"], "hcache"))
SHARED = os.environ.get("HCACHE_SHARED", "../shared")
DEMO = "models/demo"
tmp = tempfile.mkdtemp(prefix="hcache-gguf.")


def path(name):
    return os.path.join(tmp, name)


def hc(*words, given=None):
    p = subprocess.run([HC, *words], input=given, capture_output=True, timeout=PATIENCE)
    return p.returncode, p.stdout, p.stderr.decode()


def run(model, *words):
    rc, out, err = hc("run", model, "--temperature", "0", "--json", *words)
    if rc != 0:
        raise RuntimeError(f"{words}: status {rc}: {err}")
    return json.loads(out)


def bits(r):
    return r["token_ids"], r["logits_digest"]


def ids_of(model, text, *words):
    rc, out, err = hc("tokenize", model, *words, given=text.encode())
    return [int(i) for i in out.split()] if rc == 0 else err


# --- the folder's model, to the bit -----------------------------------------------------------------------------------
hf_to_gguf.convert(DEMO, path("demo.gguf"))
hf_to_gguf.convert(DEMO, path("parts.gguf"), split=3)
GGUF, SPLIT = path("demo.gguf"), path("parts-00001-of-00003.gguf")
chat = "<|begin|>" + "".join(f"<|user|>My dog number {i} is called Rex{i} and likes to swim.<|end|><|assistant|>Good.<|end|>"
                             for i in range(6)) + "<|user|>Tell me a story about a mole.<|end|><|assistant|>"
with open(path("chat"), "w", encoding="utf-8") as f:
    f.write(chat)
asked = ["--raw", "--prompt-file", path("chat"), "--max-tokens", "24", "--ignore-eos"]
folder = run(DEMO, *asked)
gguf = run(GGUF, *asked)
equal("its answer and its logits are the folder's", bits(gguf), bits(folder))
equal("a split file's are the same", bits(run(SPLIT, *asked)), bits(folder))
equal("run --json says what the model is", gguf["model"],
      {"format": "gguf", "arch": "llama", "file_types": {"BF16": 29, "F32": 9}, "held": "bf16", "template": True,
       "context": 2048})
with open(GGUF, "rb") as f:
    image = f.read()
# versions 2 and 3 differ only in that version 3 allows big-endian files
with open(path("v2.gguf"), "wb") as f:
    f.write(image[:4] + (2).to_bytes(4, "little") + image[8:])
equal("and so is version 2 of the format", (image[4], bits(run(path("v2.gguf"), *asked))), (3, bits(folder)))
text = "The moles said: \"Don't dig!\" 12 times…\n  <|user|> naïve 日本"
equal("its ids are the folder's", ids_of(GGUF, text), ids_of(DEMO, text))
equal("and with special tokens", ids_of(GGUF, text, "--parse-special"), ids_of(DEMO, text, "--parse-special"))
with open(path("text"), "w", encoding="utf-8") as f:
    f.write("Once upon a time there was a mole who liked to dig. " * 40)
ppl = [json.loads(hc("ppl", m, path("text"), "--context", "128", "--json")[1]) for m in (DEMO, GGUF)]
equal("its perplexity is the folder's", ppl[1]["perplexity"], ppl[0]["perplexity"])
rc, out, err = hc("run", GGUF, "-i", "--conversation", "c", "--store", path("talk"), "--temperature", "0", "--max-tokens", "20",
                  given=b"Hello!\n")
again = hc("run", DEMO, "-i", "--conversation", "c", "--store", path("talk2"), "--temperature", "0", "--max-tokens", "20",
           given=b"Hello!\n")
check("a conversation uses its chat template", rc == 0 and len(out) > 5 and out == again[1], (out, again[1], err))
rc, out, err = hc("ingest", GGUF, "--store", path("ingest"), path("text"))
check("documents are ingested with it", rc == 0, err)

# --- saved, killed, restored --------------------------------------------------------------------------------------------
durable = run(GGUF, *asked, "--store", path("store"), "--save", "both")["committed_tokens"]
words = [w for w in asked if w not in ("24",)]
words[words.index("--max-tokens") + 1:words.index("--max-tokens") + 1] = ["1500"]
victim = subprocess.Popen([HC, "run", GGUF, "--temperature", "0", "--store", path("store"), "--save", "both", *words],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
victim.stdout.read(120)
victim.send_signal(signal.SIGKILL)
victim.communicate()
equal("it was killed in mid-answer", victim.returncode, -signal.SIGKILL)
for plan in ("auto", "recompute", "hidden", "kv", "RHHK"):
    r = run(GGUF, *asked, "--store", path("store"), "--save", "none", "--plan", plan)
    check(f"restored by {plan}: the same tokens and logits, to the bit",
          bits(r) == bits(folder) and (plan in ("recompute", "auto") or r["cached_tokens"] >= 64 and durable >= 64),
          (r["cached_tokens"], r["miss"], r["text"]))

with open(GGUF, "rb") as f:
    image = bytearray(f.read())
with open(path("copy.gguf"), "wb") as f:
    f.write(image)
image[-100] ^= 1  # flips a bit in the last tensor
with open(path("other.gguf"), "wb") as f:
    f.write(image)
shared = ["--store", path("store"), "--save", "none"]
found = [run(m, *asked, *shared)["cached_tokens"] for m in (path("copy.gguf"), path("other.gguf"), DEMO)]
check("another file of the same values finds the state; one with another bit, or values held in other types, never does",
      found[0] >= 64 and found[1:] == [0, 0], found)

# --- tokenizers of kind llama ---------------------------------------------------------------------------------------------
golden = json.load(open(os.path.join(ROOT, "tests/model/golden/tokenizer-llama2-like.json"), encoding="utf-8"))
vocab_gguf.scores(os.path.join(ROOT, "tests/model/golden/llama2-like"), path("scores.gguf"))
cases = [c for c in golden["cases"] if "\0" not in c["text"]]
wrong = [(c["text"], got, c["ids"]) for c in cases[::max(1, len(cases) // 25)]
         if (got := ids_of(path("scores.gguf"), c["text"], "--parse-special")) != c["ids"]]
equal("merging by scores gives the tokenizers library's ids", wrong, [])
cases = json.load(open(os.path.join(HERE, "golden/llama2_like_ids.json"), encoding="utf-8"))["cases"]
wrong = [(c["text"], got, c["ids"]) for c in cases
         if (got := ids_of(path("scores.gguf"), c["text"], "--parse-special")) != c["ids"]]
equal("and llama.cpp's", wrong, [])
model = os.path.join(SHARED, "tokenizers/llama2/tokenizer.model")
# the vocabulary's licence forbids distributing it; elsewhere the vocabulary above is used instead
if os.path.exists(model):
    vocab_gguf.spm(model, path("llama2.gguf"))
    cases = json.load(open(os.path.join(HERE, "golden/llama2_ids.json"), encoding="utf-8"))["cases"]
    wrong = [(c["text"], got, c["ids"]) for c in cases
             if (got := ids_of(path("llama2.gguf"), c["text"], "--parse-special")) != c["ids"]]
    equal("Llama 2's vocabulary gives llama.cpp's ids", wrong, [])
OURS = os.path.join(ROOT, "tests/model/golden")
for source, pre in ((OURS + "/qwen-like", "qwen2"), (OURS + "/llama3-like", "llama-bpe"),
                    (SHARED + "/tokenizers/qwen3", "qwen2"), (SHARED + "/tokenizers/llama3", "llama-bpe")):
    if not os.path.exists(source):
        equal("only a vocabulary that is not ours may be absent", source.startswith(SHARED), True)
        continue
    vocab_gguf.bpe(source, pre, path("bpe.gguf"))
    texts = [text, "I'll've 1234567 don't\r\n\r\n   x\tÄöü", "def f(x):\n\treturn x  # no-op\n", "한국어 और हिन्दी e\u0301"]
    equal(f"cut as {pre}: the ids of {os.path.basename(source)}'s folder",
          [ids_of(path("bpe.gguf"), t, "--no-special") for t in texts],
          [ids_of(source, t, "--no-special") for t in texts])
hf_to_gguf.convert(DEMO, path("odd.gguf"), pre="mystery")
rc, out, err = hc("tokenize", path("odd.gguf"), given=b"x")
check("an unknown way of cutting text is refused by name, with those that are known",
      rc != 0 and "'mystery' is not supported" in err and "smollm" in err, err)
shutil.rmtree(tmp, ignore_errors=True)
end()
