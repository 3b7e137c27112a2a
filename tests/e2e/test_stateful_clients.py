"""The official `openai` and `anthropic` clients: responses, conversations, messages.

They run in .venv/, which `tools/setup.sh --clients` (or --dev) makes; without it this test is skipped."""
import os
import sys

import scripted_model
from serve_client import Server
from tap import PATIENCE, check, end, in_venv, raises, scratch

anthropic, openai = in_venv("anthropic", "openai")

MODEL = "models/demo"
LONG = "Tell me about the little bird who lived in the tall green tree and sang every morning. " * 4


def run_openai(c, model):
    a = c.responses.create(model=model, input=LONG, temperature=0, max_output_tokens=24)
    check("responses.create", a.object == "response" and a.output_text and a.usage.output_tokens > 0, a)
    b = c.responses.create(model=model, input="And then?", previous_response_id=a.id, temperature=0)
    check("previous_response_id", b.previous_response_id == a.id and
          b.usage.input_tokens > a.usage.input_tokens + a.usage.output_tokens, b)
    check("what was said is not computed again", b.usage.input_tokens_details.cached_tokens >= 64, b.usage)
    got = c.responses.retrieve(b.id)
    check("responses.retrieve", got == b, (got, b))
    events = list(c.responses.create(model=model, input="And then?", previous_response_id=a.id, temperature=0, stream=True))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    check("responses.create(stream=True)", text == b.output_text and events[-1].type == "response.completed", events)
    with c.responses.stream(model=model, input="And then?", previous_response_id=a.id, temperature=0) as s:
        for _ in s:
            pass
        final = s.get_final_response()
    check("responses.stream", final.output_text == b.output_text, final)
    items = list(c.responses.input_items.list(b.id))
    check("responses.input_items.list", [i.content[0].text for i in items] == ["And then?"], items)
    check("responses.create(store=False)", raises(openai.NotFoundError, lambda: c.responses.retrieve(
        c.responses.create(model=model, input="x", store=False, max_output_tokens=4).id)) is not None)
    c.responses.delete(b.id)
    e = raises(openai.NotFoundError, lambda: c.responses.retrieve(b.id))
    check("responses.delete", e is not None and e.code == "not_found", e)
    e = raises(openai.BadRequestError, lambda: c.responses.create(model=model, input="x", background=True))
    check("BadRequestError names the field", e is not None and e.param == "background", e)

    v = c.conversations.create(metadata={"topic": "names"},
                               items=[{"type": "message", "role": "user", "content": "My name is Bob."}])
    check("conversations.create", v.object == "conversation" and v.metadata == {"topic": "names"}, v)
    r = c.responses.create(model=model, input="What is my name?", conversation=v.id, temperature=0)
    check("responses.create(conversation=)", r.conversation.id == v.id, r)
    items = list(c.conversations.items.list(v.id, order="asc"))
    check("conversations.items.list", [i.role for i in items] == ["user", "user", "assistant"], items)
    pages = list(c.conversations.items.list(v.id, limit=1))
    check("in pages of one", [i.id for i in pages] == [i.id for i in items[::-1]], pages)
    one = c.conversations.items.retrieve(items[1].id, conversation_id=v.id)
    check("conversations.items.retrieve", one.content[0].text == "What is my name?", one)
    more = c.conversations.items.create(v.id, items=[{"type": "message", "role": "user", "content": "One more."}])
    check("conversations.items.create", len(more.data) == 1 and more.data[0].role == "user", more)
    c.conversations.items.delete(more.data[0].id, conversation_id=v.id)
    check("conversations.items.delete", len(list(c.conversations.items.list(v.id))) == 3)
    u = c.conversations.update(v.id, metadata={"topic": "none"})
    check("conversations.update", u.metadata == {"topic": "none"} and
          c.conversations.retrieve(v.id).metadata == {"topic": "none"}, u)
    gone = c.conversations.delete(v.id)
    check("conversations.delete", gone.deleted and raises(openai.NotFoundError, lambda: c.conversations.retrieve(
        v.id)) is not None, gone)
    e = raises(openai.NotFoundError, lambda: c.with_options(api_key="other").responses.retrieve(a.id))
    check("another key's response is not found", e is not None, e)


