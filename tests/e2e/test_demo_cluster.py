"""`make demo-cluster`: three servers, Redis and HAProxy; a kill -9 during an answer, and a restart
of all.  The demo itself compares texts and log-probabilities with a server without state, and fails
if they differ."""
import shutil
import subprocess
import sys

from tap import PATIENCE, check, end, equal

for program in ("redis-server", "haproxy"):
    check(f"{program} is installed (tools/setup.sh --test)", shutil.which(program) is not None)
p = subprocess.run([sys.executable, "tools/demo_cluster.py"], capture_output=True, text=True, timeout=4 * PATIENCE)
equal("the demonstration ends well", (p.returncode, p.stderr), (0, ""))
told = p.stdout
check("a server is killed", "killed (kill -9)" in told, told)
check("another one goes on from Redis", " tokens restored (256 of them came from Redis)" in told, told)
check("with equal bits", "every bit of their log-probabilities" in told, told)
check("and after a restart of all, too", "equal in every bit, too" in told, told)
end()
