"""Guessed tokens (--speculate): answers with them are those of a server without, in every form that a request can have,
and after kill -9."""
import json
import os

from hybrid_model import write_hybrid_model
from serve_client import SAVING, Server
from tap import check, end, equal, hc, ok, scratch

MODEL = "models/demo"
CHAT = "/v1/chat/completions"
STORY = ("The little bird lived in the tall green tree. Every morning the little bird sang a song for the dog. The dog "
         "liked the song of the little bird, and the little bird liked the dog. ")
SCHEMA = {"type": "array", "minItems": 12, "maxItems": 12, "items": {
    "type": "object", "properties": {"name_of_the_bird": {"enum": ["Momo", "Rex"]}, "can_sing": {"type": "boolean"}},
    "required": ["name_of_the_bird", "can_sing"], "additionalProperties": False}}
tmp = scratch("guesses")


def bodies():
    text = [{"role": "user", "content": STORY * 3 + "Tell it again."}]
    base = {"messages": text, "max_tokens": 150, "ignore_eos": True}
    for t in (0, 0.7, 2):
        yield f"temperature {t}", {**base, "temperature": t, "seed": 5}
    yield "log-probabilities", {**base, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    yield "penalties with log-probabilities", {**base, "temperature": 0.5, "seed": 2, "frequency_penalty": 0.1, "presence_penalty": 0.2,
                                               "repetition_penalty": 1.02, "logprobs": True}
    yield "a bias and a least length", {**base, "ignore_eos": False, "temperature": 0, "min_tokens": 100, "logit_bias": {"300": 1}}
    yield "a stop string", {**base, "temperature": 0, "stop": ["little bird sang", "dog liked"]}
    yield "a form", {**base, "ignore_eos": False, "max_tokens": 400, "temperature": 1, "seed": 4, "json_schema": SCHEMA}
    yield "two answers", {**base, "temperature": 1, "seed": 9, "n": 2}
    yield "the end of the room", {**base, "temperature": 0, "max_tokens": 1}


def answer_of(r):
    status, _, body = r
    if status != 200:
        return body
    return [[c["message"]["content"], c["finish_reason"], c["logprobs"]] for c in body["choices"]], body["usage"]["completion_tokens"]


def test_answers(a, b, least):
    for what, body in bodies():
        equal(f"{what}: the same answer", answer_of(a.post(CHAT, body)), answer_of(b.post(CHAT, body)))
    check("guesses were right", a.metric('hcache_guessed_tokens_total{outcome="right"}') > least,
          a.metric('hcache_guessed_tokens_total{outcome="right"}'))
    equal("the other server made none", b.metric('hcache_guessed_tokens_total{outcome="right"}'), 0)
    body = next(bodies())[1]
    text = "".join(c["delta"].get("content") or "" for e in a.streamed(CHAT, body) for c in e["choices"])
    equal("a stream has the same text", text, b.post(CHAT, body)[2]["choices"][0]["message"]["content"])


def test_prediction(a, b):
    ask = {"messages": [{"role": "user", "content": "Tell me about the dog Rex."}], "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    text = b.post(CHAT, ask)[2]["choices"][0]["message"]["content"]
    cut = text.index(" ", 40)
    for what, content in (("a text", text), ("parts", [{"type": "text", "text": text[:cut]}, {"type": "text", "text": text[cut:]}])):
        r = a.post(CHAT, {**ask, "prediction": {"type": "content", "content": content}})[2]
        d = r["usage"]["completion_tokens_details"]
        equal(f"a prediction of {what} changes no answer", r["choices"][0]["message"]["content"], text)
        check(f"tokens of a prediction of {what} were right", d["accepted_prediction_tokens"] >= 10, d)
    r = b.post(CHAT, {**ask, "prediction": {"type": "content", "content": text}})[2]
    equal("without guesses none is counted", r["usage"]["completion_tokens_details"],
          {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0})
    for wrong in ({"type": "content"}, {"type": "other", "content": "x"}, {"type": "content", "content": [3]},
                  {"type": "content", "content": []}, "x"):
        status, _, r = a.post(CHAT, {**ask, "prediction": wrong})
        check(f"{wrong} is refused by name", status == 400 and r["error"]["param"] == "prediction", r)


def run(model, ids, *options):
    path = os.path.join(tmp, "ids")
    with open(path, "w") as f:
        f.write(" ".join(map(str, ids)))
    return json.loads(ok("run", model, "--token-ids", path, "--ignore-eos", "--json", *options))


def test_killed(model, plan, store):
    a = Server(model, "--store", store, "--speculate", "15", *SAVING)
    ids = a.post("/tokenize", {"content": STORY * 4})[2]["tokens"]
    answer = run(model, ids, "-n", "200", "--speculate", "off")["token_ids"]
    a.complete(ids, max_tokens=200, ignore_eos=True)
    a.post("/v1/cache/flush", {})
    a.kill()
    all_ids = ids + answer
    got = run(model, all_ids, "-n", "8", "--store", store, "--speculate", "off", "--plan", plan)
    check("what it saved is found after kill -9", got["cached_tokens"] >= (len(all_ids) - 1) // 64 * 64, got)
    want = run(model, all_ids, "-n", "8", "--speculate", "off")
    equal("and has the same bits", (got["logits_digest"], got["token_ids"]), (want["logits_digest"], want["token_ids"]))


def test_options():
    for value in ("0", "16", "-1", "many", "3x"):
        status, _, err = hc("run", MODEL, "-p", "x", "-n", "1", "--speculate", value)
        check(f"--speculate {value} is refused", status == 2 and "from 1 to 15" in err, err)


recurrent = write_hybrid_model(os.path.join(tmp, "hybrid"))
for model, least, plan in (MODEL, 100, "kv"), (recurrent, 30, "auto"):
    with_guesses = Server(model, "--speculate", "15", "--no-reuse")
    without = Server(model, "--speculate", "off", "--no-reuse")
    test_answers(with_guesses, without, least)
    if model == MODEL:
        test_prediction(with_guesses, without)
    with_guesses.stop()
    without.stop()
    test_killed(model, plan, os.path.join(tmp, "store" + plan))
test_options()
end()
