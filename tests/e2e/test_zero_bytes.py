"""Zero bytes in a client's data: a prompt keeps the text after them, and no name is cut short.

JSON writes a zero byte as \\u0000, a URL as %00.  Two requests that differ only after a zero byte
are different requests."""
import os
import subprocess

from serve_client import HC, Server
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
CUT = "Hello\0"
TEXT = "Hello\0 little bird, what do you sing in the morning"


def n_tokens(server, path, body, *names):
    status, _, r = server.post(path, body)
    if status != 200:
        return f"{status}: {r}"
    for name in names:
        r = r[name]
    if names == ("usage",):  # Anthropic counts the tokens that were found apart
        return r["input_tokens"] + r["cache_read_input_tokens"] + r["cache_creation_input_tokens"]
    return r


def longer(server, name, path, make, *names):
    """The text after the zero byte is part of the prompt, and the zero byte is a token of its own."""
    whole, cut, without = (n_tokens(server, path, make(t), *names) for t in (TEXT, CUT, "Hello"))
    check(f"{name}: the text behind a zero byte is in the prompt",
          isinstance(whole, int) and whole > cut + 8 and cut > without, (without, cut, whole))


def test_prompts(s):
    def chat(t):
        return {"messages": [{"role": "user", "content": t}], "max_tokens": 1}

    def message(t):
        return {"messages": [{"role": "user", "content": t}]}

    longer(s, "chat", "/v1/chat/completions", chat, "usage", "prompt_tokens")
    longer(s, "chat with parts", "/v1/chat/completions",
           lambda t: {"messages": [{"role": "user", "content": [{"type": "text", "text": t}]}], "max_tokens": 1},
           "usage", "prompt_tokens")
    longer(s, "completions", "/v1/completions", lambda t: {"prompt": t, "max_tokens": 1}, "usage", "prompt_tokens")
    longer(s, "responses", "/v1/responses", lambda t: {"input": t, "max_output_tokens": 1}, "usage", "input_tokens")
    longer(s, "responses with parts", "/v1/responses",
           lambda t: {"input": [{"role": "user", "content": [{"type": "input_text", "text": t}]}],
                      "max_output_tokens": 1}, "usage", "input_tokens")
    longer(s, "instructions", "/v1/responses",
           lambda t: {"input": "Hi", "instructions": t, "max_output_tokens": 1}, "usage", "input_tokens")
    longer(s, "messages", "/v1/messages", lambda t: {**message(t), "max_tokens": 1}, "usage")
    longer(s, "system", "/v1/messages", lambda t: {**message("Hi"), "system": t, "max_tokens": 1}, "usage")
    longer(s, "count_tokens", "/v1/messages/count_tokens", message, "input_tokens")
    longer(s, "lookup of a prompt", "/v1/cache/lookup", lambda t: {"prompt": t}, "prompt_tokens")
    longer(s, "lookup of messages", "/v1/cache/lookup", message, "prompt_tokens")
    longer(s, "prefetch", "/v1/cache/prefetch", message, "prompt_tokens")
    longer(s, "tokenize", "/tokenize", lambda t: {"content": t}, "count")
    equal("tokenize and detokenize give the text back",
          s.post("/detokenize", {"tokens": s.post("/tokenize", {"content": TEXT})[2]["tokens"]})[2]["content"], TEXT)


