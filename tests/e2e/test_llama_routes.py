"""llama-server's routes and fields, and what they share with OpenAI's."""
import os
import subprocess
import tempfile

from scripted_model import make_talker
from serve_client import HC, Server, Stream
from tap import check, end, equal

GREEDY = {"prompt": "Once upon a time", "temperature": 0, "n_predict": 6, "ignore_eos": True}
HI = [{"role": "user", "content": "Who is Lily?"}]


def completion(s):
    _, _, whole = s.post("/completion", {**GREEDY, "n_probs": 3, "return_tokens": True})
    want = s.complete(GREEDY["prompt"], max_tokens=6, ignore_eos=True)["choices"][0]["text"]
    equal("completion: the text is that of /v1/completions", whole["content"], want)
    check("completion: tokens, counts, the reason and the settings", len(whole["tokens"]) == 6 and whole["stop_type"] == "limit"
          and whole["tokens_predicted"] == 6 and whole["tokens_evaluated"] == whole["timings"]["prompt_n"] + whole["timings"]["cache_n"]
          and whole["generation_settings"]["n_predict"] == 6 and whole["truncated"] is False, whole)
    probs = whole["completion_probabilities"]
    check("n_probs: as many tokens, the chosen one by id", len(probs) == 6 and all(len(p["top_logprobs"]) == 3 for p in probs)
          and [p["id"] for p in probs] == whole["tokens"], probs)
    events = s.streamed("/completion", {**GREEDY, "timings_per_token": True})
    check("a stream: the same text and tokens, no [DONE], timings in each event",
          "".join(e["content"] for e in events) == want and [t for e in events for t in e["tokens"]] == whole["tokens"]
          and [e["stop"] for e in events] == [False] * (len(events) - 1) + [True] and all("timings" in e for e in events), events)
    ids = s.post("/tokenize", {"content": "Once upon"})[2]["tokens"]
    _, _, many = s.post("/completion", {**GREEDY, "prompt": [ids, "Once upon", {"prompt_string": "Once upon"}]})
    check("several prompts, as ids, text and object, give equal answers", isinstance(many, list)
          and len({m["content"] for m in many}) == 1 and [m["index"] for m in many] == [0, 1, 2], many)
    mixed = s.post("/completion", {**GREEDY, "prompt": [ids[0], " upon a", *s.post("/tokenize", {"content": " time"})[2]["tokens"]]})[2]
    equal("ids and texts in one prompt", mixed["content"], want)
    picked = s.post("/completion", {**GREEDY, "response_fields": ["content", "generation_settings/n_predict"]})[2]
    equal("response_fields picks by path", picked, {"content": want, "generation_settings/n_predict": 6})
    bias = s.post("/completion", {**GREEDY, "response_fields": ["generation_settings/logit_bias"]})[2]
    equal("ignore_eos is shown as a bias", [b["bias"] for b in bias["generation_settings/logit_bias"]], [None])
    stop = s.post("/completion", {**GREEDY, "stop": [want[3:5]]})[2]
    check("a stop text ends as a word", (stop["stop_type"], stop["stopping_word"]) == ("word", want[3:5]), stop)
    long = s.post("/completion", {"prompt": "Once", "ignore_eos": True, "temperature": 0})[2]
    check("without n_predict the answer fills the context", long["truncated"] and long["tokens_predicted"] > 100
          and long["stop_type"] == "limit", long["tokens_predicted"])


