"""Ranks and stages are processes: the bits of one device, one state for every arrangement, a server whose rank dies.

A rank is killed at a random moment PROCESS_KILLS (3) times. Then the store must be good and have all that was
reported committed, and it must restore to the logits of a run without a store."""
import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import tap
from serve_client import HAS_RANKS, HC, SANITIZED, Server, until

if not HAS_RANKS:
    print("1..0 # SKIP " + ("Open MPI leaks" if SANITIZED else "Open MPI is not installed: tools/setup.sh --cluster"))
    sys.exit()

KILLS = int(os.environ.get("PROCESS_KILLS", "3"))
# pml and btl name the transports that are chosen anyway: looking for others takes longer than most runs here. The last
# one lets mpirun kill the others of a job at once, as hcache has it do.
os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,vader",
                  OMPI_MCA_odls_base_sigkill_timeout="0")
tmp = tempfile.mkdtemp(prefix="hcache-processes.")
rng = random.Random(1)
ids = [rng.randrange(4, 500) for _ in range(200)]
with open(os.path.join(tmp, "ids"), "w") as f:
    f.write(" ".join(map(str, ids)))
# Two machines have a folder of the same name. In the second one the model is the same at first.
machines = [os.path.join(tmp, m) for m in ("here", "there")]
for m in machines:
    shutil.copytree(os.path.join(os.path.dirname(__file__), "..", "..", "models", "demo"), os.path.join(m, "model"))


def mpirun(n):
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(n)]


def command(ranks, stages, *options, processes=None, prompt=os.path.join(tmp, "ids")):
    """Starts a job by mpirun if `processes` says how many; else hcache does."""
    return [*(mpirun(processes) if processes else []), HC, "run", "synth:tiny-mha", "--threads", "1", "--tensor-parallel", str(ranks),
            "--pipeline-parallel", str(stages), "--token-ids", prompt, "--max-tokens", "8",
            "--ignore-eos", "--json", *options]


def said(a, **k):
    return subprocess.run(a, capture_output=True, text=True, timeout=tap.PATIENCE, **k)


def run(*a, env=None, **k):
    return said(command(*a, **k), env={**os.environ, **(env or {})})


def answer(*a, **k):
    p = run(*a, **k)
    if p.returncode != 0:
        tap.check("a run ends", False, p.stderr)
        return {}
    return json.loads(p.stdout)


def stat_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()


