"""The reason in `miss` for a changed history: the token at which it diverges from the stored state,
with the words of the prompt."""
import os
import re

from serve_client import SAVING, Server
from tap import check, end, equal, scratch

MODEL = "models/demo"
ALICE, BOB = ({"Authorization": "Bearer " + name} for name in ("alice", "bob"))
BEFORE = "The little bird who lived in the tall green tree sang every morning of the wide blue sea. " * 3
BEHIND = " And then it flew away over the hills and far away to the town where the old man lived. " * 4


def text(when):
    return f"{BEFORE}The time is {when} now.{BEHIND}"


def tokens(s, t, key):
    return s.post("/tokenize", {"content": t}, key)[2]["tokens"]


def miss(s, t, key, **fields):
    r = s.post("/v1/completions", {"prompt": t, "max_tokens": 1, **fields}, key)
    s.post("/v1/cache/flush", {}, key)
    return r[2]["timings"]["miss"] if r[0] == 200 else r


def first_difference(a, b):
    return next(i for i, (x, y) in enumerate(zip(a, b)) if x != y)


tmp = scratch("miss")
options = (*SAVING, "--no-reuse", "--store", os.path.join(tmp, "s"), "--api-key", "alice,bob")
s = Server(MODEL, *options)
old, new = text("2026-11-22 14:03"), text("2026-11-22 14:04")
equal("the first of all: nothing is near", miss(s, old, ALICE), "not stored")
equal("the same again: no miss", miss(s, old, ALICE), None)
at = first_difference(tokens(s, old, ALICE), tokens(s, new, ALICE))
told = miss(s, new, ALICE)
check("the token where it differs, and the text there", at > 64 and told.startswith(
    f'not stored: the prompt differs at token {at}: "') and "4 now." in told and "3 now." not in told, (at, told))
equal("what came before it was restored", s.post("/v1/cache/lookup", {"prompt": text("x")}, ALICE)[2]["stored_tokens"],
      at // 64 * 64)
third = text("noon")
at = max(first_difference(tokens(s, known, ALICE), tokens(s, third, ALICE)) for known in (old, new))
found = s.post("/v1/cache/lookup", {"prompt": third}, ALICE)[2]
check("lookup says the same", f'differs at token {at}: "' in found["why"] and "noon" in found["why"], (at, found))
other = s.post("/v1/cache/lookup", {"prompt": new}, BOB)[2]
check("another key learns nothing", other["why"] == "not stored" and other["stored_tokens"] == 0, other)
equal("nor does another cache_salt", miss(s, new, ALICE, cache_salt="x"), "not stored")
equal("nor another key's request", miss(s, third, BOB), "not stored")
equal("status 0", s.stop(), 0)
s = Server(MODEL, *options)
told = miss(s, third, ALICE)
check("after a restart, too", re.search(rf'differs at token {at}: "[^"]*noon', told), told)
longer = third + " It came back in spring, and all the children were glad of it, and sang with it in the garden." * 2
told = miss(s, longer, ALICE)
check("a history that goes on differs nowhere", told is None or "differs" not in told, told)
s.stop()
s = Server(MODEL)  # without a store, so that only the KV cache knows histories
equal("KV cache: the first of all", miss(s, old, {}), "no store")
# newer histories with the same beginning, which diverge from the prompt earlier
for i in range(70):
    s.post("/v1/completions", {"prompt": f"{BEFORE}The day is {i}.{BEHIND}", "max_tokens": 1})
at = first_difference(tokens(s, old, {}), tokens(s, new, {}))
told = miss(s, new, {})
check("KV cache: the token where the prompt leaves the nearest history", told.startswith(
    f'not stored: the prompt differs at token {at}: "') and "4 now." in told, (at, told))
told = miss(s, longer, {})
check("KV cache: a history that is new from some token on says so, too", told.startswith("not stored"), told)
s.stop()
end()
