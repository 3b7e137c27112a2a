"""GGUF files in place of a model folder: the demo model, converted here, gives the folder's results
to the bit.

tools/golden/hf_to_gguf.py converts as llama.cpp's converter does.  Tokenizers of kind `llama` are
compared with the tokenizers library (with a vocabulary of ours) and with llama.cpp (ours, and Llama
2's if ../shared has it); those of kind `gpt2` with their folders."""
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path[:0] = [HERE, os.path.join(ROOT, "tools", "golden")]
import hf_to_gguf  # noqa: E402
import vocab_gguf  # noqa: E402
from serve_client import HC  # noqa: E402
from tap import check, end, equal, hc, ok, scratch  # noqa: E402

SHARED = os.environ.get("HCACHE_SHARED", "../shared")
DEMO = "models/demo"
tmp = scratch("gguf")


def path(name):
    return os.path.join(tmp, name)


def run(model, *words):
    return json.loads(ok("run", model, "--temperature", "0", "--json", *words))


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

# --- recurrent layers in blocks ------------------------------------------------------------------------------------------
def hybrid(out, kind, seed, decay=-0.4):
    """Writes a qwen35moe file of two layers, one of them recurrent, with random blocks of Q8_0, or of Q4_K and Q6_K."""
    rng = random.Random(seed)
    hf_to_gguf.TYPES.update({"Q8_0": (8, 34 / 32), "Q4_K": (12, 144 / 256), "Q6_K": (14, 210 / 256)})

    def block(k):
        some = lambda n, lo=0, hi=256: bytes(rng.randrange(lo, hi) for _ in range(n))
        if k == "Q8_0":
            return struct.pack("<e", 0.0015) + some(32)
        if k == "Q4_K":
            return struct.pack("<ee", 0.0006, 0.0045) + some(12, 16, 64) + some(128)
        return some(192) + some(16, 1, 30) + struct.pack("<e", 0.0002)

    tensors = []

    def matrix(name, *shape, k=kind):
        weights = {"Q8_0": 32, "Q4_K": 256, "Q6_K": 256}
        n = math.prod(shape)
        raw = b"".join(struct.pack("<f", rng.gauss(0, 0.06)) for _ in range(n)) if k == "F32" else (
            b"".join(block(k) for _ in range(n // weights[k])))
        tensors.append((name, k, list(shape), raw))

    def vector(name, *shape, mid=0.0, dev=0.1):
        tensors.append((name, "F32", list(shape), b"".join(struct.pack("<f", rng.gauss(mid, dev)) for _ in range(math.prod(shape)))))

    more = "Q6_K" if kind == "Q4_K" else kind
    matrix("token_embd.weight", 128, 256)
    matrix("output.weight", 128, 256)
    vector("output_norm.weight", 256, mid=1)
    for i in range(2):
        for name in ("attn_norm", "post_attention_norm"):
            vector(f"blk.{i}.{name}.weight", 256, mid=1)
        matrix(f"blk.{i}.ffn_gate_inp.weight", 4, 256, k="F32")
        vector(f"blk.{i}.ffn_gate_inp_shexp.weight", 256)
        for name in ("gate", "up", "down"):
            matrix(f"blk.{i}.ffn_{name}_exps.weight", 4, 256, 256)
            matrix(f"blk.{i}.ffn_{name}_shexp.weight", 256, 256)
    for name, rows in (("attn_qkv", 512), ("attn_gate", 256), ("ssm_beta", 4), ("ssm_alpha", 4), ("ssm_out", 256)):
        matrix(f"blk.0.{name}.weight", rows, 256)
    for name, shape, mid in (("conv1d.weight", (512, 4), 0), ("a", (4,), decay), ("dt.bias", (4,), 0), ("norm.weight", (64,), 1)):
        vector(f"blk.0.ssm_{name}", *shape, mid=mid, dev=0.4 if name == "conv1d.weight" else 0.1)
    for name, rows, k in (("q", 512, kind), ("k", 128, kind), ("v", 128, more), ("output", 256, kind)):
        matrix(f"blk.1.attn_{name}.weight", rows, 256, k=k)
    for name in ("q", "k"):
        vector(f"blk.1.attn_{name}_norm.weight", 64, mid=1)
    u32 = dict(block_count=2, context_length=2048, embedding_length=256, expert_count=4, expert_used_count=2,
               expert_feed_forward_length=256, expert_shared_feed_forward_length=256, full_attention_interval=2)
    dotted = {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64, "attention.value_length": 64,
              "rope.dimension_count": 16, "ssm.conv_kernel": 4, "ssm.state_size": 64, "ssm.group_count": 2,
              "ssm.time_step_rank": 4, "ssm.inner_size": 256}
    pairs = [("general.architecture", hf_to_gguf.STRING, "qwen35moe"), ("tokenizer.ggml.model", hf_to_gguf.STRING, "no_vocab"),
             ("qwen35moe.attention.layer_norm_rms_epsilon", hf_to_gguf.F32, 1e-6)]
    pairs += [(f"qwen35moe.{k}", hf_to_gguf.U32, v) for k, v in {**u32, **dotted}.items()]
    hf_to_gguf.write(pathlib.Path(out), [hf_to_gguf.pair(*p) for p in pairs], tensors)


with open(path("ids"), "w", encoding="utf-8") as f:
    f.write(" ".join(str(i) for i in range(5, 101)))
few = ["--token-ids", path("ids"), "--max-tokens", "4", "--ignore-eos"]
for kind, held in (("Q8_0", "q8"), ("Q4_K", "q4")):
    hybrid(path("hybrid.gguf"), kind, 3)
    exact = run(path("hybrid.gguf"), *few, "--weights", "f32")
    first, *rest = (run(path("hybrid.gguf"), *few, "--store", path("states" + kind), "--plan", p) for p in ("auto", "auto", "hidden"))
    equal(f"a recurrent model's blocks of {kind} are held as they are, and give the tokens of f32",
          (first["model"]["held"], first["token_ids"]), (held, exact["token_ids"]))
    equal("its states come back to the bit", [(r["cached_tokens"], bits(r)) for r in rest], [(64, bits(first))] * 2)
hybrid(path("grows.gguf"), "Q8_0", 3, decay=0.4)
rc, out, err = hc("run", path("grows.gguf"), *few)
check("a state that would grow is named", "linear_attn.A_log' holds values that are no numbers" in err, err)
few[5:5] = ["--weights", "q4"]
check("blocks of 4 bits may be asked for", run(path("hybrid.gguf"), *few)["model"]["held"] == "q4")

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
shutil.copytree(OURS + "/qwen-like", path("qwen35-like"))
with open(path("qwen35-like/tokenizer.json"), encoding="utf-8") as f:
    cut = f.read()
# as Qwen3.5 cuts: marks belong to the letters before them
old, new = r"?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+", r"?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+"
equal("its pattern is another one", cut.count(old), 1)
with open(path("qwen35-like/tokenizer.json"), "w", encoding="utf-8") as f:
    f.write(cut.replace(old, new))
for source, pre in ((OURS + "/qwen-like", "qwen2"), (path("qwen35-like"), "qwen35"), (OURS + "/llama3-like", "llama-bpe"),
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
end()
