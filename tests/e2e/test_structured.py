"""Answers in a given form on all routes: schemas, grammars, lists, wanted calls, thoughts in front of them."""
import json
import os
import re
import subprocess

from scripted_model import write_script
from serve_client import HC, Server
from tap import PATIENCE, check, end, equal, scratch

QWEN_XML = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}"
            "{% for c in m.tool_calls or [] %}{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}"
            "{% for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\\n' }}"
            "{{ v if v is string else v | tojson }}{{ '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}"
            "{% endfor %}{% endfor %}{{ '\\n' }}")
HERMES = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}"
          "{% for c in m.tool_calls or [] %}{{ '<tool_call>\\n' + c.function | tojson + '\\n</tool_call>' }}"
          "{% endfor %}{% endfor %}{{ '<think>\\n' }}")
MISTRAL = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}"
           "{% for c in m.tool_calls or [] %}{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}"
           "{% endfor %}{% endfor %}{{ '\\n' }}")
GPT_OSS = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ '<|start|>' + m.role }}"
           "{% for c in m.tool_calls or [] %}{{ '<|channel|>commentary to=functions.' + c.function.name + "
           "' <|constrain|>json<|message|>' + c.function.arguments | tojson + '<|call|>' }}{% endfor %}"
           "{{ '<|message|>' + m.content + '<|end|>' if m.content else '' }}{% endfor %}{{ '<|start|>assistant' }}")
GEMMA = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}"
         "{% for c in m.tool_calls or [] %}{{ '<start_function_call>call:' + c.function.name + '{' }}"
         "{% for k, v in c.function.arguments | items %}{{ k + ':' + ('<escape>' + v + '<escape>' if v is string else v | tojson) }}"
         "{% endfor %}{{ '}<end_function_call>' }}{% endfor %}{% endfor %}{{ '\\n' }}")
LFM2 = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}{{ '<|tool_call_start|>[' + c.function.name + '(' }}{% for k, v in c.function.arguments | items %}"
        "{{ k + '=' + v | tojson }}{% endfor %}{{ ')]<|tool_call_end|>' }}{% endfor %}{% endfor %}{{ '\\n' }}")


def calls_as(call):
    """Returns a template that shows a call as this Jinja expression does."""
    return ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
            "{% set name = c.function.name %}{% set args = c.function.arguments %}{{ " + call + " }}{% endfor %}{% endfor %}{{ '\\n' }}")


LLAMA3 = calls_as("""'{"name": "' + name + '", "parameters": ' + args | tojson + '}'""")
DEEPSEEK_TAGS = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]
DEEPSEEK = calls_as("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>' + name + '\\n```json\\n' + args | tojson "
                    "+ '\\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'")
GLM = calls_as("'<tool_call>' + name + '\\n<arg_key>' + (args | first) + '</arg_key>\\n<arg_value>' + args[args | first] + '</arg_value>\\n</tool_call>'")
GRANITE = calls_as("""'<|tool_call|>[{"name": "' + name + '", "arguments": ' + args | tojson + '}]'""")
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}
TOOLS = [("weather", CITY), ("noop", {"type": "object", "properties": {}, "additionalProperties": False})]
CHAT_TOOLS = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in TOOLS]
RESPONSE_TOOLS = [{"type": "function", "name": n, "parameters": p} for n, p in TOOLS]
MESSAGE_TOOLS = [{"name": n, "input_schema": p} for n, p in TOOLS]
USER = [{"role": "user", "content": "go"}]
DOG = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 30}},
       "required": ["name", "age"], "additionalProperties": False}
tmp = scratch("structured")


def post(s, path, **body):
    return s.post(path, {"temperature": 0, **body})


def chat(s, status=200, **body):
    r = post(s, "/v1/chat/completions", messages=USER, **{"max_tokens": 400, **body})
    if r[0] != status:
        check("status", False, r)
    return r[2] if status != 200 else r[2]["choices"][0]


def is_dog(text):
    d = json.loads(text)
    return list(d) == ["name", "age"] and len(d["name"]) <= 8 and 0 <= d["age"] <= 30


# a real model, at temperatures at which it would write anything
s = Server("models/demo")
for t in (0, 1, 5):
    c = chat(s, temperature=t, seed=t, response_format={"type": "json_schema", "json_schema": {"name": "d", "schema": DOG}})
    check(f"chat: a schema holds at temperature {t}", is_dog(c["message"]["content"]) and c["finish_reason"] == "stop", c)
