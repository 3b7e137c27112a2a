"""Real system calls that fail under a running `hcache run --store`, and real file systems that
accept no writes. strace injects errors into calls on the store's files. One small tmpfs is full,
another is read-only.

Whatever fails, the run ends with the tokens and the logits digest of a run without a store, or with
status 1 and a message that names the store. The next run without faults finds everything that an
earlier run reported as committed, and `store verify` finds nothing bad.

SYSCALL_CASES=N (5) runs the first N cases of each kind; HCACHE_CAMPAIGN_OUT=FILE receives the
counts."""
import json
import os
import shutil
import subprocess

from disks import can, mounted
from tap import HC, PATIENCE, check, end, scratch, skip

N_CASES = int(os.environ.get("SYSCALL_CASES", "5"))
tmp = scratch("syscalls")
n_injected = 0

# System call, error, and which of the calls on the store's files fail: "2" is the second, "2+" the
# second and all later ones.
PATH_CASES = [
    ("pwrite64", "EIO", "1"), ("fdatasync", "EIO", "1"), ("pread64", "EIO", "1"), ("openat", "EMFILE", "2+"),
    ("fallocate", "ENOSPC", "1+"), ("pwrite64", "ENOSPC", "2+"), ("fdatasync", "EIO", "2"), ("pwrite64", "EROFS", "3+"),
    ("fcntl", "ENOLCK", "1+"), ("fallocate", "EOPNOTSUPP", "1+"), ("openat", "EACCES", "1+"), ("pread64", "EIO", "4+"),
    ("unlink", "EROFS", "1+"), ("ftruncate", "EIO", "1+"), ("pwrite64", "EINTR", "2"), ("fdatasync", "EIO", "4+"),
]
# System calls without a path, which only the store makes.
RING_CASES = [("io_uring_enter", "EIO", "2+"), ("io_uring_setup", "ENOSYS", "1+"), ("io_uring_enter", "EINTR", "1"),
              ("io_uring_setup", "EMFILE", "2+")]


def command(ids, store=None):
    """Returns a command that restores by keys and values: `auto` may decide not to restore from a
    disk that is busy or traced."""
    path = os.path.join(tmp, "ids")
    with open(path, "w") as f:
        f.write(" ".join(map(str, ids)))
    cmd = [HC, "run", "synth:tiny-gqa", "--token-ids", path, "--max-tokens", "12", "--temperature", "0", "--ignore-eos",
           "--json"]
    return cmd + (["--store", store, "--save", "both", "--plan", "kv"] if store else [])


def run(cmd):
    p = subprocess.run(cmd, capture_output=True, text=True, timeout=PATIENCE)
    return p, json.loads(p.stdout) if p.returncode == 0 else None


def same(a, b):
    return a["token_ids"] == b["token_ids"] and a["logits_digest"] == b["logits_digest"]


def prompt(n, seed):
    return [3 + (i * i * 7 + seed * 31) % 490 for i in range(n)]


OLD, NEW = prompt(200, 1), prompt(330, 2)
want_old, want_new = run(command(OLD))[1], run(command(NEW))[1]


