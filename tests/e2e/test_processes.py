"""Ranks as processes of mpirun: the bits of one device, one state for every arrangement, a server whose rank dies.

A rank is killed at a random moment PROCESS_KILLS (4) times. Then the store must be good, and what it has must
restore to the logits of a run without a store."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
import tap  # noqa: E402
from serve_client import HC, SANITIZED, Server, until  # noqa: E402

if SANITIZED or shutil.which("mpirun") is None or not os.path.exists(os.path.join(os.path.dirname(HC), "hcache-mpi.so")):
    print("1..0 # SKIP " + ("Open MPI leaks" if SANITIZED else "Open MPI is not installed: tools/setup.sh --cluster"))
    sys.exit()

KILLS = int(os.environ.get("PROCESS_KILLS", "4"))
os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
tmp = tempfile.mkdtemp(prefix="hcache-processes.")
rng = random.Random(1)
ids = [rng.randrange(4, 500) for _ in range(200)]
with open(os.path.join(tmp, "ids"), "w") as f:
    f.write(" ".join(map(str, ids)))


def mpirun(n):
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(n)]


def command(ranks, stages, *options, processes=None):
    prefix = mpirun(processes or ranks * stages) if ranks * stages > 1 or processes else []
    return [*prefix, HC, "run", "synth:tiny-mha", "--threads", "1", "--tensor-parallel", str(ranks),
            "--pipeline-parallel", str(stages), "--token-ids", os.path.join(tmp, "ids"), "--max-tokens", "8",
            "--ignore-eos", "--json", *options]


def run(*a, env=None, **k):
    return subprocess.run(command(*a, **k), capture_output=True, text=True, env={**os.environ, **(env or {})},
                          timeout=tap.PATIENCE)


def answer(*a, **k):
    p = run(*a, **k)
    if p.returncode != 0:
        tap.check("a run ends", False, p.stderr)
        return {}
    return json.loads(p.stdout)


def ranks_of(p):
    """Returns the processes of a job, in the order of their numbers."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                env = dict(e.split(b"=", 1) for e in f.read().split(b"\0") if b"=" in e)
            with open(f"/proc/{pid}/stat") as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        if parent == p.pid and b"OMPI_COMM_WORLD_RANK" in env:
            found[int(env[b"OMPI_COMM_WORLD_RANK"])] = int(pid)
    return [found[i] for i in sorted(found)]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Every arrangement computes the bits of one process, and reads what another one has saved.
digest = answer(1, 1)["logits_digest"]
for ranks, stages, other, plan in ((2, 1, (1, 1), "hidden"), (1, 2, (2, 1), "kv"), (2, 2, (1, 2), "RHKK"),
                                   (4, 1, (2, 2), "RKHK")):
    store = os.path.join(tmp, f"store{ranks}{stages}")
    j = answer(ranks, stages, "--store", store, "--save", "both", "--plan", "recompute")
    tap.equal(f"{stages} stages of {ranks} processes: the logits of one", j.get("logits_digest"), digest)
    j = answer(*other, "--store", store, "--save", "none", "--plan", plan)
    tap.equal(f"{other[1]} stages of {other[0]} restore their state by {plan}: the same logits",
              (j.get("logits_digest"), j.get("cached_tokens")), (digest, 192))

# Errors are said once, and end the job with a code.
p = run(2, 1, processes=3)
tap.check("another number of processes than ranks: refused, with the number to choose",
          p.returncode != 0 and p.stderr.count("choose mpirun -np 2") == 1, p.stderr)
p = run(3, 1)
tap.check("heads that cannot be divided: refused", p.returncode != 0 and "divided by 3" in p.stderr, p.stderr)
for what, why, a in (("recurrent layers", "without mpirun", ["run", "synth:tiny-hybrid", "-n", "1", "-p", "a"]),
                     ("several models", "serve one model", ["serve", "synth:tiny-mha", "synth:tiny-gqa", "--port", "0"])):
    p = subprocess.run([*mpirun(2), HC, *a, "--tensor-parallel", "2"], capture_output=True, text=True, timeout=tap.PATIENCE)
    tap.check(f"{what}: refused at the start, with what to do", p.returncode != 0 and why in p.stderr, p.stderr)
p = run(2, 1, env={"HCACHE_PLUGINS": tmp})
tap.check("without its plug-in: the reason", p.returncode != 0 and "hcache-mpi.so cannot be loaded" in p.stderr, p.stderr)

# A server: its ranks sleep between requests, a rank that dies ends it, and a restart continues the conversation.
options = ("--threads", "1", "--tensor-parallel", "2", "--store", os.path.join(tmp, "served"), "--plan", "kv")
s = Server("synth:tiny-mha", *options, prefix=mpirun(2))
s.complete(ids[:130], max_tokens=4)
s.post("/v1/cache/flush", {})
ranks = ranks_of(s.p)
tap.equal("a server has a process per rank", len(ranks), 2)
before = [cpu_seconds(pid) for pid in ranks]
time.sleep(2)
idle = [cpu_seconds(pid) - b for pid, b in zip(ranks, before)]
tap.check("idle ranks sleep: less than 0.2 s of processor time in 2 s", max(idle) < 0.2, idle)
t0 = time.monotonic()
os.kill(ranks[1], signal.SIGKILL)
ended = until(lambda: s.p.poll() is not None)
tap.check("the job is gone within 5 s after a rank was killed, with a code", ended and s.p.returncode != 0 and
          (time.monotonic() - t0 < 5 or os.getloadavg()[0] > 4), (time.monotonic() - t0, s.p.returncode))
tap.check("and no process is left", until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks)))
s = Server("synth:tiny-mha", *options, prefix=mpirun(2))
usage = s.complete(ids[:130], max_tokens=4)["usage"]
tap.check("a restart continues from the stored state", usage["prompt_tokens_details"]["cached_tokens"] >= 128, usage)
tap.check("SIGTERM ends the job", s.stop() != "timeout")

# A rank is killed while state is being saved.
wrong = []
for i in range(KILLS):
    store = os.path.join(tmp, "killed")
    p = subprocess.Popen(command(2, 1, "--store", store, "--save", "both", "--plan", "recompute"), stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    until(lambda: len(ranks_of(p)) == 2 or p.poll() is not None)
    time.sleep(rng.uniform(0.2, 1.2))
    victims = ranks_of(p)
    if victims:
        os.kill(rng.choice(victims), signal.SIGKILL)
    p.wait(tap.PATIENCE)
    if os.path.isdir(store):
        v = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True)
        j = answer(2, 1, "--store", store, "--save", "none", "--plan", "kv")
        if v.returncode != 0 or j.get("logits_digest") != digest:
            wrong.append((i, v.stdout, j.get("logits_digest")))
tap.check(f"after {KILLS} kills nothing is wrong", not wrong, wrong)
shutil.rmtree(tmp, ignore_errors=True)
tap.end()
