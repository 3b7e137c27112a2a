"""--remote rediss://: state is shared over TLS, and only with a Redis whose certificate is signed
by the authority in --remote-ca and issued for the name or address in the URL."""
import os
import shutil
import subprocess

from redis_proxy import Proxy, Redis, is_installed
from serve_client import HC, SAVING, Server, until
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 12


def path(name):
    return os.path.join(tmp, name)


def openssl(*words):
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def authority(name):
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
            f"/CN={name}", "-keyout", path(name + ".key"), "-out", path(name + ".pem"))


def certificate(name, signer, names):
    """Makes a key and a certificate for these names, signed by an authority."""
    with open(path("names"), "w") as f:
        f.write(f"subjectAltName={names}\n")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=any", "-keyout",
            path(name + ".key"), "-out", path("request"))
    openssl("x509", "-req", "-in", path("request"), "-CA", path(signer + ".pem"), "-CAkey", path(signer + ".key"),
            "-CAcreateserial", "-days", "2", "-extfile", path("names"), "-out", path(name + ".pem"))


def redis(name, auth="no", **fields):
    return Redis("--tls-cert-file", path(name + ".pem"), "--tls-key-file", path(name + ".key"), "--tls-ca-cert-file",
                 path("ca.pem"), "--tls-auth-clients", auth, tls=True, **fields)


n_stores = 0


def start(url, *options):
    global n_stores
    n_stores += 1
    return Server(MODEL, "--store", path(f"store{n_stores}"), "--no-reuse", "--remote", url, "--remote-timeout",
                  str(PATIENCE), *SAVING, *options)


def remote(s):
    return next(t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"] if t["name"] == "remote")


def is_up(s):
    return until(lambda: remote(s)["up"])


def ask(s):
    r = s.post("/v1/completions", {"prompt": LONG, "max_tokens": 8, "ignore_eos": True, "temperature": 0})
    return r[2]["choices"][0]["text"], r[2]["timings"]


def is_refused(what, url, *options, why):
    s = start(url, *options)
    check(f"{what}: the remote is not used", until(lambda: why in (remote(s)["down_because"] or "")), remote(s))
    check(f"{what}: requests are answered", ask(s)[1]["remote_tokens"] == 0 and not remote(s)["up"], remote(s))
    s.stop()


def test_shared(ca):
    r = redis("good")
    a = start(r.url(), *ca)
    check("a server reaches the Redis over TLS", is_up(a), remote(a))
    check("its URL says so", remote(a)["url"].startswith("rediss://"), remote(a))
    text, _ = ask(a)
    a.post("/v1/cache/flush", {})
    check("it writes there", until(lambda: remote(a)["queued_chunks"] == 0) and remote(a)["written_chunks"] > 1,
          remote(a))
    a.stop()
    b = start(r.url(), *ca)
    check("another one reaches it, too", is_up(b), remote(b))
    again, t = ask(b)
    check("and goes on from there", again == text and t["remote_tokens"] >= 64, t)
    b.stop()
    test_harmed(r, ca, text)
    return r


def test_harmed(r, ca, text):
    """An attacker between server and Redis can end the connection, but cannot change the data."""
    proxy = Proxy(r.port)
    b = start(r.url(port=proxy.port), *ca)
    check("a proxy does not see into it", is_up(b), remote(b))
    proxy.harm = "corrupt"
    again, t = ask(b)
    check("a flipped bit ends the connection", proxy.n_harmed > 0 and remote(b)["misses_by_reason"]["failed"] == 1,
          (proxy.n_harmed, remote(b)))
    equal("and the answer is right", again, text)
    b.stop()


def test_certificates(r, ca):
    is_refused("signed by another authority", r.url(), "--remote-ca", path("other.pem"),
               why="certificate of '127.0.0.1' is not accepted")
    is_refused("no authority of the system's", r.url(), why="is not accepted")
    is_refused("made out to another name", r.url(host="localhost"), *ca, why="certificate of 'localhost' is not accepted")
    is_refused("TLS is expected, and is not spoken", r.url().replace("rediss:", "redis:"), why="")
    other = redis("named")
    s = start(other.url(host="localhost"), *ca)
    check("a certificate with the host's name is accepted", is_up(s), remote(s))
    s.stop()
    is_refused("made out to a name, asked by address", other.url(), *ca, why="is not accepted")
    other.stop()


def test_client_certificate(ca):
    r = redis("good", auth="yes")
    is_refused("a Redis that wants a certificate, and gets none", r.url(), *ca, why="")
    s = start(r.url(), *ca, "--remote-cert", path("client.pem"), "--remote-key", path("client.key"))
    check("it gets one", is_up(s), remote(s))
    s.stop()
    r.stop()


def test_options():
    store = ("--store", path("unused"))
    for what, options, why in (
            ("a file that is not there", ("rediss://127.0.0.1:1", "--remote-ca", path("none")), "--remote-ca"),
            ("a file that has no certificate", ("rediss://127.0.0.1:1", "--remote-ca", path("names")), "--remote-ca"),
            ("a certificate without a key", ("rediss://127.0.0.1:1", "--remote-cert", path("client.pem")), "--remote-key"),
            ("a key of another certificate", ("rediss://127.0.0.1:1", "--remote-cert", path("client.pem"), "--remote-key",
                                              path("good.key")), "--remote-key"),
            ("certificates without TLS", ("redis://127.0.0.1:1", "--remote-ca", path("ca.pem")), "rediss://")):
        p = subprocess.run([HC, "run", MODEL, "-p", "x", *store, "--remote", *options], capture_output=True, text=True,
                           timeout=PATIENCE)
        check(f"{what}: refused by name", p.returncode == 2 and why in p.stderr, (p.returncode, p.stderr))


tmp = scratch("tls")
check("redis-server and openssl are installed (tools/setup.sh --test)",
      is_installed() and shutil.which("openssl") is not None)
if is_installed():
    authority("ca")
    authority("other")
    certificate("good", "ca", "IP:127.0.0.1")
    certificate("named", "ca", "DNS:localhost")
    certificate("client", "ca", "DNS:client")
    trusted = ("--remote-ca", path("ca.pem"))
    server = test_shared(trusted)
    test_certificates(server, trusted)
    server.stop()
    test_client_certificate(trusted)
    test_options()
end()
