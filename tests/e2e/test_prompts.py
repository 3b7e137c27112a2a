"""What of a request reaches the prompt: text that --drop-system drops, the template for tools, members of
messages, and calls and results that a template does not show. Each byte is a token of the scripted model,
so the number of a prompt's tokens says which text it has."""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "tools", "golden")]
import hf_to_gguf  # noqa: E402
from scripted_model import write_script  # noqa: E402
from serve_client import HC, Server  # noqa: E402
from tap import PATIENCE, check, end, equal, scratch  # noqa: E402

tmp = scratch("prompts")
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '\\n' }}"
F = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": F}]
USER = {"role": "user", "content": "u"}


def model(name, template, pieces=("Yes",), special=()):
    return write_script(os.path.join(tmp, name), list(pieces), template, special, context=8192)


def chat(s, messages, **fields):
    status, _, r = s.post("/v1/chat/completions", {"messages": messages, "max_tokens": 40, "temperature": 0, **fields})
    return status, r


def length(s, messages, **fields):
    """Returns the number of bytes of the prompt, or the message of the refusal."""
    status, r = chat(s, messages, **fields)
    return r["usage"]["prompt_tokens"] if status == 200 else r["error"]["message"]


# --- text of the system that is dropped ---------------------------------------------------------------------------------
plain = model("plain", PLAIN)


def system(text):
    return [{"role": "system", "content": text}, USER]


SHOWN = len("<system><user>u\n")
s = Server(plain, "--drop-system", r"(?m)^Now: .*\n|\[id=\w+\](?=[^\w]|$)")
equal("matches are dropped from system messages, everywhere in them",
      length(s, system("Now: 12:30\nBe brief.[id=0af3]\nNow: 9:00\nEnd")), SHOWN + len("Be brief.\nEnd"))
parts = [{"type": "text", "text": "Now: 12:30\n"}, {"type": "text", "text": "Be.[id=1]"}]
equal("a part of which nothing is left goes", length(s, system(parts)), SHOWN + len("Be."))
equal("so does a message", length(s, system("[id=1]")), len("<user>u\n"))
equal("users' messages stay as they are", length(s, [{"role": "user", "content": "[id=1]"}]), len("<user>[id=1]\n"))
one = s.post("/v1/messages/count_tokens", {"system": "Be.[id=1]", "messages": [USER]})[2]["input_tokens"]
equal("on the route of messages, too", one, SHOWN + len("Be."))
r = s.post("/v1/responses", {"instructions": "Be.[id=1]", "input": "u", "max_output_tokens": 1})[2]
equal("and on that of responses", r["usage"]["input_tokens"], SHOWN + len("Be."))
s.stop()


def start_fails(*options):
    p = subprocess.run([HC, "serve", plain, "--port", "0", *options], capture_output=True, timeout=PATIENCE)
    return p.returncode, p.stderr.decode()


for pattern, why in (("(", "regular expression"), ("x*", "empty text")):
    rc, err = start_fails("--drop-system", pattern)
    check(f"the pattern {pattern} is refused at the start", rc == 2 and "--drop-system" in err and why in err, (rc, err))
s = Server(plain, "--drop-system", "(a+)+b|(?:a|aa)+c")
status, r = chat(s, system("a" * 3000))
check("a text that takes a pattern too long is refused, and the option is named",
      status == 400 and "--drop-system" in r["error"]["message"], (status, r))
equal("the server goes on", length(s, system("aab!")), SHOWN + 1)
s.stop()

# --- the template for tools -----------------------------------------------------------------------------------------------
DEFAULT = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '\\n' }}"
WITH_TOOLS = ("{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content or '' }}{% for c in "
              "m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}{{ 'T\\n' }}")
CALL = '<tool_call>{"name": "f", "arguments": {"x": "1"}}</tool_call>'
folder = model("two", DEFAULT, [CALL])
hf_to_gguf.convert(folder, os.path.join(tmp, "two.gguf"),
                   change=[("tokenizer.chat_template.tool_use", hf_to_gguf.STRING, WITH_TOOLS)])
os.makedirs(os.path.join(folder, "additional_chat_templates"))
with open(os.path.join(folder, "additional_chat_templates", "tool_use.jinja"), "w") as f:
    f.write(WITH_TOOLS)
for name in ("two", "two.gguf"):
    s = Server(os.path.join(tmp, name))
    equal(f"{name}: without tools, the default template", length(s, [USER]), 2)
    status, r = chat(s, [USER], tools=TOOLS)
    m = r["choices"][0]["message"] if status == 200 else r
    equal(f"{name}: with tools, the one named tool_use", r["usage"]["prompt_tokens"], len(json.dumps(TOOLS[0]) + "uT\n"))
    equal(f"{name}: its calls are read", m["tool_calls"][0]["function"], {"name": "f", "arguments": '{"x": "1"}'})
    s.stop()

