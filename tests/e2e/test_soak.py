"""Contexts that fit neither into memory nor onto the disk move between the tiers, while contexts
are erased and servers are restarted. Every answer has the digest that a server without a store
gives.

SOAK_SECONDS sets the duration (default: until each kind of event has happened once), SOAK_DRAM and
SOAK_DISK the sizes of the tiers."""
import hashlib
import json
import os
import random
import threading
import time

from serve_client import SAVING, Server, until
from tap import check, end, equal, scratch

MODEL = "models/demo"
SECONDS = float(os.environ.get("SOAK_SECONDS", "0"))
DRAM, DISK = os.environ.get("SOAK_DRAM", "4M"), os.environ.get("SOAK_DISK", "24M")
CONTEXTS, CLIENTS = int(os.environ.get("SOAK_CONTEXTS", "24")), 4
SEED = int(os.environ.get("SOAK_SEED", "1"))
COUNTED = {"read ahead": 'hcache_dram_copies_total{how="promoted"}', "dropped from memory": "hcache_dram_demotions_total",
           "bytes read from memory": "hcache_dram_read_bytes_total",
           "evicted from the disk": 'hcache_evictions_total{reason="cap"}'}


def prompt(i):
    r = random.Random(SEED * 1000003 + i)
    return [r.randrange(10, 3000) for _ in range(r.randrange(330, 1000))]


def body(i):
    return {"prompt": prompt(i), "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 4}


def digest(s, i):
    """Returns a digest of an answer's token texts and of the probabilities of the best tokens at
    each place."""
    status, _, r = s.post("/v1/completions", body(i))
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    c = r["choices"][0]
    return hashlib.sha256(json.dumps([c["text"], c["logprobs"]], sort_keys=True).encode()).hexdigest()


class Soak:
    def __init__(self, store):
        self.store, self.counts, self.wrong, self.asked = store, dict.fromkeys(COUNTED, 0), [], 0
        self.erased = self.restarts = 0
        self.reference = Server(MODEL, "--max-sequences", "1")
        self.want, self.lock, self.random = {}, threading.Lock(), random.Random(SEED)
        self.start()

    def start(self):
        self.server = Server(MODEL, "--store", self.store, "--store-cap", DISK, "--dram", DRAM, "--no-reuse",
                             "--max-sequences", "2", "--kv-tokens", "2560", "--throttle", "200MB", *SAVING)

    def take_counts(self):
        for name, metric in COUNTED.items():
            self.counts[name] += self.server.metric(metric)

    def expected(self, i):
        with self.lock:
            if i not in self.want:
                self.want[i] = digest(self.reference, i)
            return self.want[i]

    def ask(self, i):
        want, got = self.expected(i), digest(self.server, i)
        with self.lock:
            self.asked += 1
            if got != want:
                self.wrong.append(i)

    def round(self):
        """Sends a few requests at once. Then erases one context, or restarts the server."""
        some = [min(int(self.random.expovariate(4 / CONTEXTS)), CONTEXTS - 1) for _ in range(3 * CLIENTS)]
        threads = [threading.Thread(target=lambda mine: [self.ask(i) for i in mine], args=(some[k::CLIENTS],))
                   for k in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        what = self.random.random()
        if what < 0.3:
            status, _, r = self.server.post("/v1/cache/evict", {"prompt": prompt(some[0])})
            self.erased += status == 200
        elif what < 0.4:
            self.take_counts()
            if self.random.random() < 0.5:
                self.server.kill()
            else:
                equal("the server ends", self.server.stop(), 0)
            self.restarts += 1
            self.start()

    def has_seen_all(self):
        now = [self.counts[n] + self.server.metric(m) for n, m in COUNTED.items()]
        return all(now) and self.erased > 0 and self.restarts > 0


tmp = scratch("soak")
soak = Soak(os.path.join(tmp, "store"))
begin = time.time()


def goes_on():
    """Runs one more round and returns whether another one should follow."""
    soak.round()
    return bool(soak.wrong) or (time.time() - begin >= SECONDS and soak.has_seen_all())


if SECONDS > 0:
    while not goes_on():
        pass
else:
    until(goes_on)
soak.take_counts()
check("every answer has the digest of a server without a store", not soak.wrong, f"contexts {soak.wrong[:5]}")
for name, n in soak.counts.items():
    check(f"some were {name}" if "bytes" not in name else name, n > 0, n)
check("contexts were erased, and the server was restarted", soak.erased > 0 and soak.restarts > 0)
print(f"# {soak.asked} answers in {time.time() - begin:.0f} s, {soak.restarts} restarts, {soak.erased} contexts erased; "
      + ", ".join(f"{n:.0f} {name}" for name, n in soak.counts.items()), flush=True)
out = os.environ.get("HCACHE_CAMPAIGN_OUT")
if out:
    with open(out, "w") as f:
        f.write(f"answers from memory, disk and both: {soak.asked}\nwrong bytes served: {len(soak.wrong)}\n")
soak.server.stop()
soak.reference.stop()
end()