def fields(s):
    first = s.post("/tokenize", {"content": s.complete("Once upon a time", max_tokens=1)["choices"][0]["text"]})[2]["tokens"][0]
    text = s.complete("Once upon a time", max_tokens=1)["choices"][0]["text"]
    for name, bias in (("a list", [[first, -100]]), ("false", [[first, False]]), ("by text", {text: -100}), ("a list by text", [[text, -100]])):
        got = s.complete("Once upon a time", max_tokens=1, logit_bias=bias)["choices"][0]["text"]
        check(f"logit_bias as {name} keeps a token out", got != text, got)
    for bad in ([[first]], [["x", 101]], 5, [[-1, 1]]):
        equal(f"logit_bias {bad} is refused", s.post("/v1/completions", {"prompt": "a", "logit_bias": bad})[0], 400)
    echo = s.complete("Once upon", max_tokens=2, echo=True)["choices"][0]["text"]
    equal("echo: the text begins with the prompt", echo, "Once upon" + s.complete("Once upon", max_tokens=2)["choices"][0]["text"])
    ids = s.post("/tokenize", {"content": "Once upon"})[2]["tokens"]
    equal("echo: so it does for ids", s.complete(ids, max_tokens=2, echo=True)["choices"][0]["text"], echo)
    only_temperature = {"prompt": "Once", "temperature": 1.5, "seed": 3, "n_predict": 12, "ignore_eos": True}
    free = s.post("/completion", {**only_temperature, "top_k": 0, "top_p": 1, "min_p": 0})[2]["content"]
    equal("samplers that are left out do nothing", s.post("/completion", {**only_temperature, "samplers": ["temperature"]})[2]["content"], free)
    for field, value in (("mirostat", 2), ("dry_multiplier", 0.5), ("xtc_probability", 0.1), ("typical_p", 0.5), ("samplers", ["x"]),
                         ("post_sampling_probs", True), ("suffix", "x"), ("n_predcit", 3)):
        status, _, r = s.post("/completion", {"prompt": "a", "n_predict": 1, field: value})
        check(f"{field} is refused by name", status == 400 and field in r["error"]["message"], r)
    status, _, r = s.post("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1, "stream": True})
    check("a stream of echo with log-probabilities is refused by name", status == 400 and "echo" in r["error"]["message"], r)
    _, _, r = s.post("/v1/completions", {"prompt": "a " * 5000})
    check("a prompt that is too long: how long, and the context", r["error"]["n_prompt_tokens"] > r["error"]["n_ctx"] > 100
          and r["error"]["code"] == "context_length_exceeded", r)
    check("answers name the system", s.complete("a", max_tokens=1)["system_fingerprint"].startswith("b"))


def prompts_read(s):
    """echo with log-probabilities, best_of, return_progress."""
    answer = s.complete("Once upon a time", max_tokens=6, ignore_eos=True, logprobs=3)["choices"][0]
    ids = s.post("/tokenize", {"content": "Once upon a time" + answer["text"]})[2]["tokens"]
    for name, more in (("no answer", {"max_tokens": 0}), ("an answer", {"max_tokens": 2, "ignore_eos": True})):
        r = s.complete(ids, echo=True, logprobs=3, **more)["choices"][0]
        n, lp = len(ids), r["logprobs"]
        check(f"echo with log-probabilities and {name}: those of the prompt's tokens are those of the answer that they were",
              lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None and lp["token_logprobs"][n - 6:n] == answer["logprobs"]["token_logprobs"]
              and lp["top_logprobs"][n - 6:n] == answer["logprobs"]["top_logprobs"] and "".join(lp["tokens"]) == r["text"]
              and len(lp["tokens"]) == n + more["max_tokens"] and lp["text_offset"][2] == len("".join(lp["tokens"][:2])), lp)
    sampled = {"prompt": ["Once upon", "The dog"], "max_tokens": 8, "temperature": 1.5, "seed": 3, "ignore_eos": True}
    all_four = s.post("/v1/completions", {**sampled, "n": 4, "logprobs": 0})[2]["choices"]
    mean = [sum(c["logprobs"]["token_logprobs"]) / 8 for c in all_four]
    want = [i for k in (0, 4) for i in sorted(sorted(range(k, k + 4), key=lambda i: -mean[i])[:2])]
    best = s.post("/v1/completions", {**sampled, "n": 2, "best_of": 4})[2]
    equal("best_of sends the answers with the highest mean log-probability", [(c["index"], c["text"], c["logprobs"]) for c in best["choices"]],
          [(at, all_four[i]["text"], None) for at, i in enumerate(want)])
    equal("its usage counts all answers", best["usage"]["completion_tokens"], 64)
    for path, body in (("/v1/completions", {"n": 3, "best_of": 2}), ("/v1/completions", {"best_of": 2, "stream": True}),
                       ("/completion", {"best_of": 2}), ("/v1/completions", {"best_of": 17})):
        status, _, r = s.post(path, {"prompt": "a", **body})
        check(f"{path} {body} is refused by name", status == 400 and "best_of" in r["error"]["message"], r)
    for path, body in (("/completion", {"prompt": "a dog ran. " * 60}), ("/v1/completions", {"prompt": "a cat ran. " * 60}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a pig ran. " * 60}]}),
                       ("/v1/responses", {"input": "a hen ran. " * 60})) * 2:
        end = {"max_output_tokens": 4} if "input" in body else {"max_tokens": 4, "ignore_eos": True}
        events = s.streamed(path, {**body, **end, "temperature": 0, "return_progress": True, "timings_per_token": True})
        told = [e["prompt_progress"] for e in events if "prompt_progress" in e]
        check(f"{path} tells the progress of the prompt, first what is cached", [p["processed"] for p in told] ==
              sorted({p["processed"] for p in told}) and told[0]["processed"] == told[0]["cache"] and told[0]["time_ms"] > 0
              and told[-1]["processed"] == told[-1]["total"] > 200, told)
        times = [e["timings"] for e in events if "timings" in e]
        counts, n_cached = [(t["prompt_n"], t["predicted_n"]) for t in times], told[0]["cache"]
        check(f"{path}: timings are those so far", counts == sorted(counts) and counts[0] == (0, 0) and times[0]["prompt_ms"] == 0
              and counts[-1][0] == told[0]["total"] - n_cached and 0 < counts[-1][1] <= 4 and times[-1]["prompt_ms"] > 0, counts)
    check("a prompt that came before is cached", n_cached > 200, n_cached)


def chats(s):
    def prompt(messages, **more):
        return s.post("/apply-template", {"messages": messages, **more})[2]["prompt"]
    asked = prompt(HI)
    check("apply-template ends with the beginning of an answer, and shows special tokens as they are written",
          asked.endswith("<|assistant|>") and "<|end|>x" in prompt([{"role": "user", "content": "<|end|>x"}]), asked)
    equal("without one if the request says so", prompt(HI, add_generation_prompt=False), asked[:-len("<|assistant|>")])
    begun = [*HI, {"role": "assistant", "content": "Lily is"}]
    equal("a last message of the assistant is the beginning of the answer", prompt(begun), asked + "Lily is")
    equal("so it is if the request says so", prompt(begun, continue_final_message=True, add_generation_prompt=False), asked + "Lily is")
    equal("parts of such a message", prompt([*HI, {"role": "assistant", "content": [{"type": "text", "text": "Lily is"}]}]), asked + "Lily is")
    check("it is a message of its own if the request says so", prompt(begun, continue_final_message=False) == asked
          + "Lily is<|end|><|assistant|>", prompt(begun, continue_final_message=False))
    r = s.post("/v1/chat/completions", {"messages": begun, "temperature": 0, "max_tokens": 6, "ignore_eos": True, "verbose": True})[2]
    equal("a chat goes on in it; verbose shows the prompt", r["__verbose"]["prompt"], asked + "Lily is")
    equal("its answer is what the text completion of that prompt gives", r["choices"][0]["message"]["content"],
          s.complete(asked + "Lily is", max_tokens=6, ignore_eos=True)["choices"][0]["text"])
    for name, body in (("two messages of the assistant at the end", {"messages": [*begun, begun[-1]]}),
                       ("both switches", {"messages": begun, "add_generation_prompt": True, "continue_final_message": True}),
                       ("nothing to go on in", {"messages": HI, "continue_final_message": True})):
        equal(f"{name}: 400", s.post("/v1/chat/completions", body)[0], 400)
    n = s.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1})[2]["usage"]["prompt_tokens"]
    equal("input_tokens counts a chat's prompt", s.post("/chat/completions/input_tokens", {"messages": HI})[2], {"input_tokens": n})


