"""Ollama's routes, judged by the official `ollama` client, langchain-ollama and litellm's ollama_chat.

It runs in .venv/, which `tools/setup.sh --clients` makes; without it this test is skipped."""
import http.client
import json
import os
import sys
import tempfile

from scripted_model import ANSWER, HELLO, make
from serve_client import MODEL, Server
from tap import check, end, in_venv, raises

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
ollama, langchain, messages, litellm = in_venv("ollama", "langchain_ollama", "langchain_core.messages", "litellm")

DEMO = "models/demo"
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
ASK = [{"role": "user", "content": "Who is Lily?"}]
GREEDY = {"temperature": 0, "num_predict": 12}


def about_the_model(c, server):
    name = c.list().models[0].model
    check("tags names the model, with size and digest", name == "demo" and c.list().models[0].size > 1e6
          and len(c.list().models[0].digest) == 64, c.list())
    shown = c.show(name)
    check("show has the template, the counts and the abilities", "message" in shown.template
          and shown.modelinfo["general.parameter_count"] > 1e6
          and shown.modelinfo["general.architecture"] == shown.details.family and "completion" in shown.capabilities, shown)
    check("ps: the model is loaded", c.ps().models[0].model == name and c.ps().models[0].context_length > 100, c.ps())
    check("version is a version", server.request("GET", "/api/version")[2]["version"].count(".") == 2)
    check("an unknown model is 404 in Ollama's form", "error" in server.post("/api/show", {"model": "x" * 300, "n": 1})[2])


def chats(c, server):
    whole = c.chat("demo", ASK, options=GREEDY)
    pieces = list(c.chat("demo", ASK, options=GREEDY, stream=True))
    openai = server.post("/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": 12})[2]
    check("chat: the text of a greedy answer is that of /v1/chat/completions",
          whole.message.content == openai["choices"][0]["message"]["content"] and whole.message.content, (whole, openai))
    check("chat: a stream has the same text in pieces", "".join(p.message.content for p in pieces) == whole.message.content
          and len(pieces) > 1, pieces)
    check("chat: the last line has the reason, the counts and the times", pieces[-1].done and not pieces[0].done
          and pieces[-1].done_reason == "length" and pieces[-1].eval_count == 12
          and pieces[-1].prompt_eval_count == openai["usage"]["prompt_tokens"] and pieces[-1].total_duration > 0
          and pieces[-1].eval_duration > 0, pieces[-1])
    same = [c.chat("demo", ASK, options={"seed": 7, "num_predict": 8}).message.content for _ in range(2)]
    other = c.chat("demo", ASK, options={"seed": 8, "num_predict": 8, "temperature": 2.0}).message.content
    check("options: seed and temperature decide", same[0] == same[1] != other, (same, other))
    stopped = c.chat("demo", ASK, options={**GREEDY, "stop": [whole.message.content[6:9]]})
    check("options: stop cuts the text", stopped.message.content == whole.message.content[:6]
          and stopped.done_reason == "stop", stopped)
    lp = c.chat("demo", ASK, options=GREEDY, logprobs=True, top_logprobs=2)
    check("logprobs: one entry a token, with the likeliest", len(lp.logprobs) == 12 and len(lp.logprobs[0].top_logprobs) == 2
          and lp.logprobs[0].token == lp.logprobs[0].top_logprobs[0].token, lp.logprobs)
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
              "additionalProperties": False}
    shaped = json.loads(c.chat("demo", ASK, format=schema, options={"num_predict": 64, "seed": 1}).message.content)
    check("format: the answer follows a schema", shaped["n"] in (1, 2), shaped)
    ends = {"enum": ["a\u0085b\u2028c\u2029d"]}  # which the client's reader of lines takes for ends of lines
    pieces = list(c.chat("demo", ASK, format=ends, stream=True, options={"num_predict": 64}))
    check("format: a stream may have every character", json.loads("".join(p.message.content for p in pieces)) == ends["enum"][0], pieces)
    check("format: \"json\" gives an object", c.chat("demo", ASK, format="json", options=GREEDY).message.content[0] == "{")
    for field, value in (("format", "xml"), ("options", {"mirostat": 2}), ("options", {"tempreature": 1}), ("think", True)):
        e = raises(ollama.ResponseError, lambda: c._request_raw("POST", "/api/chat", json={"messages": ASK, field: value}))
        check(f"{field} {value} is refused by name", e and e.status_code == 400
              and (field if field != "options" else list(value)[0]) in e.error, e)
    e = raises(ollama.ResponseError, lambda: c.chat("demo", [{**ASK[0], "images": ["aGVsbG8="]}]))
    check("images are refused by name", e and e.status_code == 400 and "images" in e.error, e)
    check("options that only Ollama's own engine has are listed as ignored",
          server.post("/api/chat", {"model": "demo", "messages": ASK, "stream": False, "keep_alive": "5m",
                                    "options": {"num_ctx": 4096, **GREEDY}})[2]["ignored"] == ["keep_alive", "num_ctx"])


