"""Answers of messages in channels, as gpt-oss writes them: on three routes, whole and streamed, with a budget
for thoughts, with strict tools, and as a history."""
import json
import os
import subprocess

from scripted_model import N_BYTES, pair_tensors, tokenizer, write_model
from serve_client import HC, SAVING, Server
from tap import PATIENCE, check, end, equal, scratch

# Like the published one: the name of a called tool stands in front of the channel, a message has one call, and
# thoughts are shown in front of calls until an answer follows.
TEMPLATE = """<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>
{%- set rest = messages %}
{%- if messages[0].role in ('system', 'developer') %}{% set rest = messages[1:] %}{% endif %}
{%- if tools or messages[0].role in ('system', 'developer') %}<|start|>developer<|message|>
{%- if messages[0].role in ('system', 'developer') %}{{ messages[0].content }}{% endif %}
{%- for t in tools or [] %}{{ t.function | tojson }}{% endfor %}<|end|>{% endif %}
{%- set last = namespace(name=none) %}
{%- for m in rest %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- set later = rest[loop.index:] | selectattr('role', 'equalto', 'assistant') | rejectattr('tool_calls') | list %}
{%- if m.content and m.thinking %}{{ raise_exception('both content and thinking') }}{% endif %}
{%- if (m.content or m.thinking) and not later %}<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}
{%- set last.name = m.tool_calls[0].function.name -%}
<|start|>assistant to=functions.{{ last.name }}<|channel|>commentary json<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- elif m.role == 'tool' %}<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
SPECIAL = ["<|return|>", "<|call|>", "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>"]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}
F = {"name": "weather", "description": "d", "parameters": CITY}
CHAT_TOOLS = [{"type": "function", "function": F}]
STRICT = [{"type": "function", "function": {**F, "strict": True}}]
RESPONSE_TOOLS = [{"type": "function", **F}]
MESSAGE_TOOLS = [{"name": F["name"], "description": "d", "input_schema": CITY}]
USER = [{"role": "user", "content": "go"}]
tmp = scratch("harmony")


def model(name, answer, more=()):
    """Writes a model that writes these pieces, each a token, behind `<|start|>assistant`. more: for three
    pieces, that the third follows the other two."""
    own = [p for p in dict.fromkeys([*answer, *(p for three in more for p in three)]) if p not in SPECIAL and len(p) > 1]
    ids = {t: N_BYTES + i for i, t in enumerate([*own, *SPECIAL])}
    chain = [ord("n"), ord("t"), *(ids[p] for p in answer)]
    following = {}
    for three in [*zip(chain, chain[1:], chain[2:]), *([ids[p] if p in ids else ord(p) for p in t] for t in more)]:
        assert following.setdefault(tuple(three[:2]), three[2]) == three[2], "one pair is followed by one token"
    return write_model(os.path.join(tmp, name), tokenizer([(t, True) for t in SPECIAL], [p.encode() for p in own]),
                       {"chat_template": TEMPLATE, "eos_token": "<|return|>"},
                       pair_tensors(N_BYTES + len(ids), ids["<|return|>"], following), [ids["<|return|>"], ids["<|call|>"]], 4096)


def chat(s, **fields):
    """Returns (thought, text, calls) of the whole answer, which the stream repeats."""
    body = {"messages": USER, "temperature": 0, "max_tokens": 200, **fields}
    r = s.post("/v1/chat/completions", body)[2]
    m, parts, calls = r["choices"][0]["message"], {}, {}
    for e in s.streamed("/v1/chat/completions", body):
        for d in (c["delta"] for c in e.get("choices", [])):
            for key in ("reasoning_content", "content"):
                parts[key] = parts.get(key, "") + (d.get(key) or "")
            for t in d.get("tool_calls") or []:
                calls[t["index"]] = (t["function"]["name"], t["function"]["arguments"])
    whole = (m.get("reasoning_content") or "", m["content"] or "",
             [(t["function"]["name"], t["function"]["arguments"]) for t in m.get("tool_calls") or []])
    equal("a stream says what the whole answer says", (parts["reasoning_content"], parts["content"], [*calls.values()]), whole)
    return (*whole, r)


ANALYSIS, FINAL = ["<|channel|>", "analysis", "<|message|>"], ["<|channel|>", "final", "<|message|>"]
NEXT = ["<|end|>", "<|start|>", "assistant"]

# --- thought, a word in front, a call
s = Server(model("calls", [*ANALYSIS, "Look it", " up.", *NEXT, " to=functions.weather", "<|channel|>", "commentary", " json",
                           "<|message|>", '{"city":', ' "Bergen"}', "<|call|>"]), *SAVING, "--store", os.path.join(tmp, "store"))
BERGEN = [("weather", '{"city": "Bergen"}')]
thought, text, calls, r = chat(s, tools=CHAT_TOOLS)
equal("chat: the channels are a thought and a call", (thought, text, calls, r["choices"][0]["finish_reason"]),
      ("Look it up.", "", BERGEN, "tool_calls"))
body = {"max_tokens": 200, "temperature": 0, "messages": USER, "tools": MESSAGE_TOOLS}
r = s.post("/v1/messages", body)[2]
equal("messages: blocks", ([b["type"] for b in r["content"]], r["content"][0]["thinking"], r["content"][-1]["input"], r["stop_reason"]),
      (["thinking", "tool_use"], "Look it up.", {"city": "Bergen"}, "tool_use"))
equal("messages: the stream has the same blocks", [e["content_block"]["type"] for e in s.streamed("/v1/messages", body)
                                                   if e["type"] == "content_block_start"], ["thinking", "tool_use"])
body = {"input": "go", "temperature": 0, "max_output_tokens": 200, "tools": RESPONSE_TOOLS}
r = s.post("/v1/responses", body)[2]
equal("responses: items", [(o["type"], o.get("arguments") or o["content"][0]["text"]) for o in r["output"]],
      [("reasoning", "Look it up."), ("function_call", BERGEN[0][1])])
equal("responses: the stream ends with the same items",
      [o["type"] for o in s.streamed("/v1/responses", body)[-1]["response"]["output"]], ["reasoning", "function_call"])
thought, text, calls, r = chat(s, tools=STRICT)
check("strict, auto: the call follows its schema, and nothing is ignored",
      thought == "Look it up." and [json.loads(a)["city"] in ("Oslo", "Rome") for _, a in calls] == [True] and
      "ignored" not in r["usage"], r)
thought, text, calls, r = chat(s, tools=CHAT_TOOLS, tool_choice="none")
equal("tool_choice none: a call is text", (thought, calls, "Bergen" in text), ("Look it up.", [], True))

# --- the history of a loop: as the model wrote it, and found
asked = s.post("/v1/chat/completions", {"messages": USER, "temperature": 0, "tools": CHAT_TOOLS})[2]["choices"][0]["message"]
told = [*USER, asked, {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "sunny"}]
prompt = s.post("/apply-template", {"messages": told, "tools": CHAT_TOOLS})[2]["prompt"]
tail = ("<|start|>user<|message|>go<|end|><|start|>assistant<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant "
        'to=functions.weather<|channel|>commentary json<|message|>{"city": "Bergen"}<|call|><|start|>functions.weather to=assistant'
        '<|channel|>commentary<|message|>"sunny"<|end|><|start|>assistant')
check("the history has the thought, the call and its result in their channels", prompt.endswith(tail), prompt)
as_messages = [*USER, {"role": "assistant", "content": [
    {"type": "thinking", "thinking": "Look it up.", "signature": "x"},
    {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Bergen"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "sunny"}]}]
as_items = [*USER, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look it up."}]},
            {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Bergen"}'},
            {"type": "function_call_output", "call_id": "a", "output": "sunny"}]
usage = [s.post(path, {"max_tokens": 1, **body})[2]["usage"] for path, body in (
    ("/v1/chat/completions", {"messages": told, "tools": CHAT_TOOLS}),
    ("/v1/messages", {"messages": as_messages, "tools": MESSAGE_TOOLS}))]
r = s.post("/v1/responses", {"max_output_tokens": 16, "input": as_items, "tools": RESPONSE_TOOLS})[2]
read = usage[1]["cache_read_input_tokens"] + usage[1].get("cache_creation_input_tokens", 0) + usage[1]["input_tokens"]
equal("it is the same prompt on all routes", (usage[0]["prompt_tokens"], r["usage"]["input_tokens"]), (read, read))
equal("status 0", s.stop(), 0)

# --- a text in front, a text behind; forms
s = Server(model("talks", ["<|channel|>", "commentary", "<|message|>", "I look.", *NEXT, *FINAL, "It is", " sunny.", "<|return|>"]))
for fields in ({}, {"tools": CHAT_TOOLS}, {"tools": STRICT}):
    thought, text, calls, r = chat(s, **fields)
    equal("commentary and final are text", (thought, text, calls, r["choices"][0]["finish_reason"]),
          ("", "I look.\n\nIt is sunny.", [], "stop"))
equal("status 0", s.stop(), 0)
s = Server(model("says", [*ANALYSIS, "Easy.", *NEXT, *FINAL, "It is", " sunny.", "<|return|>"]))
thought, text, calls, r = chat(s, tools=STRICT)
equal("strict, auto: a model that calls nothing says what it likes", (thought, text, calls, "ignored" in r["usage"]),
      ("Easy.", "It is sunny.", [], False))
thought, text, calls, r = chat(s, tools=STRICT, json_schema={"enum": ["A", "B"]})
equal("a form of the text: a thought, and the form in the final channel", (thought, text in ('"A"', '"B"'), calls), ("Easy.", True, []))
said = [*USER, {"role": "assistant", "content": text, "reasoning_content": "Easy."}, *USER]
prompt = s.post("/apply-template", {"messages": said})[2]["prompt"]
check("an answer's thought is left out of the history, as the template says",
      "Easy" not in prompt and "<|start|>assistant<|channel|>final<|message|>" + text + "<|end|>" in prompt, prompt)
equal("status 0", s.stop(), 0)
with open(os.path.join(tmp, "schema"), "w", encoding="utf-8") as f:
    json.dump({"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": False}, f)
p = subprocess.run([HC, "run", os.path.join(tmp, "says"), "-p", "go", "--json-schema", os.path.join(tmp, "schema"), "-n", "150"],
                   capture_output=True, text=True, timeout=PATIENCE)
thought, _, form = p.stdout.partition("{")
equal("run: a thought stands in front of a form, too", ("Easy." in thought, json.loads("{" + form)), (True, {"n": 7}))

# --- a budget: this model thinks without an end, and begins to think again; its second choice is to answer
s = Server(model("thinks", [*ANALYSIS, "hmm "], [
    ("<|message|>", "hmm ", "hmm "), ("hmm ", "hmm ", "hmm "), ("t", "hmm ", "final"), ("a", "<|channel|>", "final"),
    ("<|channel|>", "final", "<|message|>"), ("final", "<|message|>", "Done."), ("l", "<|message|>", "Done.")]))
for tools in (None, CHAT_TOOLS, STRICT):
    thought, text, calls, r = chat(s, thinking_token_budget=5, **({"tools": tools} if tools else {}))
    equal(f"a budget bounds all thoughts ({'no tools' if not tools else 'strict' if tools is STRICT else 'tools'})",
          (thought, text, calls), ("hmm " * 4 + "hmm", "Done.", []))
r = s.post("/v1/messages", {"messages": USER, "max_tokens": 100, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 3}})[2]
equal("on the route of messages", [b.get("thinking") or b.get("text") for b in r["content"]], ["hmm hmm hmm", "Done."])
thought, text, calls, r = chat(s, thinking_token_budget=4, tools=CHAT_TOOLS, json_schema={"enum": ["A", "B"]})
equal("in front of a form", (thought, text in ('"A"', '"B"'), calls), ("hmm hmm hmm hmm", True, []))
equal("status 0", s.stop(), 0)
answers, restored = [], []
for i in range(2):  # in a process that computes the prompt, and in one that restores it
    s = Server(os.path.join(tmp, "thinks"), *SAVING, "--store", os.path.join(tmp, "store2"))
    r = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "go " * 60}], "temperature": 0.7, "max_tokens": 100,
                                        "thinking_token_budget": 6, "tools": STRICT, "logprobs": True, "top_logprobs": 3})[2]
    answers.append(r["choices"])
    restored.append(r["timings"]["restored_tokens"])
    s.post("/v1/cache/flush", {})
    s.kill()
equal("a budget and a form: a restored answer has the same bits", answers[0], answers[1])
check("it was restored", restored[0] == 0 and restored[1] >= 128, restored)
end()
