"""Writes tests/model/golden/chat.json: chat templates, conversations, and the texts that the
reference Jinja renders from them.

    python3 tools/golden/make_chat.py [--check]

Needs jinja2 (any 3.1).  The environment is the field's: the immutable sandbox with trim_blocks,
lstrip_blocks and loop controls, `tojson` without HTML escapes, `raise_exception`, `strftime_now`
(here of a fixed moment).  The templates below are our own, written in the style of each family; those
of two real models are read from ../shared/tokenizers and only their outputs are stored.

The file:
    templates      name -> source, or null for a model's folder under ../shared/tokenizers
    conversations  name -> variables
    chats          [template, conversation, outcome]
    unit_vars      the variables of units
    units          [template source, further variables, outcome]
An outcome is {"output": text} or {"error": kind, "message": text}; kinds: raised (raise_exception),
runtime (Jinja's own errors: undefined values, the sandbox), python (any other exception), syntax.
"""
import argparse
import copy
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chat_units  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.environ.get("HCACHE_SHARED", os.path.join(ROOT, "..", "shared"))
OUT = os.path.join(ROOT, "tests", "format", "golden", "chat.json")
NOW = datetime.datetime(2026, 3, 7, 9, 5, 2)


class Generation(jinja2.ext.Extension):
    """Accepts the block `generation`, which marks the assistant's words. For rendering it is a call
    block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_support")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def outcome(source, variables):
    try:
        template = environment().from_string(source)
    except (jinja2.TemplateSyntaxError, SyntaxError) as e:
        return {"error": "syntax", "message": str(e)}
    try:
        return {"output": template.render(**copy.deepcopy(variables))}
    except jinja2.TemplateRuntimeError as e:
        return {"error": "runtime", "message": str(e)}
    except jinja2.TemplateError as e:
        return {"error": "raised", "message": str(e)}
    except Exception as e:
        return {"error": "python", "message": f"{type(e).__name__}: {e}"}


def unit_outcome(source, extra):
    """Returns the outcome that is stored. A feature that our interpreter intentionally lacks is
    stored as an error, whatever the reference does."""
    if source in chat_units.UNSUPPORTED:
        return {"error": "unsupported"}
    found = outcome(source, {**chat_units.VARS, **extra})
    assert " at 0x" not in found.get("output", ""), (source, found)
    return found


def product_units():
    """Returns the templates of chat_units.products: one for all expressions of a list that have a value, and for
    each thing that is tried the first two failures and the first with each message."""
    joined, failures = [], {}

    def works(e):
        return "output" in unit_outcome("{{ " + e + " }}", {})

    for expressions in chat_units.products(works):
        good = []
        for name, e in expressions:
            source = "{{ " + e + " }}"
            found = unit_outcome(source, {})
            if "output" in found and "j)" not in found["output"]:  # not a complex number
                good.append(e)
            elif "error" in found:
                of_name = failures.setdefault(name, [])
                if len(of_name) < 2 or all(f[2].get("message") != found.get("message") for f in of_name):
                    of_name.append([source, {}, found])
        source = "{{ " + " ~ '/' ~ ".join(good) + " }}"
        if good:
            joined.append([source, {}, unit_outcome(source, {})])
    return joined + [f for of_name in failures.values() for f in of_name]


def model_template(folder):
    path = os.path.join(SHARED, "tokenizers", folder, "tokenizer_config.json")
    with open(path, encoding="utf-8") as f:
        return json.load(f)["chat_template"]


# --- conversations ----------------------------------------------------------------------------

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city, as «°C» & wind.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "City, e.g. Zürich"},
        "unit": {"type": "string", "enum": ["c", "f"]}}, "required": ["city"]}}}
ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds numbers <a> and <b>.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"},
                   "opts": {"type": "object", "properties": {"round": {"type": "boolean"}}},
                   "list": {"type": "array", "items": {"type": "integer"}}},
                   "required": ["a", "b"]}}}
TOOLS = [WEATHER, ADD]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, id="abc123def"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


def chat(*messages, gen=True, tools=None, **more):
    return {"messages": list(messages), "tools": tools, "add_generation_prompt": gen,
            "bos_token": "<s>", "eos_token": "</s>", **more}


CONVERSATIONS = {
    "one": chat(user("Hello!")),
    "one-no-prompt": chat(user("Hello!"), gen=False),
    "system": chat(system("You are terse."), user("Hi")),
    "multi": chat(user("a"), assistant("b"), user("c"), assistant("d"), user("e")),
    "multi-system": chat(system("Be kind.\n\nAlways."), user("one"), assistant("two"), user("three")),
    "ends-assistant": chat(user("a"), assistant("b"), gen=False),
    "spaces": chat(system("  padded \n"), user(" \t x \n\n"), assistant("\n y \n"), user("z ")),
    "unicode": chat(user("Grüße, 世界 👋🏽 \u200bzwj\u00a0nbsp"), assistant("naïve «ok» \\n \"q\" 'p'"),
                    user("{{ not }} {% a %} {# tag #} <|im_end|>")),
    "empty": chat(user("")),
    "empty-both": chat(system(""), user(""), assistant(""), user("")),
    "no-messages": chat(),
    "wrong-order": chat(user("a"), user("b")),
    "assistant-first": chat(assistant("a"), user("b")),
    "system-late": chat(user("a"), system("late"), user("b")),
    "unknown-role": chat({"role": "narrator", "content": "once"}, user("b")),
    "no-content": chat({"role": "user"}, assistant("x"), user("y")),
    "none-content": chat(user("a"), {"role": "assistant", "content": None}, user("b")),
    "parts": chat(user([{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}])),
    "tools": chat(user("Weather?"), tools=TOOLS),
    "tools-system": chat(system("Use tools."), user("Weather in Rom?"), tools=TOOLS),
    "tool-call": chat(user("Weather in Zürich?"),
                      assistant("", tool_calls=[call("get_weather", {"city": "Zürich", "unit": "c"})]),
                      tool('{"temp": 21.5}', tool_call_id="abc123def"), tools=TOOLS),
    "tool-call-string": chat(user("q"), assistant("", tool_calls=[call("add", '{"a": 1, "b": 2}')]),
                             tool("3", tool_call_id="abc123def"), tools=TOOLS),
    "tool-calls-two": chat(system("s"), user("both"),
                           assistant("I will.", tool_calls=[call("add", {"a": 1, "b": -2.5}),
                                                            call("get_weather", {"city": "Oslo"}, "def456abc")]),
                           tool("-1.5", tool_call_id="abc123def"), tool("rain", tool_call_id="def456abc"),
                           assistant("done"), user("thanks"), tools=TOOLS),
    "tool-call-none": chat(user("q"), assistant(None, tool_calls=[call("add", {"a": 1, "b": 2})]),
                           tool("3", tool_call_id="abc123def"), assistant("It is 3."), user("ok"), tools=TOOLS),
    "tool-result-object": chat(user("q"), assistant("", tool_calls=[call("add", {"a": 1e-7, "b": 1e22})]),
                               tool({"sum": 1e22, "ok": True, "none": None}), tools=TOOLS),
    "tool-short-id": chat(user("q"), assistant("", tool_calls=[call("add", {"a": 1, "b": 2}, "x")]),
                          tool("3", tool_call_id="x"), tools=TOOLS),
    "think": chat(user("q"), assistant("<think>\nhmm\n</think>\n\nanswer"), user("again")),
    "think-last": chat(user("q"), assistant("<think>\nlet me see\n</think>\n\nanswer"), gen=False),
    "think-field": chat(user("q"), assistant("answer", reasoning_content="because\n"), user("r"),
                        assistant("second", reasoning_content="\nwhy"), gen=False),
    "think-tools": chat(user("q"), assistant("<think>\ncall it\n</think>\n\n",
                                             tool_calls=[call("add", {"a": 1, "b": 2})]),
                        tool("3"), assistant("", reasoning_content="now", tool_calls=[call("add", {"a": 3, "b": 4})]),
                        tool("7"), tools=TOOLS),
    "no-think": chat(user("q"), enable_thinking=False),
    "yes-think": chat(user("q"), enable_thinking=True),
    "dated": chat(system("s"), user("q"), date_string="01 Jan 2030"),
    "tools-in-user": chat(system("s"), user("q"), tools=TOOLS, tools_in_user_message=True),
    "tools-in-system": chat(system("s"), user("q"), tools=TOOLS, tools_in_user_message=False),
    "builtin": chat(user("q"), tools=TOOLS, builtin_tools=["brave_search", "code_interpreter"]),
    "documents": chat(user("q"), documents=[{"title": "T1", "text": "body <1>"}, {"title": "T2", "text": "é"}]),
    "long": chat(*[m for i in range(40) for m in (user(f"question {i} " * 3), assistant(f"answer {i}"))], user("end")),
    "odd-names": chat({"role": "user", "content": "x", "name": "items", "keys": "k", "items": ["i"]}),
}


def chats():
    templates = dict(chat_units.TEMPLATES)
    sources = dict(templates)
    for folder in ("qwen3", "llama3"):
        sources[folder] = model_template(folder)
        templates[folder] = None
    out = []
    for name, source in sources.items():
        for conversation, variables in CONVERSATIONS.items():
            out.append([name, conversation, outcome(source, variables)])
    return templates, out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    args = p.parse_args()
    templates, pairs = chats()
    units = [[source, extra, unit_outcome(source, extra)] for source, extra in chat_units.units()]
    units += product_units()
    golden = {"jinja2": jinja2.__version__, "now": list(NOW.timetuple()[:6]), "templates": templates,
              "conversations": CONVERSATIONS, "unit_vars": chat_units.VARS,
              "chats": pairs, "units": units}
    lines = ",\n".join(json.dumps(u, ensure_ascii=False) for u in units)
    chat_lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in pairs)
    head = {k: v for k, v in golden.items() if k not in ("units", "chats")}
    text = (json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "chats": [\n' + chat_lines +
            '\n ],\n "units": [\n' + lines + "\n ]\n}\n")
    assert json.loads(text) == json.loads(json.dumps(golden))
    kinds = [o.get("error", "output") for *_, o in pairs + units]
    print(len(pairs), "chats,", len(units), "units;",
          ", ".join(f"{k} {kinds.count(k)}" for k in sorted(set(kinds))))
    if args.check:
        with open(OUT, encoding="utf-8") as f:
            sys.exit(0 if f.read() == text else f"{OUT} differs")
    with open(OUT, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
