"""Thoughts, text and calls of an answer on the three routes, whole and streamed: both say the same."""
import json
import os
import re

from scripted_model import N_BYTES, tensors, tokenizer, write_model, write_script
from serve_client import Server
from tap import check, end, equal, scratch

BIG = "18446744073709551615"
HERMES = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
          "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ '<tool_call>\\n' + c.function | tojson + '\\n</tool_call>' }}"
          "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}")
MISTRAL = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}"
           "{% for c in m.tool_calls or [] %}{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}"
           "{% endfor %}{% endfor %}{{ '\\n' }}")
HERMES_PIECES = ["<think>\nWeigh <tool", "_call>x</tool_call>.\n</th", "ink>\n\nFirst. <tool_call>\n{\"name\": \"f\", \"argu",
                 "ments\": {\"a\": \"</tool_", "call> \\\"\", \"n\": " + BIG + "}}\n</tool", "_call>\nThen",
                 ".\n<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>", "<tool_call>{\"name\": \"g\", \"arguments\": {}}"]
HERMES_ARGS = '{"a": "</tool_call> \\"", "n": ' + BIG + "}"
SAID = [("text", "First."), ("call", "f", HERMES_ARGS),
        ("text", '\nThen.\n<tool_call>{"name": "f", "arguments": {}</tool_call>'), ("call", "g", "{}")]
FUNCTIONS = [{"name": n, "description": "d", "parameters": {"type": "object", "properties": {}}} for n in "fg"]
CHAT_TOOLS = [{"type": "function", "function": f} for f in FUNCTIONS]
RESPONSE_TOOLS = [{"type": "function", **f} for f in FUNCTIONS]
MESSAGE_TOOLS = [{"name": f["name"], "input_schema": f["parameters"]} for f in FUNCTIONS]
USER = [{"role": "user", "content": "go"}]


def raw(s, path, body):
    return s.post(path, body)[2]


def chat(s, **fields):
    """Returns (thought, content, calls) of the whole answer, and of the stream."""
    body = {"messages": USER, "temperature": 0, **fields}
    m = raw(s, "/v1/chat/completions", body)["choices"][0]["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"], c["id"]) for c in m.get("tool_calls") or []]
    thought = content = ""
    streamed = {}
    for e in s.streamed("/v1/chat/completions", body):
        for c in e.get("choices", []):
            d = c["delta"]
            thought += d.get("reasoning_content") or ""
            content += d.get("content") or ""
            for t in d.get("tool_calls") or []:
                streamed[t["index"]] = (t["function"]["name"], t["function"]["arguments"], t["id"])
    ids = [c[2] for c in calls]
    check("ids of calls: at most 40 letters, all different",
          len(set(ids)) == len(ids) and all(re.fullmatch("[A-Za-z0-9_-]{1,40}", i) for i in ids), ids)
    return ((m.get("reasoning_content") or "", m["content"] or "", [c[:2] for c in calls]),
            (thought, content, [streamed[i][:2] for i in sorted(streamed)]))


def message(s):
    """Returns the blocks of the whole answer, and of the stream."""
    body = {"max_tokens": 99, "temperature": 0, "messages": USER, "tools": MESSAGE_TOOLS}
    whole, blocks = raw(s, "/v1/messages", body), []
    for e in s.streamed("/v1/messages", body):
        if e["type"] == "content_block_start":
            blocks.append(dict(e["content_block"], input=""))
        if e["type"] == "content_block_delta":
            d, b = e["delta"], blocks[e["index"]]
            for key, delta in (("text", "text"), ("thinking", "thinking"), ("input", "partial_json"),
                               ("signature", "signature")):
                b[key] = b.get(key, "") + d.get(delta, "") if delta in d else b.get(key, "")
    return whole, blocks


def response(s):
    body = {"input": "go", "temperature": 0, "tools": RESPONSE_TOOLS, "store": False}
    evs = s.streamed("/v1/responses", body)
    items, done = {}, []
    for e in evs:
        if e["type"] == "response.output_item.added":
            items[e["item"]["id"]] = ""
        if e["type"].endswith(".delta"):
            items[e["item_id"]] += e["delta"]
        if e["type"] == "response.output_item.done":
            done.append(e["item"])
    return raw(s, "/v1/responses", body)["output"], evs[-1]["response"]["output"], done, items


def text_of(item):
    return item.get("arguments") or "".join(p["text"] for p in item.get("content", []))


tmp = scratch("answers")
s = Server(write_script(os.path.join(tmp, "hermes"), HERMES_PIECES, HERMES, special=["<|im_start|>"]))
THOUGHT = "Weigh <tool_call>x</tool_call>."
want = (THOUGHT, SAID[0][1] + SAID[2][1], [SAID[1][1:], SAID[3][1:]])
whole, streamed = chat(s, tools=CHAT_TOOLS)
equal("chat: thought, text, calls with all digits", whole, want)
equal("chat: the stream says the same", streamed, want)
whole, streamed = chat(s, tools=CHAT_TOOLS[1:])
equal("a call of a tool that nobody offered is text", (whole[2], '"name": "f"' in whole[1]), ([SAID[3][1:]], True))
equal("and in the stream", streamed, whole)
whole, streamed = chat(s, tools=CHAT_TOOLS, tool_choice="none")
equal("tool_choice none: no call", (whole[2], streamed[2]), ([], []))
equal("and all text", whole[:2] == streamed[:2] and whole[1].count("<tool_call>"), 3)
whole, blocks = message(s)
equal("messages: blocks in their order", [b["type"] for b in whole["content"]],
      ["thinking", "text", "tool_use", "text", "tool_use"])
