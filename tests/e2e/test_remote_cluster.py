"""--remote with a Redis Cluster of six processes: chunks are spread over three masters, slots move under the servers, and
a master is killed."""
import os

from ports import free_port
from redis_proxy import Redis, is_installed
from serve_client import SAVING, Server, until
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
BIRD = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 24
FISH = "Another tale is that of a fish who wanted to see the mountains, and how it came there. " * 24
MASTERS, SLOTS = 3, 16384


class Node(Redis):
    def __init__(self):
        # A long timeout, so that no node is declared dead: a loaded machine may stop a process for
        # a while.
        super().__init__("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "600000")
        self.bus = int(self.ask("CONFIG", "GET", "cluster-port")[1])
        self.id = self.ask("CLUSTER", "MYID").decode()

    def info(self):
        return dict(line.split(":", 1) for line in self.ask("CLUSTER", "INFO").decode().split("\r\n") if ":" in line)

    def is_known_everywhere(self, nodes):
        return all(self.id in n.ask("CLUSTER", "NODES").decode() for n in nodes)

    def is_synced(self):
        return b"master_link_status:up" in self.ask("INFO", "replication")


def make_cluster():
    """Makes masters with a third of the slots each, and a replica of each."""
    nodes = [Node() for _ in range(2 * MASTERS)]
    for n in nodes[1:]:
        nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", n.port, n.bus)
    check("six servers know each other", until(lambda: all(n.is_known_everywhere(nodes) for n in nodes)))
    for i in range(MASTERS):
        nodes[i].ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        nodes[i].ask("CLUSTER", "ADDSLOTSRANGE", i * SLOTS // MASTERS, (i + 1) * SLOTS // MASTERS - 1)
    for i in range(MASTERS):
        check(f"server {i + MASTERS} becomes a replica",
              until(lambda: nodes[i + MASTERS].ask("CLUSTER", "REPLICATE", nodes[i].id) == b"+OK" or
                    b"slave" in nodes[i + MASTERS].ask("ROLE")))
    check("the cluster is whole", until(lambda: all(n.info()["cluster_state"] == "ok" for n in nodes)))
    check("replicas have their masters' data", until(lambda: all(n.is_synced() for n in nodes[MASTERS:])))
    return nodes[:MASTERS], nodes[MASTERS:]


n_stores = 0


def start(node):
    global n_stores
    n_stores += 1
    s = Server(MODEL, "--store", os.path.join(tmp, f"store{n_stores}"), "--no-reuse", "--remote", node.url(),
               "--remote-timeout", str(PATIENCE), *SAVING)
    check("a server reaches the cluster", until(lambda: remote(s)["up"] and remote(s)["servers"] > 0), s.log)
    return s


def remote(s):
    return next(t for t in s.request("GET", "/v1/cache/stats")[2]["tiers"] if t["name"] == "remote")


def ask(s, prompt):
    r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0})
    return r[2]["choices"][0]["text"], r[2]["timings"]


def written(s):
    s.post("/v1/cache/flush", {})
    return until(lambda: remote(s)["queued_chunks"] == 0)


def all_from_there(what, s, prompt, text, n):
    again, t = ask(s, prompt)
    equal(f"{what}: the answer is right", again, text)
    check(f"{what}: all of it came from the cluster", t["remote_tokens"] == t["restored_tokens"] == 64 * n, (t, remote(s)))


def move_key_of_slot(key, slot, source, target):
    """Moves the key of a slot that is being migrated from one master to another, so that clients
    get ASK."""
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
    equal("a chunk moves to another master",
          source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, PATIENCE * 1000), b"+OK")


def finish_move(slot, masters, target):
    """Finishes the migration. From now on the other masters answer MOVED."""
    for m in sorted(masters, key=lambda m: m is not target):
        m.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)


def test_spread(masters):
    a = start(masters[0])
    texts = {p: ask(a, p)[0] for p in (BIRD, FISH)}
    check("a server writes", written(a) and remote(a)["written_chunks"] >= 12, remote(a))
    counts = [len(m.chunks()) for m in masters]
    check("to all masters", min(counts) > 0 and sum(counts) == remote(a)["written_chunks"], counts)
    check("without a failure", remote(a)["failures"] == 0, remote(a))
    a.stop()
    return texts


def test_moves(masters, texts, n):
    """Two servers whose slot table is old meet a slot that is being migrated, and a slot that has
    moved."""
    on_its_way, moved = start(masters[0]), start(masters[0])
    source = masters[1]
    ours = set(source.chunks())
    b = start(masters[2])
    all_from_there("another server", b, BIRD, texts[BIRD], n[BIRD])
    b.stop()
    key = next(iter(sorted(ours)))
    slot = masters[0].ask("CLUSTER", "KEYSLOT", key)
    move_key_of_slot(key, slot, source, masters[2])
    for p in texts:  # the chunk belongs to one of these texts
        all_from_there("a slot on its way", on_its_way, p, texts[p], n[p])
    finish_move(slot, masters, masters[2])
    for p in texts:
        all_from_there("a slot that has moved", moved, p, texts[p], n[p])
    for s in (on_its_way, moved):
        equal("no connection has failed", remote(s)["failures"], 0)
        s.stop()


def test_killed_master(masters, replicas, texts, n):
    # this server knows the cluster only by the address of the node that is killed
    s = start(masters[1])
    for i in range(MASTERS):
        check("replicas are up to date", until(lambda: len(replicas[i].chunks()) == len(masters[i].chunks())))
    masters[1].p.kill()
    masters[1].p.wait()
    check("a server notices that a master is gone", until(lambda: not remote(s)["up"] or remote(s)["failures"] > 0),
          remote(s))
    text, t = ask(s, BIRD)
    equal("and computes meanwhile", (text, t["remote_tokens"]), (texts[BIRD], 0))
    until(lambda: replicas[1].ask("CLUSTER", "FAILOVER", "TAKEOVER") == b"+OK" or b"master" in replicas[1].ask("ROLE"))
    check("its replica takes over", until(lambda: b"master" in replicas[1].ask("ROLE")))
    check("the others know", until(lambda: all(
        " master " in next(line for line in m.ask("CLUSTER", "NODES").decode().split("\n") if replicas[1].id in line)
        for m in (masters[0], masters[2]))))
    check("the server finds the cluster by the others", until(lambda: remote(s)["up"]), remote(s))
    all_from_there("with the replica", s, FISH, texts[FISH], n[FISH])
    s.stop()


def test_clear(masters, replicas):
    s = start(masters[0])
    alive = [masters[0], replicas[1], masters[2]]
    check("chunks are on all masters", all(m.chunks() for m in alive))
    s.post("/v1/cache/clear", {})
    check("clear removes them from all", until(lambda: not any(m.chunks() for m in alive)), [m.chunks() for m in alive])
    s.stop()


tmp = scratch("cluster")
check("redis-server is installed (tools/setup.sh --test)", is_installed())
if is_installed():
    first, second = make_cluster()
    stories = test_spread(first)
    alone = Server(MODEL, "--store", os.path.join(tmp, "alone"), "--no-reuse", *SAVING)
    sizes = {}
    for story in stories:  # number of full chunks of each story
        ask(alone, story)
        alone.post("/v1/cache/flush", {})
        sizes[story] = ask(alone, story)[1]["restored_tokens"] // 64
    alone.stop()
    test_moves(first, stories, sizes)
    test_killed_master(first, second, stories, sizes)
    test_clear(first, second)
    for node in first + second:
        node.stop()
end()
