"""Results in the form that tools/run_tests.sh reads: "ok 1 - name", "not ok 2 - name", "1..2"."""
import atexit
import importlib
import os
import shutil
import subprocess
import sys
import tempfile

# Seconds after which every test of this directory gives up waiting for something. Speed is measured
# in bench/, not tested. On a machine whose disk or scheduler stood still, starting a server has
# taken 70 s. Tests wait for a state and not for a time, so on other machines no test waits this
# long.
PATIENCE = 300
HC = os.path.abspath(os.path.join(os.environ["HCACHE_BUILD"], "hcache"))

n_results = n_failed = 0


def check(name, ok, why=""):
    global n_results, n_failed
    n_results += 1
    n_failed += not ok
    print(f"{'ok' if ok else 'not ok'} {n_results} - {name}", flush=True)
    if not ok:
        print("# " + str(why).replace("\n", "\n# ")[:1500], flush=True)


def hc(*words, given=None):
    """Runs the program with these words and an input. Returns its status and outputs."""
    p = subprocess.run([HC, *words], input=given, capture_output=True, timeout=PATIENCE)
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode()


def ok(*words, given=None):
    """Runs it, too, and returns its output."""
    rc, out, err = hc(*words, given=given)
    if rc != 0:
        raise RuntimeError(f"{words}: status {rc}: {err}")
    return out


def scratch(name):
    """Makes a folder that is removed when the program ends. Returns its real path."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix=f"hcache-{name}."))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def in_venv(*modules):
    """Runs this test in .venv/, which has the official clients (tools/setup.sh --clients), and returns
    the modules; without them the test is skipped."""
    venv = ".venv/bin/python"
    if "HCACHE_IN_VENV" not in os.environ and os.path.exists(venv):
        os.execve(venv, [venv, *sys.argv], {**os.environ, "HCACHE_IN_VENV": "1"})
    try:
        return [importlib.import_module(m) for m in modules]
    except ImportError as e:
        print(f"1..0 # SKIP {e} (tools/setup.sh --clients makes .venv)")
        sys.exit(0)


def equal(name, got, want):
    check(name, got == want, f"got  {got!r}\nwant {want!r}")


def skip(name, why):
    global n_results
    n_results += 1
    print(f"ok {n_results} - {name} # SKIP {why}", flush=True)


def raises(kind, call):
    """Returns the exception of that kind that the call raises, or None if it raises none."""
    try:
        call()
    except kind as e:
        return e
    return None


def run_each(tests, name, mode=0o700):
    """Runs the tests, or those whose names (without "test_") are arguments, each with a folder."""
    for test in [t for t in tests if not sys.argv[1:] or t.__name__[5:] in sys.argv[1:]]:
        folder = tempfile.mkdtemp(prefix=f"hcache-{name}.")
        os.chmod(folder, mode)
        try:
            test(folder)
        except Exception as e:  # noqa: BLE001
            check(f"{test.__name__} ended with {e!r}", False)
        shutil.rmtree(folder, ignore_errors=True)
    end()


def end():
    print(f"1..{n_results}")
    sys.exit(bool(n_failed))
