"""Options in combination.  A seed draws options of `run` and `serve` that no other test combines.
Each combination must end with status 0, or with status 1 or 2 and a message that is no internal
error.  Greedy answers of equal arithmetic have equal logits, whatever the other options are: a run
without a store, the run that saves, and the run that restores.

OPTIONS_RUNS, OPTIONS_SERVERS and OPTIONS_SEED choose the amounts and the seed.  A failure prints
the command."""
import json
import os
import random
import shlex
import shutil
import subprocess
import tempfile

from plain_model import write_plain_model
from serve_client import HC, Server
from tap import PATIENCE, check, end, scratch

N_RUNS = int(os.environ.get("OPTIONS_RUNS", "10"))
N_SERVERS = int(os.environ.get("OPTIONS_SERVERS", "4"))
SEED = int(os.environ.get("OPTIONS_SEED", "1"))

tmp = scratch("options")
plain = write_plain_model(os.path.join(tmp, "plain"))
packed = os.path.join(tmp, "plain.packed")
subprocess.run([HC, "model", "pack", plain, "--out", packed], check=True, capture_output=True)
MODELS = [plain, plain, packed, "synth:tiny-mha"]
os.environ["HCACHE_STORE_SECRET"] = "5e" * 32
WORDS = [20 + i * 7 % 300 for i in range(330)]
ids = os.path.join(tmp, "ids")
with open(ids, "w", encoding="ascii") as f:
    f.write(" ".join(map(str, WORDS)))

# Options that both commands have.  STORE stands for a folder of its own for each case.
# The first options change the arithmetic, so answers are compared only between cases with equal
# values of these options:
ARITHMETIC = {"--dtype": ["f32", "bf16", "f16"], "--weights": ["f32", "bf16", "q8", "q4"],
              "--truncate": ["0.5", "0.25,context=256", "0.5,keep=64,context=192", "0.9"]}
# The other options do not change it:
SHARED = {
    "--store": ["STORE", "STORE", "STORE", "STORE,STORE.2", "memory", ""],
    "--store-cap": ["1M", "64M", "0"],
    "--store-key": ["env"],
    "--dram": ["0", "1M", "64M", "auto"],
    "--policy": ["lru", "fifo", "lfu", "attentionstore", "ours"],
    "--plan": ["auto", "hidden", "kv", "recompute"],
    "--throttle": ["0", "64K", "20MB", "5G"],
    "--gpu-direct": ["auto", "off"],
    "--weights-memory": ["auto", "100%", "50%", "0%", "1G"],
    "--threads": ["1", "2", "3"],
    "--device": ["cpu"],
    "--batch-rows": ["0", "512", "4096"],
    "--max-context": ["0", "128", "512", "100000"],
    "--remote": ["redis://127.0.0.1:1", "redis://user:pw@127.0.0.1:1/3"],
    "--remote-write": ["idle", "use", "always"],
    "--remote-timeout": ["1", "30"],
    "--remote-ttl": ["1", "86400"],
    "--pack": ["on", "off"],
    "--verbose": [None],
}
RUN = {
    "--isa": ["portable", "avx2+fma"],
    "--checksums": ["auto", "host", "device"],
    "--save": ["auto", "hidden", "kv", "both", "none"],
    "--plan": ["auto", "hidden", "kv", "recompute", "RHKK", "RRKK", "KKKK"],
    "--salt": ["a", ""],
    "--cache-ttl": ["0", "1", "3600"],
    "--ignore-eos": [None],
    "--seed": ["7"],
    "--top-k": ["1"],
}
SERVE = {
    "--prefetch": ["on", "off"],
    "--store-required": [None],
    "--salt-quota": ["0", "1M"],
    "--guarantee-quota": ["0", "1M"],
    "--idle-ttl": ["0", "1"],
    "--conversations": ["FILE"],
    "--server-name": ["a"],
    "--max-turns": ["0", "3"],
    "--conversation-bytes": ["1M"],
    "--conversation-ttl": ["0", "60"],
    "--files": ["FOLDER"],
    "--batch-sequences": ["0", "1", "64"],
    "--max-sequences": ["1", "2", "64"],
    "--max-queue": ["1", "64"],
    "--max-history": ["0", "64", "100000"],
    "--kv-tokens": ["0", "64", "512", "100000"],
    "--no-reuse": [None],
    "--max-connections": ["16"],
    "--max-body": ["1K", "16M"],
    "--max-bodies": ["64K", "256M"],
    "--http-threads": ["1", "4"],
    "--plain-chat": [None],
    "--parse-special": [None],
    "--save-buffer": ["0", "1M", "64K"],
}