equal("messages: inputs", [b["input"] for b in whole["content"] if b["type"] == "tool_use"], [json.loads(HERMES_ARGS), {}])
equal("messages: the stream has the same blocks",
      [(b["type"], b.get("thinking") or b.get("text") or json.loads(b["input"])) for b in blocks],
      [(b["type"], b.get("thinking") or b.get("text") or b["input"]) for b in whole["content"]])
equal("messages: it stops for the tools", whole["stop_reason"], "tool_use")
output, last, done, items = response(s)
equal("responses: items in their order", [o["type"] for o in output],
      ["reasoning", "message", "function_call", "message", "function_call"])
equal("responses: the deltas are the texts of the last event", [items[o["id"]] for o in last], [text_of(o) for o in last])
equal("responses: every item ends as it is in the last event", done, last)
equal("responses: the stream says what the whole answer says", [text_of(o) for o in last], [text_of(o) for o in output])
# a thought that comes back is where the model wrote it
n = {}
for key in ("reasoning_content", "reasoning", "thinking"):
    old = USER + [{"role": "assistant", "content": "ok", key: "q" * 40}] + USER
    n[key] = raw(s, "/v1/chat/completions", {"messages": old, "max_tokens": 1})["usage"]["prompt_tokens"]
old = USER + [{"role": "assistant", "content": "ok"}] + USER
plain = raw(s, "/v1/chat/completions", {"messages": old, "max_tokens": 1})["usage"]["prompt_tokens"]
check("thoughts reach the prompt under each of their names", len(set(n.values())) == 1 and n["thinking"] >= plain + 40,
      (n, plain))
old = [{"type": "message", "role": "user", "content": "go"},
       {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "q" * 40}]},
       {"type": "message", "role": "assistant", "content": "ok"}, {"type": "message", "role": "user", "content": "go"}]
r = raw(s, "/v1/responses", {"input": old, "max_output_tokens": 1, "store": False})
equal("and as an item of a response", r["usage"]["input_tokens"], n["thinking"])
# all digits of a history
old = USER + [{"role": "assistant", "content": None, "tool_calls": [
    {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"n": ' + BIG + "}"}}]}]
n = [raw(s, "/v1/chat/completions", {"messages": USER + [dict(old[1], tool_calls=[dict(
    old[1]["tool_calls"][0], function={"name": "f", "arguments": '{"n": "' + v + '"}'})])], "max_tokens": 1})
     ["usage"]["prompt_tokens"] for v in (BIG,)]
got = raw(s, "/v1/chat/completions", {"messages": old, "max_tokens": 1})["usage"]["prompt_tokens"]
equal("integers of a history keep their digits: only the quotes are missing", got, n[0] - 2)
equal("status 0", s.stop(), 0)

special = ["[TOOL_CALLS]", "[ARGS]"]
s = Server(write_script(os.path.join(tmp, "mistral"), ["As ", "[TOOL_", "CALLS]f is", " text. ", "[TOOL_CALLS]", "f", "[ARGS]",
                                                       '{"a": "[ARGS]"}'], MISTRAL, special=special))
want = ("", "As [TOOL_CALLS]f is text.", [("f", '{"a": "[ARGS]"}')])
whole, streamed = chat(s, tools=CHAT_TOOLS)
equal("special tokens are tags, text that spells them is not", whole, want)
equal("also in a stream", streamed, want)
equal("status 0", s.stop(), 0)

# --- a bound on thoughts --------------------------------------------------------------------------------------------------
LOOP = ("{% for m in messages %}{{ m.role[:1] }}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
        "{% endif %}{{ m.content }}{% endfor %}{{ '%s' }}")


def endless(name, opens):
    """Writes a model that thinks "hmm" without an end; behind </think> it says "Done."."""
    added = [("<|end|>", True), ("hmm ", False), ("</think>", False), ("Done.", False), ("<think>", False), ("<|go|>", True)]
    end_id, hmm, close, done, think, go = range(N_BYTES, N_BYTES + len(added))
    ask = "<think>" if opens else "<|go|>"
    return write_model(os.path.join(tmp, name), tokenizer(added), {"chat_template": LOOP.replace("%s'", ask + "'"), "eos_token": "<|end|>"},
                       tensors(N_BYTES + len(added), end_id, {go: think, think: hmm, hmm: hmm, close: done}), end_id, 1024)


for opens in (True, False):
    s = Server(endless(f"endless{opens}", opens))
    name = "a thought that the template opens" if opens else "a thought that the model opens"
    for fields in ({"thinking_token_budget": 7}, {"thinking": {"type": "enabled", "budget_tokens": 7}}, {"reasoning": {"max_tokens": 7}}):
        whole, streamed = chat(s, max_tokens=100, **fields)
        equal(f"{name} ends at its bound ({list(fields)[0]}), and the answer begins", (whole[:2], streamed[:2]),
              (("hmm hmm hmm hmm hmm hmm hmm", "Done."),) * 2)
    r = raw(s, "/v1/messages", {"messages": USER, "max_tokens": 100, "thinking": {"type": "enabled", "budget_tokens": 3}})
    equal("on the route of messages", [b.get("thinking") or b.get("text") for b in r["content"]], ["hmm hmm hmm", "Done."])
    whole, _ = chat(s, max_tokens=100, thinking_token_budget=5, json_schema={"enum": ["A", "B"]})
    equal("and in front of a form", (whole[0], whole[1] in ('"A"', '"B"')), ("hmm hmm hmm hmm hmm", True))
    whole, _ = chat(s, max_tokens=9)
    equal("without a bound it goes on", whole[1], "")
    r = raw(s, "/v1/chat/completions", {"messages": USER, "thinking_token_budget": -2})
    equal("a bad bound is refused by name", r["error"]["param"], "thinking_token_budget")
    s.stop()
end()