def texts(c, server):
    text = c.generate("demo", "Once upon a time", raw=True, options=GREEDY)
    openai = server.complete("Once upon a time", max_tokens=12)
    check("generate, raw: continues the text", text.response == openai["choices"][0]["text"] and text.response, (text, openai))
    asked = c.generate("demo", ASK[0]["content"], system="Be brief.", options=GREEDY)
    chat = c.chat("demo", [{"role": "system", "content": "Be brief."}, *ASK], options=GREEDY)
    check("generate: prompt and system are a chat's messages", asked.response == chat.message.content, (asked, chat))
    pieces = list(c.generate("demo", ASK[0]["content"], stream=True, options=GREEDY))
    check("generate: a stream by default, with `response`", "".join(p.response for p in pieces) != "" and pieces[-1].done, pieces)
    check("generate without a prompt loads", c.generate("demo").done_reason == "load"
          and c.generate("demo", keep_alive=0).done_reason == "unload")
    long = c.generate("demo", "Once upon a time", raw=True, options={"temperature": 1, "seed": 3, "num_predict": -1})
    check("without a bound a text goes on beyond 16 tokens", long.eval_count > 16, long.eval_count)
    check("a suffix is refused", raises(ollama.ResponseError, lambda: c.generate("demo", "a", suffix="b")) is not None)


def lines(server):
    h = http.client.HTTPConnection("127.0.0.1", server.port)
    h.request("POST", "/api/chat", json.dumps({"model": "demo", "messages": ASK, "options": GREEDY}))
    r = h.getresponse()
    got = r.read().decode().splitlines()
    check("a stream is lines of JSON, each an object of the model", r.headers["Content-Type"] == "application/x-ndjson"
          and all(json.loads(x)["model"] == "demo" for x in got) and len(got) > 1, (r.headers, got[:3]))


def tools():
    with tempfile.TemporaryDirectory() as d:
        make(os.path.join(d, "scripted"))
        server = Server(os.path.join(d, "scripted"))
        c = ollama.Client(f"http://127.0.0.1:{server.port}")
        r = c.chat("any", [{"role": "user", "content": "Weather in Oslo?"}], tools=[TOOL])
        call = r.message.tool_calls[0].function
        check("a tool is called, its arguments are an object", call.name == "get_weather" and call.arguments == {"city": "Oslo"}, r)
        done = c.chat("any", [{"role": "user", "content": "Weather in Oslo?"}, r.message,
                              {"role": "tool", "tool_name": "get_weather", "content": "sunny"}], tools=[TOOL])
        check("its result comes back without an id", done.message.content == ANSWER, done)
        streamed = [x for x in c.chat("any", [{"role": "user", "content": "Weather?"}], tools=[TOOL], stream=True)
                    if x.message.tool_calls]
        check("a stream has the whole call in one line", len(streamed) == 1
              and streamed[0].message.tool_calls[0].function.arguments == {"city": "Oslo"}, streamed)
        llm = langchain.ChatOllama(model="any", base_url=f"http://127.0.0.1:{server.port}", temperature=0)
        r = llm.bind_tools([TOOL]).invoke("Weather in Oslo?")
        check("langchain-ollama: a call", r.tool_calls[0]["name"] == "get_weather"
              and r.tool_calls[0]["args"] == {"city": "Oslo"}, r)
        check("langchain-ollama: a text and a stream", llm.invoke([messages.HumanMessage("Hello")]).content == HELLO
              and "".join(x.content for x in llm.stream("Hello")) == HELLO)
        base = {"model": "ollama_chat/any", "api_base": f"http://127.0.0.1:{server.port}"}
        r = litellm.completion(messages=[{"role": "user", "content": "Weather in Oslo?"}], tools=[TOOL], **base)
        check("litellm, ollama_chat: a call", json.loads(r.choices[0].message.tool_calls[0].function.arguments)
              == {"city": "Oslo"}, r)
        parts = litellm.completion(messages=[{"role": "user", "content": "Hello"}], stream=True, **base)
        check("litellm, ollama_chat: a stream", "".join(p.choices[0].delta.content or "" for p in parts) == HELLO)
        r = litellm.completion(model="ollama/any", messages=[{"role": "user", "content": "Hello"}], api_base=base["api_base"])
        check("litellm, ollama: generate", r.choices[0].message.content == HELLO, r)
        check("the server stops with status 0", server.stop() == 0)


server = Server(DEMO)
client = ollama.Client(f"http://127.0.0.1:{server.port}")
about_the_model(client, server)
chats(client, server)
texts(client, server)
lines(server)
check("the server stops with status 0", server.stop() == 0)
server = Server(MODEL)
r = ollama.Client(f"http://127.0.0.1:{server.port}").generate("any", "Once upon", options=GREEDY)
check("a model without a template continues the text", r.response == server.complete("Once upon", max_tokens=12)
      ["choices"][0]["text"], r)
server.stop()
tools()
end()