c = chat(s, response_format={"type": "json_object"}, temperature=2, seed=3)
check("json_object is an object, or its beginning", c["message"]["content"].lstrip().startswith("{"), c)
for name, fields, want in (("structured_outputs json", {"structured_outputs": {"json": DOG}}, None),
                           ("json_schema", {"json_schema": DOG}, None), ("guided_json", {"guided_json": DOG}, None),
                           ("a GBNF grammar", {"grammar": 'root ::= "x" [0-9]{2} "y"?'}, "x[0-9]{2}y?"),
                           ("a regular expression", {"structured_outputs": {"regex": "(ab|c){2}"}}, "(ab|c){2}"),
                           ("choices", {"guided_choice": ["left", "right"]}, "left|right")):
    text = chat(s, **fields)["message"]["content"]
    check("chat: " + name, re.fullmatch(want, text) if want else is_dog(text), text)
r = post(s, "/v1/completions", prompt="A dog:", max_tokens=100, json_schema=DOG)
check("completions", is_dog(r[2]["choices"][0]["text"]), r)
r = post(s, "/v1/responses", input="go", max_output_tokens=400, text={"format": {"type": "json_schema", "name": "d", "schema": DOG}})
check("responses", is_dog(r[2]["output"][-1]["content"][0]["text"]), r)
r = post(s, "/v1/messages", messages=USER, max_tokens=400, output_format={"type": "json_schema", "schema": DOG})
check("messages", is_dog(r[2]["content"][-1]["text"]), r)
deltas = s.streamed("/v1/chat/completions", {"messages": USER, "max_tokens": 200, "temperature": 0, "json_schema": DOG})
check("a stream", is_dog("".join(d["choices"][0]["delta"].get("content") or "" for d in deltas if d["choices"])), deltas)
r = chat(s, status=400, json_schema={"type": "number", "multipleOf": 1.2345})
equal("what cannot be enforced is refused by name", (r["error"]["param"], "multipleOf" in r["error"]["message"]), ("json_schema", True))
loose = {"type": "json_schema", "json_schema": {"name": "n", "strict": False, "schema": {
    "type": "object", "properties": {"a": {"const": 3, "multipleOf": 1.2345}}, "required": ["a"], "additionalProperties": False}}}
r = post(s, "/v1/chat/completions", messages=USER, max_tokens=40, response_format=loose)[2]
equal("strict false: it is left out and named", (json.loads(r["choices"][0]["message"]["content"]), r["usage"]["unenforced"]),
      ({"a": 3}, "multipleOf"))
c = chat(s, max_tokens=30, close=True, response_format={"type": "json_object"}, seed=2)
check("with close it is whole", c["finish_reason"] == "stop" and
      isinstance(json.loads(c["message"]["content"]), dict), c)
c = chat(s, json_schema={"type": "string", "minLength": 190, "maxLength": 4000}, temperature=1, max_tokens=100)
equal("without tokens left it is the beginning of the form", (c["message"]["content"][0], c["finish_reason"]), ('"', "length"))
c = chat(s, json_schema=DOG, min_tokens=390)
check("a complete form ends, whatever the least number of tokens", is_dog(c["message"]["content"]), c)
r = chat(s, status=400, grammar='root ::= root "a" | "b"')
check("left recursion is refused by name", "left recursion" in r["error"]["message"], r)
equal("status 0", s.stop(), 0)


def calls_of(c):
    return [(k["function"]["name"], json.loads(k["function"]["arguments"])) for k in c["message"].get("tool_calls") or []]


def is_weather(call):
    return call[0] == "weather" and call[1]["city"] in ("Oslo", "Rome") and 1 <= call[1]["days"] <= 9