# --- members of messages --------------------------------------------------------------------------------------------------
s = Server(plain)
talk = [{**USER, "name": "bob"}, {"role": "assistant", "content": "a", "annotations": [], "name": "ann", "audio": None},
        {**USER, "cache_control": {"type": "ephemeral"}}]
status, r = chat(s, talk)
equal("members that the prompt does not show are listed", (status, r["usage"].get("ignored")),
      (200, ["messages.name", "messages.cache_control"]))
equal("they change nothing", r["usage"]["prompt_tokens"], len("<user>u<assistant>a<user>u\n"))
r = s.post("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": [
    {"type": "document", "source": {"type": "text", "data": "D"}, "citations": {"enabled": True}}]}],
    "tools": [{"name": "f", "input_schema": {}, "input_examples": [{}], "defer_loading": False}]})[2]
equal("what a message of the other API wants and does not get is listed", r["usage"].get("ignored"),
      ["input_examples", "citations"])
seen = [USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}]}, USER]
r = s.post("/v1/messages/count_tokens", {"system": "x-anthropic-billing-header: cc_version=1;\nBe.", "messages": seen})[2]
equal("a billing line and a thought that only its server can read do not reach the prompt", r["input_tokens"],
      SHOWN + len("Be.<assistant>a<user>u"))
status, r = chat(s, [USER], max_tokens=100000)
room = 8192 - r["usage"]["prompt_tokens"] if status == 200 else r
equal("max_tokens beyond the room becomes the room, which usage says", (status, r["usage"].get("max_tokens")), (200, room))
status, r = chat(s, [USER, {"role": "assistant", "content": "The", "prefix": True}], max_tokens=1)
check("a last message that is a prefix is the beginning of the answer",
      status == 200 and r["usage"]["prompt_tokens"] == len("<user>u\nThe"), r)
status, r = chat(s, [USER, {"role": "assistant", "content": "The", "prefix": True}, USER])
check("one that would is refused by name", status == 400 and "messages[1].prefix" in r["error"]["message"], r)
s.stop()
s = Server(model("named", PLAIN.replace("{{ m.role }}", "{{ m.name or m.role }}")))
status, r = chat(s, [{**USER, "name": "bob"}])
equal("a template that shows names gets them", (r["usage"]["prompt_tokens"], r["usage"].get("ignored")),
      (len("<bob>u\n"), None))
s.stop()

# --- neighbours, and messages of the system that come late ---------------------------------------------------------------
STRICT = ("{% set n = namespace(last='') %}{% for m in messages %}{% if m.role == n.last %}{{ raise_exception('alternate') }}"
          "{% endif %}{% set n.last = m.role %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}"
          "{% endif %}<{{ m.role }}{{ m.name or '' }}>{{ m.content }}{% endfor %}{{ '\\n' }}")
MOVED = ("{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}{% for m in messages if m.role != 'system' %}"
         "<{{ m.role }}>{{ m.content }}{% endfor %}{{ '\\n' }}")
A = {"role": "assistant", "content": "a"}


s = Server(model("strict", STRICT))
equal("two messages of the user, and of the assistant, become one where the template wants it",
      length(s, [USER, USER, A, A, USER]), len("<user>u\n\nu<assistant>a\n\na<user>u\n"))
equal("a system message behind the question is said before it, by the user",
      length(s, [{"role": "system", "content": "s"}, USER, {"role": "system", "content": "late"}, A, USER]),
      len("<system>s<user>late\n\nu<assistant>a<user>u\n"))
equal("a name that both have stays", length(s, [{**USER, "name": "bob"}] * 2), len("<userbob>u\n\nu\n"))
check("one that differs is refused by name", "'name'" in str(length(s, [{**USER, "name": "bob"}, USER])))
s.stop()
s = Server(model("moved", MOVED), "--plan", "kv", "--store", os.path.join(tmp, "moved-store"))
long = [{**USER, "content": "u" * 300}, A, {"role": "system", "content": "L"}]
r = [chat(s, long[:n] + [USER])[1] for n in (2, 3) if s.post("/v1/cache/flush", {})[0] == 200]
check("a late system message that the template would move to the front stays at its place",
      r[1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256, r[1]["usage"])
s.stop()

# --- tools, calls and results as text -------------------------------------------------------------------------------------
GRANITE = ("{% if tools %}Call with <|tool_call|>: {{ tools | tojson }}{% endif %}" + PLAIN)
s = Server(model("granite", GRANITE, ['<|tool_call|>', '[{"name": "f", "arguments": {"x": "1"}}]'], ["<|tool_call|>"]))
asked = length(s, [USER], tools=TOOLS)
status, r = chat(s, [USER], tools=TOOLS)
call = r["choices"][0]["message"]["tool_calls"][0]
talk = [USER, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "R"}]
equal("a call that the template does not show is written as the model writes it, its tag as a token",
      length(s, talk, tools=TOOLS),
      asked + len("<assistant>[" + '{"name": "f", "arguments": {"x": "1"}}' + "]<tool>R") + 1)
