"""The official `openai` client against `hcache serve`: chat, stream and completions calls.

It runs in .venv/, which `tools/setup.sh --clients` makes; without it this test is skipped."""
import os
import sys

from serve_client import MODEL, SAVING, Server
from tap import PATIENCE, check, end, in_venv, raises, scratch

openai, = in_venv("openai")

KEY = {"Authorization": "Bearer sesame"}


def cached(r):
    return r.usage.prompt_tokens_details.cached_tokens


def full_chunks(n):
    return n // 64 * 64


def hit_rate(c, model, messages, n_turns, seed, committed=lambda: None):
    """Makes sampled turns of a chat. Before each turn committed() waits until the state of the
    previous turn is saved. Returns (tokens found, tokens that could be found, total tokens of the
    last turn)."""
    found = could = before = 0
    for turn in range(n_turns):
        committed()
        messages.append({"role": "user", "content": f"And on day {turn}, Lily?"})
        r = c.chat.completions.create(model=model, messages=messages, max_tokens=16, temperature=2, seed=seed + turn)
        found += min(cached(r), full_chunks(before))
        could += full_chunks(before)
        before = r.usage.total_tokens - 1  # the last token of an answer has no state
        messages.append({"role": "assistant", "content": r.choices[0].message.content})
    return found, could, before


def ten_turns(c, model):
    """The temperature is so high that tokenizing an answer's text hardly ever gives its tokens
    again. The server finds the generated tokens all the same."""
    for chat in range(2):
        found, could, _ = hit_rate(c, model, [{"role": "system", "content": f"Tell stories, number {chat}."}], 10,
                                   100 * chat)
        print(f"# chat {chat}: {found} of {could} tokens in full chunks of the turns before were found")
        check("10 sampled turns: every full chunk of the turn before is found", could > 400 and found == could,
              (found, could))


def restarted(start):
    """A chat continues on another server process, which reads the answers' tokens from their file."""
    first = start(*SAVING)
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{first.port}/v1", api_key="sesame", max_retries=0, timeout=PATIENCE)
    model = c.models.list().data[0].id
    messages = [{"role": "system", "content": "Tell long stories."}]
    _, _, before = hit_rate(c, model, messages, 10, 7, lambda: first.post("/v1/cache/flush", {}, KEY))
    check("the server stops with status 0, and saves what it has", first.stop() == 0)
    server = start(*SAVING)
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="sesame", max_retries=0, timeout=PATIENCE)
    messages.append({"role": "user", "content": "And then?"})
    r = c.chat.completions.create(model=model, messages=messages, max_tokens=2)
    check("after a restart every full chunk is found, tokens as they were generated",
          cached(r) >= full_chunks(before) and r.timings["restored_tokens"] >= full_chunks(before), (before, r))
    with open(os.path.join(store, "s", "answers"), "rb") as f:
        check("the file of answers shows no text", b"Lily" not in f.read())
    return server


def run(server):
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="sesame", max_retries=0, timeout=PATIENCE)
    model = c.models.list().data[0].id
    check("models.list, models.retrieve", c.models.retrieve(model).id == model)
    r = c.completions.create(model=model, prompt="Once upon a time", max_tokens=12, temperature=0)
    text = r.choices[0].text
    check("completions.create", text and r.usage.completion_tokens == 12 and r.choices[0].finish_reason == "length", r)
    pieces = [x.choices[0].text for x in c.completions.create(model=model, prompt="Once upon a time", max_tokens=12,
                                                              temperature=0, stream=True)]
    check("completions.create(stream=True)", "".join(pieces) == text, pieces)
    r = c.completions.create(model=model, prompt="Once upon a time", max_tokens=4, temperature=0, logprobs=2)
    check("completions.create(logprobs=2)", len(r.choices[0].logprobs.tokens) == 4, r)

    messages = [{"role": "system", "content": "Tell stories."}, {"role": "user", "content": "Once upon a time"}]
    r = c.chat.completions.create(model=model, messages=messages, max_completion_tokens=10, temperature=0,
                                  logprobs=True, top_logprobs=2)
    text = r.choices[0].message.content
    check("chat.completions.create", text and r.choices[0].message.role == "assistant" and
          len(r.choices[0].logprobs.content) == 10 and r.usage.prompt_tokens_details.cached_tokens >= 0, r)
    chunks = list(c.chat.completions.create(model=model, messages=messages, max_tokens=10, temperature=0, stream=True,
                                            stream_options={"include_usage": True}))
    got = "".join(x.choices[0].delta.content or "" for x in chunks if x.choices)
    check("chat.completions.create(stream=True)", got == text and chunks[0].choices[0].delta.role == "assistant" and
          chunks[-1].usage.completion_tokens == 10 and not chunks[-1].choices, (got, text))
    # the client library treats an answer that is cut off by its length as an error
    word = text.split()[1]
    with c.chat.completions.stream(model=model, messages=messages, max_tokens=10, temperature=0, stop=word) as s:
        final = s.get_final_completion()
    check("chat.completions.stream", final.choices[0].message.content == text[:text.index(word)], final)

    messages.append({"role": "assistant", "content": text})
    for i in range(8):  # the history grows past a chunk, so that it can be restored
        messages.append({"role": "user", "content": "And what happened on the next day, little bird?"})
        r = c.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=1, seed=i)
        messages.append({"role": "assistant", "content": r.choices[0].message.content})
    messages.pop()
    server.post("/v1/cache/flush", {}, KEY)
    r = c.chat.completions.create(model=model, messages=messages, max_tokens=1)
    check("a stateless chat finds its history", r.usage.prompt_tokens_details.cached_tokens >= 64, r)

    ten_turns(c, model)

    e = raises(openai.BadRequestError, lambda: c.chat.completions.create(
        model=model, messages=messages, response_format={"type": "xml"}))
    check("BadRequestError names the field", e is not None and e.param == "response_format", e)
    e = raises(openai.NotFoundError, lambda: c.completions.create(model="none", prompt="x"))
    check("NotFoundError for another model", e is not None and e.code == "model_not_found", e)
    bad = c.with_options(api_key="wrong")
    check("AuthenticationError", raises(openai.AuthenticationError, bad.models.list) is not None)


store = scratch("openai")


def start(*options):
    return Server(MODEL, "--store", os.path.join(store, "s"), "--plain-chat", "--api-key", "sesame",
                  "--no-any-model", *options)


server = start()
try:
    run(server)
except Exception as e:  # noqa: BLE001
    check(repr(e), False, "".join(server.log))
check("the server stops with status 0", server.stop() == 0)
try:
    server = restarted(start)
except Exception as e:  # noqa: BLE001
    check(repr(e), False, "".join(server.log))
check("the server stops with status 0", server.stop() == 0)
end()
