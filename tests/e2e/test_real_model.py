"""A real model: SmolLM2-135M-Instruct as a Q4_1 GGUF (tools/setup.sh --real-model fetches it).

The reference is llama.cpp: its token ids, greedy tokens and perplexity (golden/smollm2.json, made
by tools/compare_llama/golden_smollm2.py), f32 against f32.  Greedy tokens must be equal up to the
first step whose two best logits lie within 1e-3.  Besides, a conversation that was killed with
SIGKILL must continue, restored by every method, with the tokens and logits of a run without a
store.

REAL_MODEL_ALL=1 compares all 20 prompts of 200 tokens and the perplexity (of a text in ../shared);
that takes minutes."""
import json
import os
import signal
import subprocess
import sys
import time

from serve_client import Server, until
from tap import HC, PATIENCE, check, end, equal, scratch

HERE = os.path.dirname(os.path.abspath(__file__))
ALL = os.environ.get("REAL_MODEL_ALL") == "1"
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hcache")
MODEL = os.environ.get("HCACHE_REAL_MODEL") or os.path.join(CACHE, "SmolLM2-135M-Instruct.Q4_1.gguf")
if not os.path.exists(MODEL):
    print(f"1..0 # SKIP {MODEL} is not there: tools/setup.sh --real-model fetches it where the network gives it")
    sys.exit(0)
golden = json.load(open(os.path.join(HERE, "golden", "smollm2.json"), encoding="utf-8"))
tmp = scratch("real")
os.environ["XDG_CACHE_HOME"] = os.path.join(tmp, "cache")
LAYERS = 30


def command(*words):
    return [HC, "run", MODEL, "--temperature", "0", "--json", *words]


def run(*words):
    p = subprocess.run(command(*words), capture_output=True, text=True, timeout=PATIENCE)
    if p.returncode != 0:
        raise RuntimeError(f"status {p.returncode}: {words}\n{p.stderr[-800:]}")
    return {**json.loads(p.stdout), "stderr": p.stderr}


