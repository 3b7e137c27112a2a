"""Where an answer ends: at every token that ends a turn, in a folder and in a packed file; and without
the character that max_tokens has cut, on every route."""
import json
import os
import subprocess

import scripted_model
from serve_client import HC, Server
from tap import check, end, equal, scratch

tmp = scratch("ends")
CHATML = ("{% for m in messages %}{{ '<|s|>' + m.role + '\n' + m.content + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|s|>assistant\n' }}{% endif %}")
WHOLE = "Hi! \U0001f60a."
GO = [{"role": "user", "content": "go"}]
names = []  # names of the models, in the order in which they were served


def texts(server, n):
    """Returns the answer of every route, with at most n tokens."""
    out = {}

    def whole(path, body, text):
        out[path] = text(server.post(path, {"temperature": 0, **body})[2])

    def stream(path, body, text):
        out[path + " stream"] = "".join(text(e) or "" for e in server.streamed(path, {"temperature": 0, **body}))
    chat, logs = {"messages": GO, "max_tokens": n}, {"logprobs": True, "top_logprobs": 2}
    for extra in ({}, logs):
        whole("/v1/chat/completions", {**chat, **extra}, lambda r: r["choices"][0]["message"]["content"])
        stream("/v1/chat/completions", {**chat, **extra}, lambda e: e["choices"][0]["delta"].get("content"))
    plain = {"prompt": "go\n", "max_tokens": n}
    for extra in ({}, {"logprobs": 2}):
        whole("/v1/completions", {**plain, **extra}, lambda r: r["choices"][0]["text"])
        stream("/v1/completions", {**plain, **extra}, lambda e: e["choices"][0]["text"])
    kept = {"input": "go", "max_output_tokens": n}
    whole("/v1/responses", kept, lambda r: r["output"][0]["content"][0]["text"])
    stream("/v1/responses", kept, lambda e: e.get("delta"))
    whole("/v1/messages", chat, lambda r: r["content"][0]["text"])
    stream("/v1/messages", chat, lambda e: e.get("delta", {}).get("text"))
    return out


def test_cut_characters():
    pieces = [b"Hi", b"! \xf0", b"\x9f\x98", b"\x8a."]
    model = scripted_model.make_chain(os.path.join(tmp, "cut"), pieces, CHATML, special=["<|s|>"])
    server = Server(model, "--store", os.path.join(tmp, "s"))
    for n, want in ((2, "Hi! "), (3, "Hi! "), (4, WHOLE), (50, WHOLE)):
        got = texts(server, n)
        check(f"{n} tokens: every route has whole characters", set(got.values()) == {want}, got)
    r = server.post("/v1/chat/completions", {"messages": GO, "max_tokens": 3, "logprobs": True})[2]["choices"][0]
    equal("log-probabilities show all tokens", [t["bytes"] for t in r["logprobs"]["content"]], [list(p) for p in pieces[:3]])
    out = subprocess.run([HC, "run", model, "--prompt", "go", "--max-tokens", "3", "--json"], check=True,
                         stdout=subprocess.PIPE)
    equal("so does run", json.loads(out.stdout)["text"], "Hi! ")
    server.stop()


def answer_of(model):
    server = Server(model)
    names.append(server.request("GET", "/v1/models")[2]["data"][0]["id"])
    r = server.post("/v1/chat/completions", {"messages": GO, "max_tokens": 20, "temperature": 0})[2]["choices"][0]
    server.stop()
    return r["message"]["content"], r["finish_reason"]


def test_ends():
    """config.json names a token that the model never emits."""
    for name, end_token in (("eos", "<|never-heard-of|>"), ("turn", "<turn|>")):
        # the folder of a model in the cache of Hugging Face
        folder = os.path.join(tmp, "models--some-org--" + name, "snapshots", "0123abcd")
        os.makedirs(os.path.dirname(folder))
        model = scripted_model.make_chain(folder, [b"Hel", b"lo"], CHATML, end=end_token,
                                          special=["<|s|>", "<|other|>"], config_end="<|other|>")
        if name == "turn":  # known by its text alone
            with open(os.path.join(model, "tokenizer_config.json"), "w") as f:
                json.dump({"chat_template": CHATML, "eos_token": "<|other|>"}, f)
        equal(f"{name}: ends an answer", answer_of(model), ("Hello", "stop"))
        packed = os.path.join(tmp, name + ".packed")
        subprocess.run([HC, "model", "pack", model, "--out", packed], check=True, stdout=subprocess.DEVNULL)
        equal(f"{name}: also in a packed file", answer_of(packed), ("Hello", "stop"))
    with open(os.path.join(model, "generation_config.json"), "w") as f:
        json.dump({"suppress_tokens": [scripted_model.N_BYTES + 1]}, f)
    check("a suppressed token is never chosen", "lo" not in answer_of(model)[0], answer_of(model))
    packed = os.path.join(tmp, "suppressed.packed")
    subprocess.run([HC, "model", "pack", model, "--out", packed], check=True, stdout=subprocess.DEVNULL)
    check("nor by a packed file", "lo" not in answer_of(packed)[0], answer_of(packed))


test_cut_characters()
test_ends()
equal("a model of the cache has its own name", names[:3], ["some-org/eos", "eos.packed", "some-org/turn"])
end()
