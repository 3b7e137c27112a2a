"""A packed file in place of a model folder: the same answers to the bit, the same saved state, and
little memory to make it."""
import json
import os
import resource
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path[:0] = [HERE, os.path.join(ROOT, "tools", "golden")]
import hf_to_gguf  # noqa: E402
from serve_client import HC, SAVING, Server  # noqa: E402
from tap import check, end, equal, hc, ok, scratch  # noqa: E402

DEMO = "models/demo"
tmp = scratch("packed")


def path(name):
    return os.path.join(tmp, name)


def run(model, *words):
    return json.loads(ok("run", model, "--temperature", "0", "--json", *words))


def bits(r):
    return r["token_ids"], r["logits_digest"], r["text"]


# --- memory: first, since the peak of child processes covers all children so far ---
packed = json.loads(ok("model", "pack", "synth:bench-220m", "--out", path("synth"), "--json"))
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
check("packing holds a part of the model at a time", peak < packed["bytes"] / 2, (peak, packed))
equal("--json: bytes are the file's", packed["bytes"], os.path.getsize(path("synth")))

# --- a memory budget, checked by the child's own peak ---
with open(path("ids"), "w", encoding="utf-8") as f:
    f.write(" ".join(str(i * 7 % 31000) for i in range(200)))


def measured(*words):
    p = subprocess.Popen([HC, "run", path("synth"), "--token-ids", path("ids"), "--max-tokens", "3", "--max-context", "512",
                          "--temperature", "0", "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out = p.stdout.read()
    said = p.stderr.read().decode()
    status, usage = os.wait4(p.pid, 0)[1:]
    p.returncode = os.waitstatus_to_exitcode(status)
    return json.loads(out) if p.returncode == 0 else None, said, usage.ru_maxrss * 1024


resident, said, whole = measured()
check("without a budget all weights are resident", whole > packed["bytes"], whole)
for budget in (380, 470):
    r, said, peak = measured("--weights-memory", f"{budget}MB")
    equal(f"{budget} MB: the same tokens and logits", bits(r), bits(resident))
    check(f"{budget} MB: the peak is at most 5 % above it", peak <= 1.05 * budget * 1e6, (peak, said))
    check(f"{budget} MB: the table is printed", "layers stay" in said and "are read for each pass" in said, said)
r, said, peak = measured("--weights-memory", "200MB")
check("a budget that does not hold the least is refused with the table",
      r is None and "is less than the minimum" in said and "2 layers" in said, said)
os.unlink(path("synth"))

# --- experts, read as they are chosen: by state that was saved with all of them in memory, too ---
MOE = "tests/model/golden/families/qwen3-moe"
with open(path("few"), "w", encoding="utf-8") as f:
    f.write(" ".join(str(3 + i * 7 % 60) for i in range(150)))
ok("model", "pack", MOE, "--out", path("moe"))
experts = ["--token-ids", path("few"), "--max-tokens", "4", "--ignore-eos", *SAVING]
whole = run(MOE, *experts, "--store", path("moe-store"))
for share in ("0%", "40%"):
    for store, cached in ("none", 0), ("moe-store", 128):
        r = run(path("moe"), *experts, "--weights-memory", share, *([] if store == "none" else ["--store", path(store)]))
        equal(f"experts, {share} stay, {cached} restored: the same bits", (bits(r), r["cached_tokens"]), (bits(whole), cached))
rc, _, said = hc("run", path("moe"), *experts, "--weights-memory", "1MB")
check("less than the fewest experts is refused with their size", rc != 0 and "all but experts" in said, said)

# --- the model, to the bit ------------------------------------------------------------------------------------------------
hf_to_gguf.convert(DEMO, path("demo.gguf"))
with open(path("text"), "w", encoding="utf-8") as f:
    f.write("Once upon a time there was a mole who liked to dig. " * 40)
asked = ["--prompt-file", path("text"), "--max-tokens", "16", "--ignore-eos"]
for source in (DEMO, path("demo.gguf")):
    kind = "gguf" if source.endswith("gguf") else "folder"
    file = path(kind + ".packed")
    ok("model", "pack", source, "--out", file)
    a, b = (run(m, *asked, *SAVING, "--store", path(kind)) for m in (source, file))
    equal(f"{kind}: its answer, through tokenizer and template, is the source's", bits(b), bits(a))
    equal(f"{kind}: run --json says that it is packed", b["model"]["format"], "packed")
    check(f"{kind}: state that the source has saved is restored", b["cached_tokens"] >= 64, b["miss"])
    equal(f"{kind}: perplexity", *[json.loads(ok("ppl", m, path("text"), "--context", "128", "--json"))["perplexity"]
                                   for m in (file, source)])
    info = [json.loads(ok("model", "info", m, "--json")) for m in (file, source)]
    for key in ("family", "parameters", "n_layers", "max_ctx", "kv_bytes_per_token", "dtype"):
        equal(f"{kind}: model info: {key}", info[0][key], info[1][key])
    equal(f"{kind}: model info: the template", info[0]["model"]["template"], True)
    equal(f"{kind}: tokenize", *[ok("tokenize", m, given=b"A mole digs. <|end|>") for m in (file, source)])
server = Server(path("folder.packed"))
r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8,
                                         "temperature": 0})
check("serve takes it, and its template", r[0] == 200, r)
server.stop()

# --- 4-bit weights made here: their error is reported ---
made = json.loads(ok("model", "pack", DEMO, "--weights", "q4", "--out", path("made.packed"), "--json"))
equal("q4: the file says so", made["weights"], "q4")
check("q4: the error of each tensor that was made", len(made["made_q4"]) == 24 and
      all(0.02 < e["relative_error"] < 0.15 for e in made["made_q4"]), made)
check("q4: the perplexity of a short text, and that with f32", "perplexity" in made["note"] and "f32" in made["note"], made)
said = json.loads(ok("run", path("made.packed"), *asked, "--json"))
rc, out, err = hc("run", DEMO, *asked, "--json", "--weights", "q4", "-v")
equal("q4: a packed file is the folder made alike", bits(json.loads(out)), bits(said))
check("q4: -v tells the error of each tensor once", rc == 0 and err.count("converted to q4_1 with an error of") == 24, err)

# --- what cannot be used --------------------------------------------------------------------------------------------------
with open(path("folder.packed"), "r+b") as f:
    f.seek(-5000, os.SEEK_END)
    byte = f.read(1)
    f.seek(-5000, os.SEEK_END)
    f.write(bytes([byte[0] ^ 1]))
rc, out, err = hc("run", path("folder.packed"), *asked, "--json")
check("a flipped bit is an error that names the file, and no answer",
      rc == 1 and "folder.packed" in err and "damaged" in err and out == "", (rc, out, err))
rc, out, err = hc("model", "pack", DEMO, "--out", path("gguf.packed"))
check("a file is never replaced", rc == 1 and "already exists" in err, (rc, err))
rc, out, err = hc("run", path("gguf.packed"), *asked, "--weights", "q8")
check("another type than the file's is refused by name", rc == 1 and "packed as bf16" in err, (rc, err))
end()
