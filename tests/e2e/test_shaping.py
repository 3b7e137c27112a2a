"""Penalties, logit_bias, stop_token_ids and min_tokens, as a client sees them."""
import threading

from serve_client import HAS_RANKS, Server
from tap import check, end, equal

MODEL = "models/demo"
PROMPT = "<|begin|><|user|>Tell me about the little bird.<|end|><|assistant|>"


def ask(s, **fields):
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 1, **fields}
    status, _, r = s.post("/v1/completions", body)
    if status != 200:
        raise RuntimeError(f"{status}: {r}")
    return r["choices"][0]


def pieces(answer):
    return answer["logprobs"]["tokens"]


def refused(s, name, value):
    status, _, r = s.post("/v1/completions", {"prompt": "x", name: value})
    check(f"{name} {str(value)[:40]}: refused by name", status == 400 and r["error"]["param"] == name, (status, r))


def test_all(s, name):
    plain = ask(s)
    first = pieces(plain)[0]
    id_of = {t: s.post("/tokenize", {"content": t, "add_special": False})[2]["tokens"] for t in set(pieces(plain))}
    equal(f"{name}: neutral values change nothing", ask(s, frequency_penalty=0, presence_penalty=0, repetition_penalty=1,
                                                        logit_bias={}, stop_token_ids=[], min_tokens=0)["text"],
          plain["text"])
    banned = ask(s, logit_bias={str(id_of[first][0]): -100})
    check(f"{name}: a token with a bias of -100 does not come", first not in pieces(banned), (first, pieces(banned)))
    equal(f"{name}: logprobs are those of the raw logits", list(banned["logprobs"]["top_logprobs"][0])[0],
          list(plain["logprobs"]["top_logprobs"][0])[0])
    forced = ask(s, logit_bias={str(id_of[first][0]): 100}, max_tokens=5)
    equal(f"{name}: one with 100 is all there is", pieces(forced), [first] * 5)
    tired = ask(s, logit_bias={str(id_of[first][0]): 20}, frequency_penalty=2, max_tokens=24, ignore_eos=True)
    check(f"{name}: frequency_penalty wears it out", 1 <= pieces(tired).count(first) < 24, pieces(tired))
    usual = len(set(pieces(ask(s, max_tokens=48, ignore_eos=True))))
    for field, value, sign in (("presence_penalty", -2, -1), ("frequency_penalty", -1, -1), ("frequency_penalty", 2, 1),
                               ("repetition_penalty", 50, 1)):
        some = len(set(pieces(ask(s, max_tokens=48, ignore_eos=True, **{field: value}))))
        check(f"{name}: {field} {value}: {'more' if sign > 0 else 'fewer'} different tokens", (some - usual) * sign > 0,
              (some, usual))
    third = next(t for t in pieces(plain)[2:] if len(id_of[t]) == 1 and pieces(plain).index(t) >= 2)
    stopped = ask(s, stop_token_ids=id_of[third])
    equal(f"{name}: stop_token_ids end the answer", (pieces(stopped), stopped["finish_reason"]),
          (pieces(plain)[:pieces(plain).index(third)], "stop"))
    late = ask(s, stop_token_ids=id_of[third], min_tokens=10, max_tokens=40)
    check(f"{name}: but not before min_tokens", len(pieces(late)) >= 10 and third not in pieces(late)[:10], pieces(late))
    ended = ask(s, max_tokens=400)
    n = len(pieces(ended))
    longer = ask(s, max_tokens=n + 20, min_tokens=n + 8)
    check(f"{name}: nor does EOS", ended["finish_reason"] == "stop" and len(pieces(longer)) >= n + 8, (n, longer))
    # requests computed side by side each have their own values
    got = [None] * 3
    bodies = [{}, {"logit_bias": {str(id_of[first][0]): -100}}, {"repetition_penalty": 50}]
    threads = [threading.Thread(target=lambda i=i: got.__setitem__(i, ask(s, **bodies[i])["text"])) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    equal(f"{name}: requests do not disturb each other", got, [ask(s, **b)["text"] for b in bodies])


server = Server(MODEL)
test_all(server, "cpu")
chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "min_tokens": 30,
                                            "max_tokens": 40, "frequency_penalty": 0.5})[2]
check("chats have them, too", chat["usage"]["completion_tokens"] >= 30, chat["usage"])
for field, values in {"frequency_penalty": (2.5, "x"), "presence_penalty": (-3,), "repetition_penalty": (0, 101),
                      "min_tokens": (-1,), "logit_bias": ({"-1": 1}, {"1": 101}, {"1": "x"}, {"999999": 1}, [1],
                                                          {str(i): 0 for i in range(1025)}),
                      "stop_token_ids": ([-1], ["a"], 5, [99999999], list(range(65)))}.items():
    for v in values:
        refused(server, field, v)
equal("status 0", server.stop(), 0)
if HAS_RANKS:
    server = Server(MODEL, "--tensor-parallel", "2")
    test_all(server, "two ranks")
    server.stop()
end()