m = s.post("/v1/messages", {"max_tokens": 40, "messages": [
    USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"x": "1"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "R", "is_error": True}]}],
    "tools": [{"name": "f", "description": "d", "input_schema": F["parameters"]}], "temperature": 0})[2]
equal("on the route of messages, too; a failed result says so", (
    m["usage"]["input_tokens"] + m["usage"]["cache_read_input_tokens"], m["stop_reason"]),
    (length(s, talk, tools=TOOLS) + len("The tool failed.\n"), "tool_use"))
items = [{"role": "user", "content": "u"}, {"type": "function_call", "call_id": "t", "name": "f", "arguments": '{"x": "1"}'},
         {"type": "function_call_output", "call_id": "t", "output": "R"}]
r = s.post("/v1/responses", {"input": items, "tools": [{"type": "function", **F}], "temperature": 0, "store": False})[2]
equal("and on that of responses", (r["usage"]["input_tokens"], r["output"][0]["type"]),
      (length(s, talk, tools=TOOLS), "function_call"))
s.stop()

s = Server(model("deferred", WITH_TOOLS, [CALL]))
LATER = {"name": "f", "description": "d", "input_schema": F["parameters"], "defer_loading": True}
KNOWN = {"name": "g", "input_schema": {"type": "object"}}


def search(tools, *found):
    blocks = [{"type": "tool_reference", "tool_name": name} for name in found]
    r = s.post("/v1/messages", {"max_tokens": 40, "temperature": 0, "tools": tools, "messages": [
        USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "g", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": blocks}]}]})[2]
    return r["usage"]["input_tokens"] + r["usage"]["cache_read_input_tokens"], r["stop_reason"]


equal("a deferred tool is not declared until a result names it", search([KNOWN, LATER])[0], search([KNOWN])[0])
equal("then it is declared there, and called", search([KNOWN, LATER], "f"),
      (search([KNOWN])[0] + len("This function can be called now:\n" + json.dumps(F) + "\n"), "tool_use"))
check("beside a search that the server would have to run, it is declared at once",
      search([KNOWN, LATER, {"type": "tool_search_tool_bm25_20251119", "name": "s"}])[0] > search([KNOWN])[0] + 50)
s.stop()

s = Server(model("more", WITH_TOOLS.replace("{{ m.content or", "{{ m.role[:1] }}{{ m.content or"), [CALL]))
MORE = {"type": "additional_tools", "role": "developer", "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", **F}]}]}
SAY = {"role": "user", "content": "u"}


def ask(items, **fields):
    r = s.post("/v1/responses", {"input": items, "temperature": 0, "store": False, **fields})[2]
    return r["usage"]["input_tokens"], [(o["type"], o.get("name"), o.get("namespace")) for o in r["output"]]


n = ask([SAY], tools=[{"type": "function", **F}])[0]
equal("tools that stand before the first question are declared as others are, and called by their names",
      ask([MORE, SAY]), (n, [("function_call", "f", "n")]))
OTHER = [{"type": "function", "name": "g", "parameters": {}}]
n = ask([SAY, {"role": "developer", "content": "x"}, SAY], tools=OTHER)[0]
more, items = ask([SAY, MORE, SAY], tools=OTHER)
check("later ones are declared at their place", more > n + len(json.dumps(F)) and items == [("function_call", "f", "n")],
      (n, more, items))
s.stop()

NOTHING = ("{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('role') }}"
           "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '\\n' }}")
s = Server(model("nothing", NOTHING, ['<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>']))
check("the start says how tools are declared", any("declares" in line for line in s.log), s.log)
abilities = s.request("GET", "/v1/models")[2]["data"][0]["abilities"]
equal("so do the model's abilities", (abilities["tools"], abilities["tool_prompt"]), (True, "generic"))
status, r = chat(s, [USER], tools=TOOLS)
check("a model whose template shows no tools is told of them, and calls",
      status == 200 and r["usage"]["prompt_tokens"] > len(json.dumps(F)) + 100 and
      r["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": "1"}'}, r)
call = r["choices"][0]["message"]["tool_calls"][0]
talk = [USER, {"role": "assistant", "content": "I look.", "tool_calls": [call, {**call, "id": "2"}]},
        {"role": "tool", "tool_call_id": "2", "content": "R2"}, {"role": "tool", "tool_call_id": call["id"], "content": "R"}]
written = '<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>'
equal("a loop of calls reaches it as text", length(s, talk),
      len(f"<user>u<assistant>I look.\n{written}\n{written}<user><tool_response>\nR\n</tool_response>\n\n"
          "<tool_response>\nR2\n</tool_response>\n"))
s.stop()
p = subprocess.run([HC, "model", "info", os.path.join(tmp, "nothing"), "--json"], capture_output=True, timeout=PATIENCE)
equal("model info says it", json.loads(p.stdout)["model"]["tools"], "generic")
end()