def ranks_of(p):
    """Returns the processes of a job that hcache has started, in the order of their numbers."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                env = dict(e.split(b"=", 1) for e in f.read().split(b"\0") if b"=" in e)
            mine = b"OMPI_COMM_WORLD_RANK" in env and int(stat_of(stat_of(pid)[1])[1]) == p.pid
        except (OSError, ValueError):
            continue
        if mine:
            found[int(env[b"OMPI_COMM_WORLD_RANK"])] = int(pid)
    return [found[i] for i in sorted(found)]


def cpu_seconds(pid):
    return sum(map(int, stat_of(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


# An mpirun whose processes have ended may hang. This one does, and is looked at in the end.
with open(os.path.join(machines[0], "mpirun"), "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as f:
    f.write("#!/bin/sh\nsleep 0.2 &\nexec sleep 1000\n")
hung = subprocess.Popen(command(2, 1), stderr=subprocess.PIPE, text=True, env={**os.environ, "PATH": f"{machines[0]}:{os.environ['PATH']}"})

# Every arrangement computes the bits of one process. Each reads what another has saved: plain, packed and encrypted.
digest = answer(1, 1)["logits_digest"]
key = os.path.join(tmp, "key")
with open(key, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
    f.write("5a" * 32)
FORMS = (), ("--pack", "on"), ("--pack", "on", "--store-key", key)
for ranks, stages, other, plan, form in ((2, 1, (1, 1), "hidden", 0), (1, 2, (2, 1), "kv", 1), (2, 2, (1, 2), "RHKK", 2),
                                         (4, 1, (2, 2), "RKHK", 2)):
    store = os.path.join(tmp, f"store{ranks}{stages}")
    kept = "--store", store, *FORMS[form]
    j = answer(ranks, stages, *kept, "--save", "both", "--plan", "recompute")
    tap.equal(f"{stages} stages of {ranks} processes: the logits of one", j.get("logits_digest"), digest)
    j = answer(*other, *kept, "--save", "none", "--plan", plan)
    tap.equal(f"{other[1]} stages of {other[0]} restore their state by {plan}: the same logits",
              (j.get("logits_digest"), j.get("cached_tokens")), (digest, 192))
tap.equal("started by mpirun: the same", answer(2, 1, processes=2).get("logits_digest"), digest)

# Each process has a share of the store. One process reads all shares; without one of them there is no store.
shares = [store, *(os.path.join(store, f"hcache.rank{i}") for i in range(1, 4))]
tap.check("each process has a share of the records", all(os.path.getsize(os.path.join(s, "seg-000000.hc")) > 8192 for s in shares), shares)
j = answer(1, 1, *kept, "--save", "none", "--plan", "kv")
tap.equal("one process reads the shares of four", (j.get("logits_digest"), j.get("cached_tokens")), (digest, 192))
for of, damaged in ((2, ("--store", os.path.join(tmp, "store21"))), (4, kept)):
    with open(os.path.join(damaged[1], "hcache.rank1", "seg-000000.hc"), "r+b") as f:
        f.seek(8192)
        f.write(bytes(os.path.getsize(f.name) - 8192))
    j = answer(2, 1, *damaged, "--save", "none", "--plan", "kv")
    tap.equal(f"damage in share 1 of {of}: found by process 1, and computed again", (j.get("logits_digest"), j.get("cached_tokens")), (digest, 0))
os.rename(shares[2], shares[2] + "-away")
p = run(4, 1, *kept)
tap.check("a share that is away: refused, with its name", p.returncode == 1 and "hcache.rank2 is not here" in p.stderr, p.stderr)
s = Server("synth:tiny-mha", "--threads", "1", "--tensor-parallel", "2", *kept)
u = s.complete(ids[:130], max_tokens=1)["usage"]
tap.check("a server then answers without saved state", u["prompt_tokens_details"]["cached_tokens"] == 0 and "is not here" in "".join(s.log), (u, s.log))
s.stop()

# Each process reads its share of the weights from its own file, if that has the bytes of process 0's.
def on_machines(*options):
    """Runs a stage on each machine. Returns the digest, and what was said of the weights."""
    a = [HC, "run", "model", "-v", "--threads", "1", "-p", "a", "-n", "4", "--ignore-eos", "--json", *options]
    here, there = (["-np", "1", "-wdir", m, *a, "--pipeline-parallel", "2"] for m in machines)
    r = said([*mpirun(1)[:-2], *here, ":", *there])
    return json.loads(r.stdout)["logits_digest"] if r.returncode == 0 else r.stderr, "".join(re.findall("process 1 gets its weights.*", r.stderr))


one = json.loads(said([HC, "run", "model", "--threads", "1", "-p", "a", "-n", "4", "--ignore-eos", "--json"], cwd=machines[0]).stdout)["logits_digest"]
tap.equal("stages with the same file: the logits of one, each from its own", on_machines(), (one, ""))
with open(os.path.join(machines[1], "model", "model.safetensors"), "r+b") as f:
    f.seek(-1000, os.SEEK_END)
    f.write(b"\0" * 8)
got = on_machines()
tap.check("another file: the logits of one, from process 0, and the reason", got[0] == one and "another model than that of process 0" in got[1], got)
s = Server(os.path.join(machines[0], "model"), "--threads", "1", "--pipeline-parallel", "2")
read = [int(re.search("rchar: (\\d+)", open(f"/proc/{pid}/io").read()).group(1)) for pid in ranks_of(s.p)]
s.stop()
size = os.path.getsize(os.path.join(machines[0], "model", "model.safetensors"))
tap.check("a process reads less than two thirds of the file", len(read) == 2 and max(read) < size * 2 / 3, (read, size))

# Errors are said once, and end the job with a code.
for why, text, code, ranks, stages in (("heads that cannot be divided", "divided by 3", 1, 3, 1), ("5 stages for 4 layers", "has 4 layers", 1, 1, 5),
                                       ("32 processes", "at most 16", 2, 8, 4), ("17 ranks", "16", 2, 17, 1)):
    p = run(ranks, stages)
    tap.check(f"{why}: refused, once", p.returncode == code and text in p.stderr and p.stderr.count("hcache run") <= 3 and
              "mpirun" not in p.stderr, (p.returncode, p.stderr))
p = run(2, 1, processes=3)
tap.check("another number of processes than ranks: refused, with the number to choose",
          p.returncode != 0 and p.stderr.count("choose mpirun -np 2") == 1, p.stderr)
for what, why, a in (("recurrent layers", "--tensor-parallel 1", ["run", "synth:tiny-hybrid", "-n", "1", "-p", "a"]),
                     ("several models", "serve one model", ["serve", "synth:tiny-mha", "synth:tiny-gqa", "--port", "0"]),
                     ("a GPU", "--device cpu", ["run", "synth:tiny-mha", "-n", "1", "-p", "a", "--device", "cuda"])):
    p = said([HC, *a, "--tensor-parallel", "2"])
    tap.check(f"{what}: refused at the start, with what to do", p.returncode != 0 and why in p.stderr, p.stderr)
for what, text, env in (("without its plug-in: the reason", "hcache-mpi.so cannot be loaded", {"HCACHE_PLUGINS": tmp}),
                        ("without mpirun: the reason, and what to install", "install openmpi-bin", {"PATH": tmp}),
                        ("a host file that is not there: where to look", "names other machines", {"OMPI_MCA_orte_default_hostfile": tmp + "/none"})):
    p = run(2, 1, env=env)
    tap.check(what + ", once", p.returncode == 1 and p.stderr.count(text) == p.stderr.count("hcache: ") == 1, p.stderr)
with open(os.path.join(os.path.dirname(HC), "hcache-mpi.so"), "rb") as f:
    build = bytearray(f.read())
build[build.index(b"\3\0\0\0GNU\0") + 8] ^= 1
with open(os.path.join(tmp, "hcache-mpi.so"), "wb") as f:
    f.write(build)
p = said([*command(2, 1, processes=1), ":", "-np", "1", "-x", "HCACHE_PLUGINS=" + tmp, *command(2, 1)])
tap.check("a process of another build: refused, with its number, once", p.returncode == 1 and p.stderr.count("process 1 runs another build") == 1, p.stderr)
tap.equal("the environment may choose ranks or stages; the command line is stronger", run(1, 1, env={"HCACHE_PIPELINE_PARALLEL": "2"}).returncode, 0)

# The commands that measure also measure ranks and stages.
restore = f"bench restore synth:tiny-mha --store {tmp}/slow --throttle 4M --lengths 128 --rounds 1 --methods kv,hidden"
for what, stages, names, a in (("profile", 1, "gathered by 2 ranks", f"profile synth:tiny-mha --out {tmp}/group.platform"),
                               ("bench restore, which slows each disk and reads it where it is,", 2, "KKKK .* direct\n", restore),
                               ("bench device", 2, "all_gather", "bench device --width 256 --only all_gather")):
    p = said([HC, *a.split(), "--tensor-parallel", "2", "--pipeline-parallel", str(stages), "--threads", "1"])
    tap.check(f"{what} of {2 * stages} processes", p.returncode == 0 and re.search(names, p.stdout), (p.returncode, p.stdout, p.stderr))

# A server: its ranks sleep between requests, a rank that dies ends it, and a restart continues the conversation.
options = ("--threads", "1", "--tensor-parallel", "2", "--store", os.path.join(tmp, "served"), "--plan", "kv")
s = Server("synth:tiny-mha", *options)
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
tap.check("the job is gone within 5 s after a rank was killed, with a code and one message",
          until(lambda: s.p.poll() is not None) and s.p.returncode == 137 and "".join(s.log).count("signal 9") == 1 and
          (time.monotonic() - t0 < 5 or os.getloadavg()[0] > 4), (time.monotonic() - t0, s.p.returncode, s.log[-3:]))
tap.check("and no process is left", until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks)))
s = Server("synth:tiny-mha", *options)
usage = s.complete(ids[:130], max_tokens=4)["usage"]
tap.check("a restart continues from the stored state", usage["prompt_tokens_details"]["cached_tokens"] >= 128, usage)
ranks = ranks_of(s.p)
tap.equal("SIGTERM ends the job in order", (s.stop(), any("stopping" in line for line in s.log)), (0, True))
tap.check("and all its processes", until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks)))
s = Server("synth:tiny-mha", *options)
ranks = ranks_of(s.p)
s.kill()
tap.check("no rank outlives the process that has started it", until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks)))

# A rank that hangs ends the job within the bound.
for rank in (1, 0):
    s = Server("synth:tiny-mha", "--threads", "1", "--tensor-parallel", "2", env={"HCACHE_HANG_S": "2"})
    os.kill(ranks_of(s.p)[rank], signal.SIGSTOP)
    concurrent.futures.ThreadPoolExecutor().submit(s.complete, ids[:9], max_tokens=4)
    tap.check(f"rank {rank} is stopped: the job ends after HCACHE_HANG_S, with a code and one message", until(lambda: s.p.poll() is not None) and
              s.p.returncode != 0 and "".join(s.log).count("has not answered for 2 s") == 1, (s.p.returncode, s.log[-3:]))

# A rank is killed while state is saved: what was committed before is there. The store lies in memory, which is faster.
memory = tempfile.TemporaryDirectory(prefix="hcache-processes.", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp)
wrong, before, store = [], None, os.path.join(memory.name, "killed")
for i in range(KILLS):
    with open(os.path.join(tmp, f"ids{i}"), "w") as f:
        f.write(" ".join(str(rng.randrange(4, 500)) for _ in range(200)))
    p = subprocess.Popen(command(2, 1, "--store", store, "--save", "both", "--plan", "recompute", prompt=f.name),
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: len(ranks_of(p)) == 2 or p.poll() is not None)
    time.sleep(rng.uniform(0, 0.8))
    victims = ranks_of(p)
    os.system(f"kill -9 {rng.choice(victims)} 2>&-") if victims else None  # it may just have ended
    p.wait(tap.PATIENCE)
    now = (f.name, 0, answer(1, 1, prompt=f.name)["logits_digest"])
    for ranks, (prompt, want, digest) in ((1, before or now), (2, now)):
        j = answer(ranks, 1, "--store", store, "--plan", "kv", prompt=prompt)
        if j.get("logits_digest") != digest or j.get("cached_tokens", -1) < want:
            wrong.append((i, prompt, want, j.get("cached_tokens"), j.get("logits_digest"), digest))
    before = (f.name, j["committed_tokens"] // 64 * 64, now[2])
    v = said([HC, "store", "verify", store])
    if v.returncode != 0 or before[1] < 192:
        wrong.append((i, v.stdout, before))
tap.check(f"after {KILLS} kills nothing committed is lost, and nothing is wrong", not wrong, wrong)
err = hung.communicate(timeout=tap.PATIENCE)[1]
tap.check("an mpirun that hangs after its processes is ended, with a message", hung.returncode == 1 and "did not end with its" in err, err)
shutil.rmtree(tmp, ignore_errors=True)
tap.end()