def draw(rng, own, folder):
    """Returns the arithmetic of a case, and its options."""
    arithmetic = [(k, rng.choice(v)) for k, v in ARITHMETIC.items() if rng.random() < 0.25]
    table = {**SHARED, **own}
    names = rng.sample(sorted(table), rng.randint(1, 6))
    if rng.random() < 0.7 and "--store" not in names:
        names.append("--store")
    options = []
    for name in names:
        value = rng.choice(table[name])
        if value is not None:
            value = value.replace("STORE", os.path.join(folder, "store"))
            value = value.replace("FILE", os.path.join(folder, "file")).replace("FOLDER", os.path.join(folder, "files"))
        if name != "--store" or value:
            options += [name] if value is None else [name, value]
    return [x for pair in arithmetic for x in pair], options


def ends_well(status, message):
    """A refusal has a reason; no command ends by a signal or by an internal error."""
    return "internal error" not in message and (status == 0 or status in (1, 2) and message.strip() != "")


references = {}


def digest_of(model, arithmetic):
    """Returns the digest of this arithmetic without a store; None if it is refused."""
    key = (model, *arithmetic)
    if key not in references:
        p = subprocess.run([HC, "run", model, "--token-ids", ids, "-n", "6", "--json", *arithmetic],
                           capture_output=True, text=True, timeout=PATIENCE)
        references[key] = json.loads(p.stdout)["logits_digest"] if p.returncode == 0 else None
    return references[key]


def run_case(case):
    rng = random.Random(f"run {SEED} {case}")
    folder = tempfile.mkdtemp(dir=tmp)
    arithmetic, options = draw(rng, RUN, folder)
    model = rng.choice(MODELS)
    command = [HC, "run", model, "--token-ids", ids, "-n", "6", "--json", *arithmetic, *options]
    why = ""
    n_answers = 0
    for _ in range(2):  # the second run restores
        p = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if not ends_well(p.returncode, p.stderr):
            why = f"status {p.returncode}: {p.stderr[-600:]}"
        elif p.returncode == 0:
            n_answers += 1
            got, want = json.loads(p.stdout)["logits_digest"], digest_of(model, arithmetic)
            if want is not None and got != want:
                why = f"logits {got}, without these options {want}"
    shutil.rmtree(folder, ignore_errors=True)
    return n_answers, why and f"{shlex.join(command)}\n{why}"


def serve_case(case):
    rng = random.Random(f"serve {SEED} {case}")
    folder = tempfile.mkdtemp(dir=tmp)
    arithmetic, options = draw(rng, SERVE, folder)
    model = rng.choice(MODELS)
    why, n_answers = "", 0
    try:
        s = Server(model, *arithmetic, *options)
    except RuntimeError as e:
        ok = "(status -" not in str(e) and "internal error" not in str(e)
        return 0, "" if ok else f"serve {model} {shlex.join(arithmetic + options)}\n{e}"
    texts = []
    try:
        for _ in range(3):
            status, _, r = s.post("/v1/completions", {"prompt": WORDS, "max_tokens": 6, "temperature": 0, "ignore_eos": True})
            if status == 200:
                texts.append(r["choices"][0]["text"])
            elif not (isinstance(r, dict) and r.get("error", {}).get("message")):
                why = f"{status} without a reason: {r}"
            s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4})
            s.request("GET", "/metrics")
        n_answers = len(texts)
        if len(set(texts)) > 1:
            why = f"equal requests, answers {texts}"
    except OSError as e:
        why = f"{e!r}"
    status = s.stop()
    if status != 0 or "internal error" in "".join(s.log):
        why += f"\nends with {status}: {''.join(s.log)[-600:]}"
    shutil.rmtree(folder, ignore_errors=True)
    return n_answers, why and f"serve {model} {shlex.join(arithmetic + options)}\n{why}"


for what, n, one in (("run", N_RUNS, run_case), ("serve", N_SERVERS, serve_case)):
    answers, faults = 0, []
    for i in range(n):
        n_answers, why = one(i)
        answers += n_answers
        if why:
            faults.append(f"case {i}: {why}")
    check(f"{what}: {n} drawn combinations of options end well, with equal answers", not faults, "\n".join(faults))
    check(f"{what}: at least half of the combinations answer", answers >= n // 2, f"{answers} answers")
end()