def strace(store, syscall, error, when, log):
    cmd = ["strace", "-f", "-qq", "-o", log, "-e", f"trace={syscall}", "-e", f"inject={syscall}:error={error}:when={when}"]
    # the leak checker does not work under strace
    cmd += ["-E", "ASAN_OPTIONS=" + os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"]
    if not syscall.startswith("io_uring"):
        for name in ("index.db", "index.db-wal", "seg-000000.hc", "lock", "superblock", "index.rebuild"):
            cmd += ["-P", os.path.join(store, name)]
    return cmd


def injected(case):
    """Fills a store and commits something, runs once with faults while saving more, and runs once
    without faults."""
    global n_injected
    name = "{} {} at {}".format(*case)
    store, log = os.path.join(tmp, "store"), os.path.join(tmp, "trace")
    shutil.rmtree(store, ignore_errors=True)
    first = run(command(OLD, store))[1]
    p, r = run(strace(store, *case, log) + command(NEW, store))
    with open(log) as f:
        hits = f.read().count("(INJECTED)")
    n_injected += hits
    said = (p.stdout + p.stderr)[-600:]
    if r is not None:
        check(f"{name}: the same output", same(r, want_new), said)
    else:
        check(f"{name}: an error that names the store, or the queue that cannot be had",
              p.returncode == 1 and (store in p.stderr or "uring queue" in p.stderr), said)
    check(f"{name}: it was injected", hits > 0, said)
    again = run(command(OLD, store))[1]
    check(f"{name}: what was committed before is found and right",
          again is not None and same(again, want_old) and again["cached_tokens"] >= min(first["committed_tokens"], len(OLD) - 1) // 64 * 64, again)
    if r is not None and r["committed_tokens"] > 0:
        again = run(command(NEW, store))[1]
        check(f"{name}: what was reported committed under faults, too",
              again is not None and same(again, want_new) and
              again["cached_tokens"] >= min(r["committed_tokens"], len(NEW) - 1) // 64 * 64, again)
    v = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True, timeout=PATIENCE)
    check(f"{name}: verify", v.returncode == 0, v.stdout + v.stderr)


def full(at):
    store = os.path.join(at, "s")
    p, r = run(command(NEW, store))
    check("a full disk: the same output", r is not None and same(r, want_new), p.stderr)
    check("a full disk: says so once", p.stderr.count("No space left") == 1, p.stderr)
    committed = r["committed_tokens"] if r else 0
    subprocess.run(["mount", "-o", "remount,size=64m", at], check=True)
    v = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True, timeout=PATIENCE)
    check("a full disk: verify", v.returncode == 0, v.stdout + v.stderr)
    r = run(command(NEW, store))[1]
    check("a full disk: what had been committed is there", r is not None and same(r, want_new) and
          r["cached_tokens"] >= min(committed, len(NEW) - 1) // 64 * 64, r)
    r = run(command(NEW, store))[1]
    check("with room again it saves", r is not None and r["cached_tokens"] >= 256, r)


def full_under_cap(at):
    """The cap is larger than the disk. The least recently used chunks are evicted and all new
    chunks are saved, without a warning."""
    store = os.path.join(at, "s")
    # With a throttle the store's speed is not measured at the start. (Measuring pins up to 32
    # chunks for a moment, which are most of the chunks here.)
    capped = lambda seed: run(command(prompt(330, seed), store) + ["--store-cap", "1G", "--throttle", "10G"])
    runs = [capped(seed) for seed in range(12)]
    check("full under the cap: all is saved", all(r is not None and r["committed_tokens"] >= 330 for _, r in runs),
          [(p.stderr, r and r["committed_tokens"]) for p, r in runs])
    said = [line for p, _ in runs for line in p.stderr.split("\n") if line and "io_uring is not available" not in line]
    check("full under the cap: without a warning", said == [], said)
    last, first = capped(11)[1], capped(0)[1]
    check("full under the cap: the last is there", last is not None and last["cached_tokens"] >= 320, last)
    check("full under the cap: the first went", first is not None and first["cached_tokens"] < 320, first)
    v = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True, timeout=PATIENCE)
    check("full under the cap: verify", v.returncode == 0, v.stdout + v.stderr)


def read_only(at):
    store = os.path.join(at, "s")
    run(command(OLD, store))
    subprocess.run(["mount", "-o", "remount,ro", at], check=True)
    p, r = run(command(OLD, store))
    check("a read-only file system: a clear error or the same output",
          (r is not None and same(r, want_old)) or (p.returncode == 1 and "ead-only" in p.stderr and store in p.stderr),
          p.stderr)
    v = subprocess.run([HC, "store", "verify", store], capture_output=True, text=True, timeout=PATIENCE)
    check("a read-only file system: verify reads it", v.returncode == 0 and " 0 damaged" in v.stdout, v.stdout + v.stderr)
    subprocess.run(["mount", "-o", "remount,rw", at], check=True)
    r = run(command(OLD, store))[1]
    check("writable again: all is there", r is not None and same(r, want_old) and r["cached_tokens"] >= 128, r)


has_ring = "io_uring is not available" not in run(command(OLD, os.path.join(tmp, "first")))[0].stderr
if shutil.which("strace") is None:
    check("strace is here (tools/setup.sh installs it)", False)
elif can(["strace", "-o", "/dev/null", "true"]):
    for c in PATH_CASES[:N_CASES] + (RING_CASES[:N_CASES] if has_ring else []):
        injected(c)
    if not has_ring:
        skip("failing calls of io_uring", "this machine does not let programs use it")
else:
    skip("failing system calls", "strace cannot trace here")
mounted(tmp, "size=800k", full, "a full disk")
mounted(tmp, "size=6m", full_under_cap, "a full disk under the cap")
mounted(tmp, "size=64m", read_only, "a read-only file system")
if os.environ.get("HCACHE_CAMPAIGN_OUT"):
    with open(os.environ["HCACHE_CAMPAIGN_OUT"], "w") as f:
        f.write(f"system calls made to fail: {n_injected}\n")
end()
