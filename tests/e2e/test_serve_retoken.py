"""Chats through `hcache serve` whose answers are sent back as text. Their state is found by the
generated tokens, or the miss is reported as «retokenised at N»."""
import re

from serve_client import MODEL, Server
from tap import check, end



def chat(s, messages, **fields):
    status, _, r = s.post("/v1/chat/completions", {"messages": messages, "max_tokens": 24, **fields})
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    return r


def resent(s, first, answer):
    """Returns the miss reason of a chat that continues after this answer, and by how much the
    metric has grown."""
    before = s.metric("hcache_retokenised_total")
    r = chat(s, [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}])
    return r["timings"]["miss"] or "", s.metric("hcache_retokenised_total") - before, r["usage"]["prompt_tokens"]


def test(s):
    first = [{"role": "user", "content": "Tell me of Lily."}]
    # The temperature is so high that the answer's text does not tokenize to the sampled tokens.
    answer = chat(s, first, temperature=2, seed=5, ignore_eos=True)["choices"][0]["message"]["content"]
    miss, counted, _ = resent(s, first, answer)
    check("as it was: its tokens are used", "retokenised" not in miss and counted == 0, (answer, miss))
    # Letters are appended to an answer. Some of them form one token with the answer's last letter,
    # and then no token ends where the answer did.
    seen = []
    for seed in range(40):
        answer = chat(s, first, temperature=2, seed=seed, ignore_eos=True)["choices"][0]["message"]["content"]
        seen += [resent(s, first, answer + x) for x in ("he", "nd", "ed", "s", "e", "ing")]
        if any("retokenised" in miss for miss, _, _ in seen):
            break
    found = [(re.search(r"retokenised at (\d+)", miss), counted, n) for miss, counted, n in seen]
    hits = [(int(m.group(1)), counted, n) for m, counted, n in found if m]
    check("with letters that melt into its last token: retokenised at N",
          len(hits) > 0 and all(0 < at < n and counted == 1 for at, counted, n in hits), seen)
    check("the others are not counted", all(counted == 0 for m, counted, _ in found if not m), seen)


server = Server(MODEL, "--plain-chat")
try:
    test(server)
except Exception as e:  # noqa: BLE001
    check(repr(e), False, "".join(server.log)[-800:])
check("status 0", server.stop() == 0)
end()
