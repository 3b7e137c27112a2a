"""Looks for keys in the memory of programs that end:

    tools/key_remains.py build/release

Runs commands over an encrypted store and stops each at its last moment (ptrace), when its memory is
still there. Looks for the secret of --store-key, as bytes and as text, for the keys that HKDF makes
from it (docs/STORE_FORMAT.md), and for the secret of remembered answers. Prints what each command's
memory still held. Fails if that is anything, if a command fails that should not, or if the look does
not find the secret in the environment of a process that got it there. Needs Linux, and a kernel that
lets a process trace its children."""
import ctypes
import hashlib
import hmac
import os
import signal
import subprocess
import sys
import tempfile
import threading

CONTINUE, DETACH, SEIZE, TRACE_EXIT, EVENT_EXIT = 7, 17, 0x4206, 0x40, 6
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
HC = os.path.join(os.path.abspath(sys.argv[1]), "hcache")


def ptrace(request, pid, value=0):
    if libc.ptrace(request, pid, None, value) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


def memory_at_exit(command, env, meanwhile):
    """Returns the memory that a program has when it exits, and its exit status."""
    p = subprocess.Popen(["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command], env={**os.environ, **env},
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.waitpid(p.pid, os.WUNTRACED)
    ptrace(SEIZE, p.pid, TRACE_EXIT)
    os.kill(p.pid, signal.SIGCONT)
    threading.Thread(target=meanwhile, args=(p,), daemon=True).start()
    while (status := os.waitpid(p.pid, 0)[1]) >> 16 != EVENT_EXIT:
        if not os.WIFSTOPPED(status):
            raise ChildProcessError(f"{command} ended with status {status}")
        ptrace(CONTINUE, p.pid, 0 if status >> 16 else os.WSTOPSIG(status))
    found = []
    with open(f"/proc/{p.pid}/maps") as maps, open(f"/proc/{p.pid}/mem", "rb", 0) as memory:
        for line in maps:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            if line.split()[1].startswith("r") and "[v" not in line:  # not the kernel's own pages
                memory.seek(begin)
                found.append(memory.read(end - begin))
    ptrace(DETACH, p.pid)
    return found, os.waitstatus_to_exitcode(os.waitpid(p.pid, 0)[1])


def derived(secret, salt, use, n):
    """HKDF-SHA256."""
    early, out, block = hmac.new(salt, secret, hashlib.sha256).digest(), b"", b""
    while len(out) < n:
        block = hmac.new(early, block + use + bytes([len(out) // 32 + 1]), hashlib.sha256).digest()
        out += block
    return out


def keys(secret, store):
    """Returns the keys of a secret by their names: 32 bytes each, and the secret as text."""
    out = {"the secret": secret, "the secret as text": secret.hex().encode()}
    salts = {"files": b"hcache shared\0"}
    if os.path.exists(store):
        with open(os.path.join(store, "superblock"), "rb") as f:
            salts["store"] = f.read()[24:40]
    for of, salt in salts.items():
        for use, n in (("runs", 32), ("pages", 64)):
            key = derived(secret, salt, f"hcache {use}".encode(), n)
            out |= {f"key of {use} of the {of}": key[:32]} | ({"its second half": key[32:]} if n > 32 else {})
    answers = os.path.join(store, "answers.key")
    if os.path.exists(answers) and os.path.getsize(answers) == 32:  # not encrypted
        with open(answers, "rb") as f:
            out["the secret of answers"] = f.read()
    return out


def end_when_listening(p):
    while b"http://" not in p.stderr.readline():
        pass
    p.terminate()


def main():
    bad = 0
    with tempfile.TemporaryDirectory(prefix="hcache-keys.") as tmp:
        store, plain, text, out = (os.path.join(tmp, name) for name in ("store", "plain", "text", "export"))
        secret, other = os.urandom(32), os.urandom(32)
        for name, content in (("key", secret.hex()), ("other", other.hex()), ("text", "My dog is called Biscuit. " * 30)):
            with open(os.path.join(tmp, name), "w") as f:
                f.write(content)
        key, model = ["--store-key", os.path.join(tmp, "key")], ["models/demo", "--store", store]
        prompt = ["--prompt-file", text, "--max-tokens", "3", "--plan", "kv"]
        refused = ("another key", "options that exclude each other")
        tool = {"HCACHE_STORE_KEY": key[1]}
        rows = [("run", ["run", *model, *prompt, *key], {}, secret), ("run, restoring", ["run", *model, *prompt, *key], {}, secret),
                ("another key", ["run", *model, *prompt, "--store-key", os.path.join(tmp, "other")], {}, other),
                ("options that exclude each other", ["run", *model, *prompt, *key, "--prompt", "x"], {}, secret),
                ("ingest", ["ingest", *model, text, *key], {}, secret),
                ("serve", ["serve", *model, "--port", "0", *key], {}, secret),
                ("serve without a key", ["serve", "models/demo", "--store", plain, "--port", "0"], {}, secret),
                ("profile", ["profile", *model, *key], {}, secret),
                *[(f"store {c[0]}", ["store", c[0], store, *c[1:]], tool, secret) for c in (
                    ["ls"], ["gc"], ["verify"], ["export", "--all", "--out", out])],
                ("run, key in the environment", ["run", *model, *prompt, "--store-key", "env"],
                 {"HCACHE_STORE_SECRET": secret.hex()}, secret)]
        for name, command, env, of in rows:
            memory, status = memory_at_exit([HC, *command], env, end_when_listening if command[0] == "serve" else lambda p: p.stderr.read())
            found = {n for n, k in keys(of, plain if plain in command else store).items() if any(k in m for m in memory)}
            wanted = {"the secret as text"} if env.get("HCACHE_STORE_SECRET") else set()  # its caller's, and the check of the look
            is_good = found == wanted and (status == 0) == (name not in refused)
            bad += not is_good
            print(f"{name}: {', '.join(sorted(found)) or 'nothing'} in {sum(map(len, memory)) >> 20} MiB, status {status}"
                  f"{'' if is_good else ' - WRONG'}", flush=True)
    return bad > 0


sys.exit(main())