def test_kept(s):
    """The conversation is kept with all of the text, and continues from its own tokens."""
    status, _, first = s.post("/v1/responses", {"input": TEXT, "instructions": "Sing.\0 Loud.", "max_output_tokens": 4})
    equal("responses: instructions come back whole", (status, first.get("instructions")), (200, "Sing.\0 Loud."))
    if status != 200:
        first = s.post("/v1/responses", {"input": TEXT, "max_output_tokens": 4})[2]
    items = s.request("GET", f"/v1/responses/{first['id']}/input_items")[2]
    equal("the item that was kept", items["data"][0]["content"][0]["text"], TEXT)
    nxt = s.post("/v1/responses", {"input": "And then?", "previous_response_id": first["id"],
                                   "instructions": "Sing.\0 Loud.", "max_output_tokens": 1})[2]
    kept = first["usage"]["total_tokens"]
    check("the next turn holds the tokens of the first", nxt["usage"]["input_tokens"] > kept, (kept, nxt))
    check("and they were not tokenized again", nxt["timings"]["miss"] is None or
          "retokenised" not in nxt["timings"]["miss"], nxt["timings"])
    conversation = s.post("/v1/conversations", {"items": [{"role": "user", "content": TEXT}]})[2]["id"]
    items = s.request("GET", f"/v1/conversations/{conversation}/items")[2]
    equal("an item that was put in", items["data"][0]["content"][0]["text"], TEXT)
    call = [{"type": "function_call", "call_id": "a\0b", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a\0b", "output": TEXT}]
    status, _, r = s.post(f"/v1/conversations/{conversation}/items", {"items": call})
    equal("a call's id and output", (status, [i.get("call_id") for i in r["data"]], r["data"][1].get("output")),
          (200, ["a\0b", "a\0b"], TEXT))
    return first["id"], conversation


def test_names(s, response, conversation):
    """No conversation or response has a name that contains a zero byte."""
    refused = (400, 404)
    for name, path, body in (
            ("previous_response_id", "/v1/responses", {"input": "x", "previous_response_id": response + "\0x"}),
            ("conversation", "/v1/responses", {"input": "x", "conversation": conversation + "\0x"}),
            ("conversation.id", "/v1/responses", {"input": "x", "conversation": {"id": conversation + "\0x"}}),
            ("branch at", f"/v1/conversations/{conversation}/branch", {"at": response + "\0x"}),
            ("lookup", "/v1/cache/lookup", {"response_id": response + "\0x"}),
            ("model", "/v1/completions", {"prompt": "x", "model": "demo\0x"}),
            ("stop", "/v1/completions", {"prompt": "x", "stop": "a\0b"}),
            ("role", "/v1/chat/completions", {"messages": [{"role": "user\0x", "content": "x"}]}),
            ("part", "/v1/chat/completions",
             {"messages": [{"role": "user", "content": [{"type": "text\0x", "text": "x"}]}]}),
            ("tool_choice", "/v1/chat/completions",
             {"messages": [{"role": "user", "content": "x"}], "tool_choice": "none\0x"})):
        status, _, r = s.post(path, {"max_tokens": 1, **body} if "completions" in path else body)
        check(f"{name} with a zero byte is refused", status in refused, (status, r))
    for method, path in (("DELETE", f"/v1/responses/{response}%00/input_items"),
                         ("GET", f"/v1/responses/{response}%00"), ("DELETE", f"/v1/conversations/{conversation}%00x"), ("GET", "/v1/models/demo%00x"),
                         ("GET", "/health%00"), ("GET", f"/v1/conversations?after={conversation}%00x"),
                         ("GET", "/%00")):
        equal(f"{method} with %00 in {path.split('?')[0][:12]}..: 400", s.request(method, path)[0], 400)
    equal("the response is still there", s.request("GET", f"/v1/responses/{response}")[0], 200)
    equal("so is the conversation", s.request("GET", f"/v1/conversations/{conversation}")[0], 200)


def test_terminal(tmp):
    """A line typed into `run -i --conversation` contains a zero byte."""
    store = os.path.join(tmp, "talk")
    p = subprocess.run([HC, "run", MODEL, "--store", store, "-i", "--conversation", "zero", "-n", "4"],
                       input=TEXT.encode() + b"\n", capture_output=True, timeout=PATIENCE)
    check("run -i takes a line with a zero byte", p.returncode == 0, p.stderr)
    s = Server(MODEL, "--store", store)
    conversation = s.request("GET", "/v1/conversations")[2]["data"][0]["id"]
    items = s.request("GET", f"/v1/conversations/{conversation}/items?order=asc")[2]["data"]
    equal("and keeps all of it", items[0]["content"][0]["text"], TEXT)
    s.stop()


tmp = scratch("zero")
server = Server(MODEL, "--store", os.path.join(tmp, "s"))
test_prompts(server)
test_names(server, *test_kept(server))
server.stop()
test_terminal(tmp)
end()