def run_anthropic(c, model):
    greedy = {"temperature": 0}
    system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    ask = [{"role": "user", "content": "What is your name?"}]
    m = c.messages.create(model=model, max_tokens=24, system=system, messages=ask, extra_body=greedy)
    check("messages.create", m.role == "assistant" and m.content[0].text and m.stop_reason in ("end_turn", "max_tokens"), m)
    u = m.usage
    check("cache_control makes a cache", u.cache_creation_input_tokens >= 64 and u.cache_read_input_tokens == 0 and
          u.cache_creation.ephemeral_1h_input_tokens == u.cache_creation_input_tokens, u)
    again = c.messages.create(model=model, max_tokens=24, system=system, messages=ask, extra_body=greedy)
    check("that is read", again.usage.cache_read_input_tokens >= 64 and again.content[0].text == m.content[0].text and
          again.usage.input_tokens + again.usage.cache_read_input_tokens + again.usage.cache_creation_input_tokens ==
          u.input_tokens + u.cache_creation_input_tokens, again.usage)
    n = c.messages.count_tokens(model=model, system=system, messages=ask)
    check("messages.count_tokens", n.input_tokens == u.input_tokens + u.cache_creation_input_tokens, (n, u))
    with c.messages.stream(model=model, max_tokens=24, system=system, messages=ask, extra_body=greedy) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    check("messages.stream", text == m.content[0].text == final.content[0].text and
          final.usage.cache_read_input_tokens >= 64 and final.stop_reason == m.stop_reason, final)
    kinds = [e.type for e in c.messages.create(model=model, max_tokens=24, messages=ask, stream=True)]
    check("its events come in order", kinds[:2] == ["message_start", "content_block_start"] and
          kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds)
    word = m.content[0].text.split()[1]
    cut = c.messages.create(model=model, max_tokens=24, system=system, messages=ask, stop_sequences=[word], extra_body=greedy)
    check("stop_sequences", cut.stop_reason == "stop_sequence" and cut.stop_sequence == word and
          word not in cut.content[0].text, cut)
    short = c.messages.create(model=model, max_tokens=1, messages=ask, extra_body={"ignore_eos": True})
    check("max_tokens", short.stop_reason == "max_tokens" and short.usage.output_tokens == 1, short)
    talk = ask + [{"role": "assistant", "content": m.content}, {"role": "user", "content": [{"type": "text", "text": "Go on."}]}]
    check("a history", c.messages.create(model=model, max_tokens=8, messages=talk).content is not None)
    think = c.messages.create(model=model, max_tokens=1100, messages=ask, thinking={"type": "enabled", "budget_tokens": 1024})
    check("thinking is accepted and ignored", [b.type for b in think.content] == ["text"], think)
    begun = c.messages.create(model=model, max_tokens=4, messages=ask + [{"role": "assistant", "content": "I "}])
    check("an answer that the client begins goes on", begun.stop_reason in ("end_turn", "max_tokens"), begun)
    told = c.messages.create(model=model, max_tokens=4, messages=ask, tools=[{"name": "f", "input_schema": {}}])
    check("tools that the template does not know are declared", told.usage.input_tokens > m.usage.input_tokens + 50, told)
    for name, fields in {
            "an image": {"messages": [{"role": "user", "content": [{"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "AAAA"}}]}]},
            "five breakpoints": {"messages": ask, "system": system * 5},
            "a bad ttl": {"messages": ask, "system": [{**system[0], "cache_control": {"type": "ephemeral", "ttl": "2h"}}]},
            "an unknown field": {"messages": ask, "extra_body": {"temprature": 1}}}.items():
        e = raises(anthropic.BadRequestError, lambda f=fields: c.messages.create(model=model, max_tokens=8, **f))
        check(f"refused: {name}", e is not None and e.body["type"] == "error" and e.body["error"]["message"], e)
    e = raises(anthropic.NotFoundError, lambda: c.messages.create(model="other", max_tokens=8, messages=ask))
    check("another model is not found", e is not None and e.body["error"]["type"] == "not_found_error", e)
    bad = c.with_options(api_key="wrong")
    check("a wrong key", raises(anthropic.AuthenticationError, lambda: bad.messages.create(
        model=model, max_tokens=8, messages=ask)) is not None)


def run_tools(o, a, model):
    """The clients' own tool loops: ask, receive a call, send its result, read the answer."""
    function = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    said = "How is the weather?"
    r = o.responses.create(model=model, input=said, tools=[function])
    call = r.output[0]
    check("responses: a function call", call.type == "function_call" and call.arguments == '{"city": "Oslo"}', r)
    back = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    r = o.responses.create(model=model, input=back, previous_response_id=r.id, tools=[function])
    check("and its answer", r.output_text == scripted_model.ANSWER, r)
    with o.responses.stream(model=model, input=said, tools=[function]) as s:
        kinds = [e.type for e in s]
        final = s.get_final_response()
    check("responses.stream of a call", final.output[0].name == "get_weather" and
          "response.function_call_arguments.delta" in kinds, (kinds, final))

    function = {"name": "get_weather", "input_schema": {"type": "object"}}
    talk = [{"role": "user", "content": said}]
    m = a.messages.create(model=model, max_tokens=50, messages=talk, tools=[function])
    use = m.content[0]
    check("messages: a tool_use", m.stop_reason == "tool_use" and use.type == "tool_use" and use.input == {"city": "Oslo"}, m)
    with a.messages.stream(model=model, max_tokens=50, messages=talk, tools=[function]) as s:
        final = s.get_final_message()
    check("messages.stream of one", final.content[0].input == use.input and final.stop_reason == "tool_use", final)
    talk += [{"role": "assistant", "content": m.content},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}]
    m = a.messages.create(model=model, max_tokens=50, messages=talk, tools=[function])
    check("and its answer", m.content[0].text == scripted_model.ANSWER and m.stop_reason == "end_turn", m)

    function = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    r = o.chat.completions.create(model=model, messages=talk[:1], tools=[function])
    call = r.choices[0].message.tool_calls[0]
    check("chat: a tool call", r.choices[0].finish_reason == "tool_calls" and call.function.arguments == '{"city": "Oslo"}', r)
    back = [r.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    r = o.chat.completions.create(model=model, messages=talk[:1] + back, tools=[function])
    check("and its answer", r.choices[0].message.content == scripted_model.ANSWER, r)


def serve_and_run(store, model, name, *runs):
    """`runs` has pairs of a function and the client that it gets."""
    server = Server(model, "--store", store, "--api-key", "sesame,other", "--no-any-model")
    url = f"http://127.0.0.1:{server.port}"
    clients = (openai.OpenAI(base_url=url + "/v1", api_key="sesame", max_retries=0, timeout=PATIENCE),
               anthropic.Anthropic(base_url=url, api_key="sesame", max_retries=0, timeout=PATIENCE))
    for run, *which in runs:
        try:
            run(*[clients[i] for i in which], name)
        except Exception as e:  # noqa: BLE001
            check(f"{run.__name__} ended with {e!r}", False, "".join(server.log))
    check("the server stops with status 0", server.stop() == 0)


tmp = scratch("clients")
serve_and_run(os.path.join(tmp, "s"), MODEL, "demo", (run_openai, 0), (run_anthropic, 1))
serve_and_run(os.path.join(tmp, "t"), scripted_model.make(os.path.join(tmp, "scripted")), "scripted", (run_tools, 0, 1))
end()