def server(s):
    _, _, props = s.request("GET", "/props")
    check("props: the template, the places and their context", "messages" in props["chat_template"] and props["total_slots"] == 3
          and props["default_generation_settings"]["n_ctx"] == 512 and props["eos_token"] == "<|end|>", props)
    equal("slots: the places, without prompts", s.request("GET", "/slots")[2],
          [{"id": i, "n_ctx": 512, "is_processing": False} for i in range(3)])
    stream = Stream(s, "/completion", {"prompt": "a", "ignore_eos": True, "n_predict": 500})
    next(stream.events)
    busy = [x["is_processing"] for x in s.request("GET", "/slots")[2]]
    stream.close()
    check("slots: a place is busy", busy in ([True, False, False], [False] * 3), busy)
    equal("routes are there without /v1", s.request("GET", "/models")[2]["data"][0]["id"], s.request("GET", "/v1/models")[2]["data"][0]["id"])
    equal("also those with parts", s.request("GET", "/models/demo")[0], 200)
    pieces = s.post("/tokenize", {"content": "hé", "with_pieces": True})[2]["tokens"]
    check("tokenize with pieces: texts, or bytes", all("id" in p for p in pieces)
          and b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces) == "hé".encode(), pieces)


def template():
    """The template of a file replaces the model's."""
    with tempfile.TemporaryDirectory() as d:
        good, bad = os.path.join(d, "good.jinja"), os.path.join(d, "bad.jinja")
        for path, text in ((good, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"), (bad, "{% for %}")):
            with open(path, "w") as f:
                f.write(text)
        s = Server("models/demo", "--chat-template-file", good)
        equal("--chat-template-file makes the prompts", s.post("/apply-template", {"messages": HI})[2]["prompt"], "<user>Who is Lily?")
        equal("and is shown", s.request("GET", "/props")[2]["chat_template"][:10], "{% for m i")
        s.stop()
        for path, why in ((bad, "the chat template"), (d, d)):
            p = subprocess.run([HC, "serve", "models/demo", "--port", "0", "--chat-template-file", path], capture_output=True, text=True)
            check("one that cannot be read ends the start, by name", p.returncode == 1 and why in p.stderr, p)


def infill():
    with tempfile.TemporaryDirectory() as d:
        m = make_talker(os.path.join(d, "m"), "{{ messages[0].content }}<|fim_middle|>",
                        {"<|fim_prefix|>": ["<p>"], "<|fim_suffix|>": ["<s>"], "<|fim_middle|>": ["the filling", " of it"]})
        s = Server(m)
        want = s.complete("<|fim_prefix|>a = <|fim_suffix|>;<|fim_middle|>", max_tokens=5)["usage"]["prompt_tokens"]
        _, _, r = s.post("/infill", {"input_prefix": "a ", "prompt": "= ", "input_suffix": ";", "temperature": 0})
        equal("infill: the filling, with the text before and behind the hole", (r["content"], r["tokens_evaluated"]), ("the filling of it", want))
        more = s.post("/infill", {"input_prefix": "a ", "input_suffix": ";", "input_extra": [{"filename": "b.c", "text": "int b;"}]})[2]
        check("infill: other files stand before it", more["tokens_evaluated"] > want, more["tokens_evaluated"])
        r = s.complete("a = ", suffix=";", max_tokens=5)
        equal("suffix of a completion fills, too", (r["choices"][0]["text"], r["usage"]["prompt_tokens"]), ("the filling of it", want))
        for bad in ({"input_prefix": "a"}, {"input_suffix": "b", "input_extra": [{"filename": 1}]}, {"input_suffix": 5}):
            equal(f"infill {bad} is refused", s.post("/infill", bad)[0], 400)
        s.stop()


def seeded():
    """--seed N is the seed of requests that name none."""
    hot = {"prompt": "Once upon", "temperature": 2, "n_predict": 24, "ignore_eos": True, "top_k": 0, "top_p": 1, "min_p": 0}
    s, free = Server("models/demo", "--seed", "7"), Server("models/demo")
    texts = [x.post("/completion", {**hot, **more})[2]["content"] for x, more in
             ((s, {}), (s, {}), (free, {"seed": 7}), (s, {"seed": 8}), (free, {}))]
    check("--seed: answers repeat, and are those of a request with this seed", texts[0] == texts[1] == texts[2], texts)
    check("a request's own seed goes first; without the option each draws one", len(set(texts[2:])) == 3, texts)
    equal("props show it", s.request("GET", "/props")[2]["default_generation_settings"]["params"]["seed"], 7)
    s.stop()
    free.stop()


s = Server("models/demo", "--max-sequences", "3", "--max-context", "512")
completion(s)
fields(s)
prompts_read(s)
chats(s)
server(s)
equal("the server stops with status 0", s.stop(), 0)
template()
infill()
seeded()
end()
