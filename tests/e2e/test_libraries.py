"""Libraries of agents against the server: each asks, calls a tool, and gets an answer of a type, in the ways
that it chooses itself. They live in an environment of their own (tools/setup.sh --libraries), since some of
them want older releases of the official clients. All run in one process, because importing takes longest."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Literal

from tap import PATIENCE, check, end, skip

PYTHON = os.path.abspath(".libraries/bin/python")
NAMES = ["litellm", "litellm_proxy", "langchain_openai", "langchain_anthropic", "llama_index", "smolagents", "instructor",
         "pydantic_ai", "agents", "llm"]
ASK, TOLD = "What is six times seven?", "It is 42."


def each(url):
    """Returns the checks: functions that import a library and use it as its users do."""
    from pydantic import BaseModel, Field
    v1, key = url + "/v1", "none"

    class Trip(BaseModel, extra="forbid"):  # or a random model adds members until its tokens end
        """A trip."""
        city: Literal["Oslo", "Rome"]
        days: int = Field(ge=1, le=9)

    def multiply(a: int, b: int) -> int:
        """Multiplies two numbers.

        Args:
            a: the first
            b: the second
        """
        return a * b

    tool = {"type": "function", "function": {"name": "multiply", "description": "Multiplies two numbers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}

    def litellm(base=v1, api_key=key):
        import litellm as lib
        where = {"model": "openai/default", "api_base": base, "api_key": api_key}
        said = [{"role": "user", "content": ASK}]
        m = lib.completion(messages=said, tools=[tool], **where).choices[0].message
        args = json.loads(m.tool_calls[0].function.arguments)
        said += [m.model_dump(), {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": str(multiply(**args))}]
        assert lib.completion(messages=said, tools=[tool], **where).choices[0].message.content == TOLD
        for form in (Trip, {"type": "json_object"}):
            r = lib.completion(messages=said[:1], response_format=form, **where)
            assert form is not Trip or Trip.model_validate_json(r.choices[0].message.content), r
            json.loads(r.choices[0].message.content)
        assert "".join(c.choices[0].delta.content or "" for c in lib.completion(messages=said[:1], stream=True, **where)).strip()

    def litellm_proxy():
        """LiteLLM's proxy stands between, and speaks Anthropic's form to its client."""
        import time
        import urllib.request
        import fastapi  # noqa: F401  litellm[proxy]
        import ports
        port = ports.free_port()
        p = subprocess.Popen([os.path.join(os.path.dirname(PYTHON), "litellm"), "--model", "openai/default", "--api_base", v1,
                              "--port", str(port), "--host", "127.0.0.1"],
                             env={**os.environ, "OPENAI_API_KEY": key, "LITELLM_MASTER_KEY": "sk-own"},
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            body = {"model": "openai/default", "max_tokens": 100, "messages": [{"role": "user", "content": ASK}],
                    "tools": [{"name": "multiply", "description": "m", "input_schema": tool["function"]["parameters"]}]}
            for _ in range(PATIENCE * 2):
                try:
                    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/messages", json.dumps(body).encode(),
                                               {"Content-Type": "application/json", "x-api-key": "sk-own"})
                    got = json.load(urllib.request.urlopen(r, timeout=PATIENCE))
                    break
                except urllib.error.HTTPError as e:
                    raise RuntimeError(e.read()[:300]) from e
                except OSError:
                    if p.poll() is not None:
                        raise RuntimeError(f"the proxy ended with status {p.returncode}") from None
                    time.sleep(0.5)
            assert [(b["name"], b["input"]) for b in got["content"] if b["type"] == "tool_use"] == [("multiply", {"a": 6, "b": 7})], got
            litellm(f"http://127.0.0.1:{port}/v1", "sk-own")
        finally:
            p.terminate()
            p.wait()

    def chain(model):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool as as_tool
        bound, said = model.bind_tools([as_tool(multiply)]), [HumanMessage(ASK)]
        said.append(bound.invoke(said))
        call = said[-1].tool_calls[0]
        said.append(ToolMessage(str(multiply(**call["args"])), tool_call_id=call["id"]))
        text = bound.invoke(said).content
        assert (text if isinstance(text, str) else text[-1]["text"]) == TOLD, text
        assert "".join(str(c.content) for c in model.stream(ASK))

    def langchain_openai():
        from langchain_openai import ChatOpenAI as Chat
        model = Chat(model="default", base_url=v1, api_key=key)
        chain(model)
        chain(Chat(model="default", base_url=v1, api_key=key, use_responses_api=True))
        for how in ("json_schema", "function_calling", "json_mode"):
            got = model.with_structured_output(Trip if how != "json_mode" else None, method=how).invoke(ASK)
            assert isinstance(got, Trip if how != "json_mode" else dict), (how, got)

    def langchain_anthropic():
        from langchain_anthropic import ChatAnthropic as Chat
        model = Chat(model="default", base_url=url, api_key=key, max_tokens=200)
        chain(model)
        assert isinstance(model.with_structured_output(Trip).invoke(ASK), Trip)

    def llama_index():
        import asyncio
        from llama_index.core.agent.workflow import FunctionAgent
        from llama_index.llms.openai_like import OpenAILike
        model = OpenAILike(model="default", api_base=v1, api_key=key, is_chat_model=True, is_function_calling_model=True)

        async def go():
            return str(await FunctionAgent(tools=[multiply], llm=model).run(ASK))
        assert asyncio.run(go()) == TOLD
        assert isinstance(model.as_structured_llm(Trip).complete(ASK).raw, Trip)
        assert "".join(c.delta or "" for c in model.stream_complete(ASK))

    def smolagents():
        from smolagents import ChatMessage, OpenAIServerModel, tool as as_tool
        model = OpenAIServerModel(model_id="default", api_base=v1, api_key=key)
        r = model.generate([ChatMessage(role="user", content=ASK)], tools_to_call_from=[as_tool(multiply)])
        assert r.tool_calls[0].function.name == "multiply", r  # it asks with tool_choice required

    def instructor():
        import instructor as lib
        import openai
        for mode in ("TOOLS", "TOOLS_STRICT", "JSON", "MD_JSON", "JSON_SCHEMA"):
            c = lib.from_openai(openai.OpenAI(base_url=v1, api_key=key), mode=getattr(lib.Mode, mode))
            got = c.chat.completions.create(model="default", response_model=Trip, max_retries=1,
                                            messages=[{"role": "user", "content": ASK + (" LOOK FOR TOOLS" if mode == "MD_JSON" else "")}])
            assert isinstance(got, Trip), (mode, got)

    def pydantic_ai():
        from pydantic_ai import Agent, NativeOutput, PromptedOutput
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider
        for kind in (OpenAIChatModel, OpenAIResponsesModel):
            model = kind("default", provider=OpenAIProvider(base_url=v1, api_key=key))
            assert Agent(model, tools=[multiply]).run_sync(ASK).output == TOLD
            for form in (Trip, NativeOutput(Trip), PromptedOutput(Trip)):
                assert isinstance(Agent(model, output_type=form).run_sync(ASK).output, Trip)

    def agents():
        import agents as lib
        import openai
        lib.set_tracing_disabled(True)
        client = openai.AsyncOpenAI(base_url=v1, api_key=key)
        for kind in (lib.OpenAIChatCompletionsModel, lib.OpenAIResponsesModel):
            model = kind("default", openai_client=client)
            agent = lib.Agent(name="a", model=model, tools=[lib.function_tool(multiply)])
            assert lib.Runner.run_sync(agent, ASK).final_output == TOLD
            agent = lib.Agent(name="a", model=model, output_type=Trip)
            assert isinstance(lib.Runner.run_sync(agent, ASK).final_output, Trip)

    def llm():
        import llm as lib  # noqa: F401
        home = tempfile.mkdtemp(prefix="hcache-llm.")
        with open(os.path.join(home, "extra-openai-models.yaml"), "w", encoding="utf-8") as f:
            f.write(f"- {{model_id: local, model_name: default, api_base: '{v1}', supports_tools: true, supports_schema: true}}\n")
        with open(os.path.join(home, "tools.py"), "w", encoding="utf-8") as f:
            f.write("def multiply(a: int, b: int) -> int:\n    return a * b\n")
        schema = json.dumps(Trip.model_json_schema())
        run = [os.path.join(os.path.dirname(PYTHON), "llm"), "-m", "local", "--key", key]
        for more, good in (([], lambda t: t != ""), (["--no-stream"], lambda t: t != ""),
                           (["--schema", schema], Trip.model_validate_json),
                           (["--functions", os.path.join(home, "tools.py")], lambda t: t == TOLD)):
            p = subprocess.run([*run, *more, ASK], env={**os.environ, "LLM_USER_PATH": home}, capture_output=True, timeout=PATIENCE)
            assert p.returncode == 0 and good(p.stdout.decode().strip()), (more, p.stdout[-300:], p.stderr[-300:])
        shutil.rmtree(home)

    return [litellm, litellm_proxy, langchain_openai, langchain_anthropic, llama_index, smolagents, instructor, pydantic_ai,
            agents, llm]


def run_each(url, only):
    """Prints a line of JSON for each library: [name, result]."""
    import traceback
    for f in each(url):
        if only and f.__name__ not in only:
            continue
        try:
            f()
            result = "ok"
        except ImportError as e:
            result = f"skip {e}"
        except BaseException:  # noqa: BLE001  each library has exceptions of its own
            result = traceback.format_exc()[-1500:]
        print("\n" + json.dumps([f.__name__, result]), flush=True)


def main():
    from scripted_model import AGENTS, make_talker
    from serve_client import Server
    if not os.path.exists(PYTHON):
        for name in NAMES:
            skip(name, "it is not installed (tools/setup.sh --libraries)")
        return
    tmp = tempfile.mkdtemp(prefix="hcache-libraries.")
    trip = ['{"city": "Oslo"', ', "days": 4}']
    call = ['<tool_call>\n{"name": "multiply", ', '"arguments": {"a": 6, "b": 7}}\n</tool_call>']
    s = Server(make_talker(os.path.join(tmp, "model"), AGENTS, {
        "<|ask|>": call, "<|told|>": [TOLD], "<|plain|>": trip, "<|search|>": ["```json\n", "{\"city\": \"Rome\", ", '"days": 2}\n```']}))
    p = subprocess.run([PYTHON, __file__, f"http://127.0.0.1:{s.port}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env={**os.environ, "HOME": tmp, "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
                       timeout=2 * PATIENCE)
    got = dict(json.loads(line) for line in p.stdout.decode().split("\n") if line.startswith('["'))
    for name in NAMES:
        result = got.get(name, p.stderr.decode()[-1000:])
        if result.startswith("skip"):
            skip(name, result[5:])
        else:
            check(name + ": asks, calls a tool, gets an answer of a type", result == "ok", result)
    s.stop()
    shutil.rmtree(tmp, ignore_errors=True)


if len(sys.argv) > 1:
    run_each(sys.argv[1], sys.argv[2:])
else:
    main()
    end()
