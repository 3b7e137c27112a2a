"""Starts a server for a figure."""
import socket
import subprocess
import time
import urllib.request


def start(words):
    """Starts a server on a free port and waits until it is healthy. Returns its process and port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    p = subprocess.Popen([*words, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            return p, port
        except OSError:
            time.sleep(0.1)
    p.kill()
    raise SystemExit(f"{words[0]} did not start")