def write(name, text):
    path = os.path.join(tmp, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


# --- what the file says ---------------------------------------------------------------------------------------------
info = json.loads(subprocess.run([HC, "model", "info", MODEL, "--json"], capture_output=True, check=True).stdout)
equal("its types, architecture, context and template are read", info["model"],
      {"format": "gguf", "arch": "llama", "file_types": {"Q4_1": 210, "Q8_0": 1, "F32": 61}, "held": "q4",
       "template": True, "tools": "generic", "context": 8192})

# --- token ids ------------------------------------------------------------------------------------------------------
wrong = []
texts = golden["prompts"] if ALL else golden["prompts"][::2]
for p in texts:
    out = subprocess.run([HC, "tokenize", MODEL, "--parse-special"], input=p["text"].encode(), capture_output=True)
    ids = [int(i) for i in out.stdout.split()]
    if ids != p["ids"]:
        wrong.append((p["text"], ids, p["ids"]))
equal(f"llama.cpp's token ids of {len(texts)} texts", wrong, [])

# --- greedy tokens ---------------------------------------------------------------------------------------------------
wrong, n_equal, n_close = [], 0, 0
for p in golden["prompts"] if ALL else golden["prompts"][4:11:6]:
    n = 200 if ALL else 24
    got = run("--token-ids", write("ids", " ".join(map(str, p["ids"]))), "--weights", "f32", "--dtype", "f32",
              "--max-tokens", str(n), "--ignore-eos")["token_ids"]
    same = next((i for i in range(n) if got[i] != p["greedy"][i]), n)
    n_equal += same == n
    if same < n and same in p["close"]:
        n_close += 1
        print(f"# {p['text']!r}: differs at step {same}, whose two best logits lie within 1e-3")
    elif same < n:
        wrong.append((p["text"], same, got[same], p["greedy"][same]))
equal(f"llama.cpp's greedy tokens: {n_equal} answers equal, {n_close} up to a close call", wrong, [])

# --- logits -----------------------------------------------------------------------------------------------------------
server = Server(MODEL, "--weights", "f32", "--dtype", "f32", "--max-context", "1024")
worst, n_compared = 0, 0
for p in golden["prompts"]:
    status, _, r = server.post("/v1/completions", {"prompt": p["ids"], "max_tokens": 1, "temperature": 0, "logprobs": 5})
    got = sorted(r["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
    worst = max([worst] + [abs(a - b) for a, (_, b) in zip(got, p["first"])])
    n_compared += len(got)
server.stop()
check(f"the five best log-probabilities of llama.cpp behind {len(golden['prompts'])} prompts: {worst:.1e} off at most",
      n_compared == 5 * len(golden["prompts"]) and worst < 1e-3, (n_compared, worst))

# --- perplexity -------------------------------------------------------------------------------------------------------
text = os.path.join(os.environ.get("HCACHE_SHARED", "../shared"), "text", "input.txt")
if ALL:
    with open(text, "rb") as f:
        cut = write("text", f.read(65536).decode())
    # The perplexity of the values in f32, and of the file's own 4-bit values, where both programs
    # round activations to 8 bits.
    for weights, key in ("f32", "perplexity_64k"), ("q4", "perplexity_64k_file"):
        out = subprocess.run([HC, "ppl", MODEL, cut, "--context", "512", "--weights", weights, "--dtype", "f32", "--json"],
                             capture_output=True, text=True, timeout=2 * PATIENCE)
        got = json.loads(out.stdout)["perplexity"]
        check(f"{weights}: perplexity of 64 KiB is llama.cpp's within 0.1 %", abs(got / golden[key] - 1) < 1e-3,
              f"{got}, and {golden[key]}")

# --- how it is held ---------------------------------------------------------------------------------------------------
said = run("--prompt", "Hello", "--max-tokens", "1")
check("the file is held as it is, and that is said", "Q4_1 (210" in said["stderr"] and "held as q4" in said["stderr"] and
      said["model"]["held"] == "q4" and said["timings"]["start_passes"] == 0, said["stderr"])

# --- an image of the weights -----------------------------------------------------------------------------------------
hello = ["--prompt", "Hello", "--max-tokens", "8", "-v"]
check("a later start maps the image that an earlier one made", until(lambda: "mapped weights" in run(*hello)["stderr"]))
mapped, read = run(*hello), run(*hello, "--no-image")
equal("with the tokens and logits of one that reads the file", (mapped["token_ids"], mapped["logits_digest"]),
      (read["token_ids"], read["logits_digest"]))
check("--no-image maps none", "mapped weights" not in read["stderr"], read["stderr"])
images = os.path.join(tmp, "cache", "hcache", "images")
sizes = {name: os.path.getsize(os.path.join(images, name)) for name in os.listdir(images)}
one = min(sizes, key=sizes.get)  # the others are of --weights f32 and q8
os.truncate(os.path.join(images, one), 1 << 20)
for i in range(8):
    victim = subprocess.Popen(command(*hello), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.03 * i)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    left = {name: os.path.getsize(os.path.join(images, name)) for name in os.listdir(images)}
    check(f"killed start {i}: each image is whole, damaged as it was, or not there",
          all(n in (sizes.get(name), 1 << 20) for name, n in left.items()), left)
check("and the damaged one is made anew", until(lambda: "mapped weights" in run(*hello)["stderr"]))
equal("as it was", os.path.getsize(os.path.join(images, one)), sizes[one])

# --- killed, and restored by every method -------------------------------------------------------------------------------
story = "<|im_start|>user\n" + " ".join(f"Fact {i}: the {c} box holds {i * 7} coins." for i, c in enumerate(
    ["red", "green", "blue", "white", "black", "small", "large", "old", "new", "round", "heavy", "light"] * 2)) + \
    "\nTell me a long story about them.<|im_end|>\n<|im_start|>assistant\n"
store = os.path.join(tmp, "store")
held = ["--weights", "q8", "--raw", "--prompt-file", write("story", story)]
durable = run(*held, "--store", store, "--save", "both", "--max-tokens", "1")["committed_tokens"]
words = [w for w in command(*held, "--store", store, "--save", "both", "--max-tokens", "2000", "--ignore-eos") if w != "--json"]
victim = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
victim.stdout.read(150)
victim.send_signal(signal.SIGKILL)
victim.communicate()
check("the process was killed in mid-answer", victim.returncode == -signal.SIGKILL, victim.returncode)
alone = run(*held, "--max-tokens", "12", "--ignore-eos")
check("the prompt is long enough to mean something", alone["prompt_tokens"] > 256, alone["prompt_tokens"])
for plan, layers in (("auto", None), ("recompute", "R" * LAYERS), ("hidden", "H" * LAYERS), ("kv", "K" * LAYERS),
                     ("RRRRRRRRRRHHHHHHHHHHKKKKKKKKKK", "R" * 10 + "H" * 10 + "K" * 10)):
    r = run(*held, "--max-tokens", "12", "--ignore-eos", "--store", store, "--save", "none", "--plan", plan)
    same = r["token_ids"] == alone["token_ids"] and r["logits_digest"] == alone["logits_digest"]
    check(f"restored by {plan}: the same tokens and logits, to the bit", same,
          f"{r['logits_digest']} and {alone['logits_digest']}; {r['text']!r}")
    if layers and plan != "recompute":
        done = r["plan"]["layers"]
        check(f"restored by {plan}: {r['cached_tokens']} of {r['prompt_tokens']} tokens, as it was asked",
              r["cached_tokens"] >= 256 <= durable and sorted(done) == sorted(layers), (r["cached_tokens"], done, r["miss"]))
other = run("--weights", "bf16", "--raw", "--prompt-file", os.path.join(tmp, "story"), "--max-tokens", "1", "--store", store,
            "--save", "none")
equal("state of weights that are held in another way is not used", other["cached_tokens"], 0)

# --- make demo-real -----------------------------------------------------------------------------------------------------
p = subprocess.run(["tools/demo.sh"], env={**os.environ, "DEMO_MODEL": MODEL, "DEMO_BYTES": "2000"}, capture_output=True, text=True,
                   timeout=PATIENCE)
check("the demo with this model ends well, and restores", p.returncode == 0 and "output              identical" in p.stdout, p)
end()
