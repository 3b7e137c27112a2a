"""What was deleted is not on the disk: an ext4 file system in an image file holds the store, and
the image's own bytes are searched, free blocks included.

Needs root, a loop device and mkfs.ext4; without them the simulated disk (test_erase) shows the same
for the store."""
import json
import os
import random
import struct
import subprocess
import tempfile
import time

from disks import IS_ROOT, can
from serve_client import HC, SAVING, Server, until
from tap import PATIENCE, check, end, equal, skip

MODEL = "models/demo"
R = random.Random(time.time_ns())


def secret():
    return "zq%012dw" % R.randrange(10 ** 12)


class Image:
    """An ext4 file system in a file, mounted at .at."""

    def __init__(self, folder):
        self.path, self.at = os.path.join(folder, "img"), os.path.join(folder, "mnt")
        os.makedirs(self.at)
        with open(self.path, "wb") as f:
            f.truncate(24 << 20)
        self.is_mounted = IS_ROOT and can(["mkfs.ext4", "-q", "-F", "-b", "4096", self.path]) and can(
            ["mount", "-o", "loop", self.path, self.at])

    def count(self, *needles):
        """Returns how many of the needles the raw image has."""
        os.sync()
        with open(self.path, "rb") as f:
            raw = f.read()
        return sum(n in raw for n in needles)

    def umount(self):
        if self.is_mounted:
            subprocess.run(["umount", self.at], timeout=PATIENCE, check=True)
        self.is_mounted = False


def upload(server, text):
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": text, "max_tokens": 1}})
    body = "\r\n".join(["--BB", 'Content-Disposition: form-data; name="purpose"', "", "batch", "--BB",
                        'Content-Disposition: form-data; name="file"; filename="f"', "", line, "--BB--", ""])
    return server.request("POST", "/v1/files", body.encode(), {"Content-Type": "multipart/form-data; boundary=BB"})[2]["id"]


def state_of(store):
    """Returns pieces of the stored state: 64 bytes of some blocks that are not nearly empty."""
    with open(os.path.join(store, "seg-000000.hc"), "rb") as f:
        seg = f.read()
    pieces = [seg[o:o + 64] for o in range(4096, len(seg), 4096) if len(set(seg[o:o + 64])) > 20]
    return R.sample(pieces, min(len(pieces), 12))


def test_deleted(image):
    store = os.path.join(image.at, "store")
    server = Server(MODEL, "--store", store, "--dram", "0", *SAVING)
    words = {what: secret() for what in ("response", "item", "upload", "chat", "expired")}
    text = {what: f"The word of the day is {word}, so we all say. " * 8 for what, word in words.items()}
    response = server.post("/v1/responses", {"input": text["response"], "max_output_tokens": 5})[2]["id"]
    talk = server.post("/v1/conversations", {})[2]["id"]
    for i, words_of_turn in enumerate((text["item"], "and then?")):
        server.post("/v1/responses", {"input": words_of_turn, "conversation": talk, "max_output_tokens": 5 + i})
    file = upload(server, text["upload"])
    chat = {"messages": [{"role": "user", "content": text["chat"]}], "max_tokens": 5}
    server.post("/v1/chat/completions", chat)
    server.post("/v1/cache/flush", {})
    ids = [struct.pack("<10i", *server.post("/tokenize", {"content": t})[2]["tokens"][30:40]) for t in text.values()]
    needles = [w.encode() for w in words.values()]
    state = state_of(store)
    check("the raw disk has the texts", image.count(*needles) >= 3)
    check("the raw disk has the tokens", image.count(*ids) >= 3)
    check("the raw disk has the state", len(state) == 12 and image.count(*state) == len(state), len(state))
    server.post("/v1/completions", {"prompt": text["expired"], "max_tokens": 5, "cache_ttl": 1})
    server.post("/v1/cache/flush", {})

    item = server.request("GET", f"/v1/conversations/{talk}/items?order=asc")[2]["data"][0]["id"]
    equal("an item is removed", server.request("DELETE", f"/v1/conversations/{talk}/items/{item}")[0], 200)
    # state that a request still uses is overwritten when it ends; the answer, a conversation, cannot say so
    check("and its text is gone", until(lambda: image.count(words["item"].encode(), ids[1]) == 0))
    equal("a response is deleted", server.request("DELETE", "/v1/responses/" + response)[2]["pending_chunks"], 0)
    equal("and its text is gone", image.count(words["response"].encode(), ids[0]), 0)
    equal("an upload is deleted", server.request("DELETE", "/v1/files/" + file)[0], 200)
    equal("and its bytes are gone", image.count(words["upload"].encode()), 0)
    kept = server.metric("hcache_answers_kept")
    equal("a chat's state is evicted", server.post("/v1/cache/evict", {"messages": chat["messages"]})[0], 200)
    check("and its answer is forgotten", server.metric("hcache_answers_kept") < kept, kept)
    check("state expires", until(lambda: image.count(ids[4]) == 0))
    equal("the rest is cleared", server.post("/v1/cache/clear", {})[0], 200)
    equal("no text, token or state is left", image.count(*needles, *ids, *state), 0)
    equal("the server ends", server.stop(), 0)
    equal("and its end leaves nothing", image.count(*needles, *ids, *state), 0)
    subprocess.run([HC, "store", "gc", store], check=True, capture_output=True, timeout=PATIENCE)
    image.umount()
    equal("the unmounted disk has nothing", image.count(*needles, *ids, *state), 0)


with tempfile.TemporaryDirectory(prefix="hcache-raw.") as folder:
    image = Image(folder)
    try:
        if image.is_mounted:
            test_deleted(image)
        else:
            skip("what was deleted is not on the raw disk", "cannot mount an ext4 image here")
    finally:
        image.umount()
end()