TRIP = {"type": "object", "properties": {"to": {"type": "string"}, "by": {"enum": ["car", "train"]}, "stops": {
    "type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3}, "nights": {"type": "integer", "minimum": 3},
    "hotel": {"type": "object", "properties": {"sea": {"type": "boolean"}, "stars": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
              "required": ["sea", "stars"]}}, "required": ["by", "stops", "hotel"]}


def is_trip(a):
    return (a["by"] in ("car", "train") and 1 <= len(a["stops"]) <= 3 and all(len(s) <= 5 for s in a["stops"]) and a.get("nights", 3) >= 3
            and isinstance(a["hotel"]["sea"], bool) and (a["hotel"]["stars"] is None or isinstance(a["hotel"]["stars"], int)))


# wanted calls, in ten syntaxes; the model itself would answer "No."
CHANNELS = ["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"]
for name, template, special in (("qwen-xml", QWEN_XML, []), ("mistral", MISTRAL, ["[TOOL_CALLS]", "[ARGS]"]), ("hermes", HERMES, []),
                                ("llama-3", LLAMA3, []), ("deepseek", DEEPSEEK, DEEPSEEK_TAGS), ("glm", GLM, []),
                                ("granite", GRANITE, ["<|tool_call|>"]), ("gpt-oss", GPT_OSS, CHANNELS), ("lfm2", LFM2, ["<|tool_call_start|>", "<|tool_call_end|>"]),
                                ("gemma", GEMMA, ["<start_function_call>", "<end_function_call>", "<escape>"])):
    s = Server(write_script(os.path.join(tmp, name), ["No", ".", "</think>"] if name == "hermes" else ["No", "."], template,
                            special=special))
    shut = {"close": name == "gpt-oss"}  # else this model thinks without an end
    one = {"tools": CHAT_TOOLS, "parallel_tool_calls": False, **shut}
    c = chat(s, tool_choice={"type": "function", "function": {"name": "weather"}}, **one)
    check(name + ": the named tool is called", len(calls_of(c)) == 1 and is_weather(calls_of(c)[0]), c)
    if name in ("gpt-oss", "lfm2", "gemma"):
        trip = [{"type": "function", "function": {"name": "trip", "parameters": TRIP}}]
        c = chat(s, tools=trip, tool_choice="required", parallel_tool_calls=False, close=True)
        check(name + ": nested arguments follow their schema", [is_trip(a) for _, a in calls_of(c)] == [True], c)
        check(name + ": a form of the text", is_dog(chat(s, json_schema=DOG, close=True)["message"]["content"]))
    equal(name + ": and it is the reason of the end", c["finish_reason"], "tool_calls")
    c = chat(s, tool_choice="required", **one)
    check(name + ": required: some tool is called, once", [k[0] in ("weather", "noop") for k in calls_of(c)] == [True], c)
    r = post(s, "/v1/messages", messages=USER, max_tokens=400, tools=MESSAGE_TOOLS, **shut,
             tool_choice={"type": "tool", "name": "weather"})[2]
    equal(name + ": a named tool is called once", [b["type"] for b in r["content"]].count("tool_use"), 1)
    b = r["content"][-1]
    check(name + ": messages", b["type"] == "tool_use" and is_weather((b["name"], b["input"])), r)
    r = post(s, "/v1/responses", input="go", max_output_tokens=400, tools=RESPONSE_TOOLS, parallel_tool_calls=False, **shut,
             tool_choice={"type": "function", "name": "weather"})[2]
    o = r["output"][-1]
    check(name + ": responses", o["type"] == "function_call" and is_weather((o["name"], json.loads(o["arguments"]))), r)
    r = chat(s, status=400, tool_choice={"type": "function", "function": {"name": "nobody"}}, **one)
    check(name + ": a tool that is not offered is refused", "nobody" in r["error"]["message"], r)
    if name == "hermes":  # the template opens a thought; the form begins behind it
        c = chat(s, json_schema=DOG)
        equal("a thought stands in front of a form", c["message"].get("reasoning_content"), "No.")
        check("and the form behind it", is_dog(c["message"]["content"]), c)
        with open(os.path.join(tmp, "dog"), "w") as f:
            json.dump(DOG, f)
        p = subprocess.run([HC, "run", os.path.join(tmp, name), "-p", "go", "--json-schema", f.name], capture_output=True, text=True,
                           timeout=PATIENCE)
        thought, _, form = p.stdout.partition("</think>")
        check("also in run", thought == "No." and is_dog(form), p)
    equal("status 0", s.stop(), 0)

s = Server(write_script(os.path.join(tmp, "half"), ["hm", b"\xc3", "</think>", "Yes"], HERMES, special=["</think>"]))
c = chat(s)
equal("half a character in front of a special token stays there", (c["message"].get("reasoning_content"), c["message"]["content"]),
      ("hm\ufffd", "Yes"))
equal("status 0", s.stop(), 0)

# Calls that may be made. This model talks, then calls with arguments that are no good.
PLAIN = HERMES.replace("{{ '<think>\\n' }}", "{{ '\\n' }}")
WRONG = ['{"name": "weather", "arguments": ', '{"city": "Paris"', ', "days": 77}}', "\n</tool_call>"]
STRICT = [{**t, "function": {**t["function"], "strict": True}} for t in CHAT_TOOLS]
ANY_DOG = {"response_format": {"type": "json_schema", "json_schema": {"name": "d", "schema": DOG}}}


def only(mode, *names):
    tools = [{"type": "function", "function": {"name": n}} for n in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


s = Server(write_script(os.path.join(tmp, "talks"), ["I look.", "\n<tool_call>\n", *WRONG], PLAIN))
c = chat(s, tools=CHAT_TOOLS)
equal("a tool that is not strict gets what the model writes", calls_of(c), [("weather", {"city": "Paris", "days": 77})])
c = chat(s, tools=STRICT, parallel_tool_calls=False)
check("a strict tool, auto: the model says what it likes, and its call follows the schema",
      c["message"]["content"] == "I look." and len(calls_of(c)) == 1 and is_weather(calls_of(c)[0]), c)
c = chat(s, tools=CHAT_TOOLS, tool_choice=only("auto", "noop"))
check("allowed_tools: a call of another tool is text", not calls_of(c) and "weather" in c["message"]["content"], c)
c = chat(s, tools=CHAT_TOOLS, tool_choice=only("required", "noop"), parallel_tool_calls=False)
equal("allowed_tools, required: an allowed one is called", calls_of(c), [("noop", {})])
r = post(s, "/v1/responses", input="go", max_output_tokens=400, tools=RESPONSE_TOOLS, parallel_tool_calls=False,
         tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "noop"}]},
         text={"format": {"type": "json_schema", "name": "d", "schema": DOG}})[2]
equal("a wanted call is the answer, whatever form its text should have; the response says both",
      (r["output"][-1]["name"], r["tool_choice"]["mode"], r["text"]["format"]["name"]), ("noop", "required", "d"))
equal("status 0", s.stop(), 0)
s = Server(write_script(os.path.join(tmp, "calls"), ["<tool_call>\n", *WRONG], PLAIN))
c = chat(s, tools=CHAT_TOOLS, **ANY_DOG)
equal("a schema of the text does not keep a model from calling a tool", calls_of(c), [("weather", {"city": "Paris", "days": 77})])
c = chat(s, tools=STRICT, parallel_tool_calls=False, **ANY_DOG)
check("a strict tool's call follows its schema there, too", len(calls_of(c)) == 1 and is_weather(calls_of(c)[0]), c)
c = chat(s, tools=CHAT_TOOLS, tool_choice="none", **ANY_DOG)
check("tool_choice none: the text has its form", is_dog(c["message"]["content"]), c)
equal("status 0", s.stop(), 0)
PHONE = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}"}}
s = Server(write_script(os.path.join(tmp, "dials"), ["<tool_call>\n", '{"name": "dial", "arguments": ', '{"input": "none"}}'], PLAIN))
r = post(s, "/v1/responses", input="go", max_output_tokens=400, tools=[PHONE], parallel_tool_calls=False)[2]
check("a custom tool's text matches its regular expression", re.fullmatch("[0-9]{3}", r["output"][-1]["input"]), r)
LARK = {**PHONE, "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}
r = post(s, "/v1/responses", input="go", max_output_tokens=400, tools=[LARK])[2]
check("another grammar is not enforced, and named", "tools.format" in r["usage"]["ignored"], r)
equal("status 0", s.stop(), 0)
s = Server(write_script(os.path.join(tmp, "undeclared"), ["{"], "{% for m in messages %}{{ m.content }}{% endfor %}{{ '\\n' }}"))
c = chat(s, tools=CHAT_TOOLS, tool_choice="required", parallel_tool_calls=False)
check("required: a template without tools calls, too", len(calls_of(c)) == 1 and calls_of(c)[0][0] in ("weather", "noop"), c)
c = chat(s, tools=CHAT_TOOLS, **ANY_DOG)
check("and a model that calls nothing answers in the form", is_dog(c["message"]["content"]), c)
equal("status 0", s.stop(), 0)
end()
