"""Client libraries against a server with the model that ships: what each sends by default must work.
tests/compat/run installs the libraries in an environment of their own."""
import functools
import json
import os
import subprocess
import sys
import traceback
import urllib.request
from importlib import metadata

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import Server  # noqa: E402

QUESTION = "What is the capital of France?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
          "required": ["city"], "additionalProperties": False}


def langchain_openai(base):
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel, Field

    class Answer(BaseModel):
        city: str = Field(max_length=12)

    model = ChatOpenAI(base_url=base + "/v1", api_key="none", model="m", max_tokens=32, temperature=0)
    whole = model.invoke(QUESTION)
    assert whole.content and whole.usage_metadata["output_tokens"]
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == whole.content
    assert isinstance(model.with_structured_output(Answer).invoke(QUESTION), Answer)
    tool = {"type": "function", "function": {"name": "find", "parameters": SCHEMA, "strict": True}}
    called = model.bind_tools([tool], tool_choice="find", parallel_tool_calls=False).invoke(QUESTION)
    assert called.tool_calls[0]["name"] == "find", called
    assert len(model.batch([QUESTION] * 4)) == 4
    items = ChatOpenAI(base_url=base + "/v1", api_key="none", model="m", max_tokens=32, temperature=0,
                       use_responses_api=True)
    assert items.invoke(QUESTION).text


def langchain_anthropic(base):
    from langchain_anthropic import ChatAnthropic
    model = ChatAnthropic(base_url=base, api_key="none", model="m", max_tokens=32, temperature=0)
    whole = model.invoke(QUESTION)
    assert whole.content
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == whole.text
    tool = {"name": "find", "input_schema": SCHEMA}
    called = model.bind_tools([tool], tool_choice="find").invoke(QUESTION)
    assert called.tool_calls[0]["name"] == "find", called


def langchain_ollama(base):
    from langchain_ollama import ChatOllama
    model = ChatOllama(base_url=base, model="m", num_predict=32, temperature=0)
    whole = model.invoke(QUESTION)
    assert whole.content
    assert "".join(chunk.content for chunk in model.stream(QUESTION)) == whole.content
    assert json.loads(ChatOllama(base_url=base, model="m", num_predict=60, format=SCHEMA).invoke(QUESTION).content)


def llama_index(base):
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike
    model = OpenAILike(api_base=base + "/v1", api_key="none", model="m", max_tokens=16, temperature=0,
                       is_chat_model=True)
    whole = model.chat([ChatMessage(role="user", content=QUESTION)]).message.content
    streamed = "".join(part.delta or "" for part in model.stream_chat([ChatMessage(role="user", content=QUESTION)]))
    assert whole and whole == streamed, (whole, streamed)
    assert OpenAILike(api_base=base + "/v1", api_key="none", model="m", max_tokens=8).complete("The sun").text


def litellm(base):
    import litellm as sdk
    messages = [{"role": "user", "content": QUESTION}]
    for model, extra in (("openai/m", "/v1"), ("hosted_vllm/m", "/v1"), ("anthropic/m", ""), ("ollama_chat/m", "")):
        answer = sdk.completion(model=model, api_base=base + extra, api_key="none", messages=messages,
                                max_tokens=16, temperature=0)
        assert answer.choices[0].message.content, model
        parts = sdk.completion(model=model, api_base=base + extra, api_key="none", messages=messages,
                               max_tokens=16, temperature=0, stream=True)
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text == answer.choices[0].message.content, model
    assert sdk.responses(model="openai/m", api_base=base + "/v1", api_key="none", input=QUESTION,
                         max_output_tokens=16).output
    try:
        sdk.completion(model="openai/m", api_base=base + "/v1", api_key="none",
                       messages=[{"role": "user", "content": "x " * 20000}])
    except sdk.ContextWindowExceededError:
        return
    raise AssertionError("a prompt beyond the context is no ContextWindowExceededError")


def instructor(base):
    import instructor as sdk
    import openai
    from pydantic import BaseModel, ConfigDict, Field

    class Answer(BaseModel):
        model_config = ConfigDict(extra="forbid")
        city: str = Field(max_length=12)

    for mode in (sdk.Mode.JSON_SCHEMA, sdk.Mode.TOOLS_STRICT):
        client = sdk.from_openai(openai.OpenAI(base_url=base + "/v1", api_key="none"), mode=mode)
        made = client.chat.completions.create(model="m", response_model=Answer, max_tokens=100, temperature=0,
                                              messages=[{"role": "user", "content": QUESTION}])
        assert isinstance(made, Answer), mode


def pydantic_ai(base):
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Answer(BaseModel):
        city: str = Field(max_length=12)

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=base + "/v1", api_key="none"))
    settings = {"max_tokens": 60, "temperature": 0}
    assert Agent(model, model_settings=settings).run_sync(QUESTION).output
    shaped = Agent(model, output_type=NativeOutput(Answer, strict=True), model_settings=settings)
    assert isinstance(shaped.run_sync(QUESTION).output, Answer)


def dspy(base):
    import dspy as sdk
    model = sdk.LM("openai/m", api_base=base + "/v1", api_key="none", max_tokens=32, temperature=0, cache=False)
    assert model(QUESTION)[0]


def outlines(base):
    import openai
    import outlines as sdk
    from pydantic import BaseModel, Field

    class Answer(BaseModel):
        city: str = Field(max_length=12)

    client = openai.OpenAI(base_url=base + "/v1", api_key="none")
    for model in (sdk.from_openai(client, "m"), sdk.from_sglang(client, "m")):
        assert Answer.model_validate_json(model(QUESTION, Answer, max_tokens=60))
    assert sdk.from_sglang(client, "m")(QUESTION, sdk.types.Regex("(Paris|Rome)"), max_tokens=8) in ("Paris", "Rome")


def guidance(base):
    import guidance as sdk
    model = sdk.models.OpenAI("m", base_url=base + "/v1", api_key="none", echo=False)
    with sdk.user():
        model += QUESTION
    with sdk.assistant():
        model += sdk.gen("answer", max_tokens=16)
    assert model["answer"]


def guidance_sglang(base):
    """Its model of SGLang: choices, expressions, schemas and joined parts, as Lark grammars in `ebnf`."""
    import guidance as sdk
    guided(sdk, sdk.models.experimental.SglangModel, base)


def guidance_vllm(base):
    """Its model of vLLM: the same grammars in `guided_grammar`."""
    import guidance as sdk
    guided(sdk, sdk.models.experimental.VLLMModel, base)


def guided(sdk, kind, base):
    # The white space of JSON is the model's choice here, and guidance reads a text again by its own grammar.
    start = kind("m", base_url=base + "/v1", api_key="none", echo=False)
    with sdk.user():
        start += QUESTION
    schema = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
              "properties": {"name": {"enum": ["Rex", "Bello"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}}}
    parts = {"colour": "Its colour is " + sdk.select(["brown", "bl\u00e4ck/\"grey\""], name="colour") + ".",
             "number": "It is " + sdk.gen("number", regex=r"[0-9]{2}") + " years/months old",
             "dog": sdk.json("dog", schema=schema, whitespace_flexible=True)}
    for name, part in parts.items():
        with sdk.assistant():
            model = start + part
        assert model[name] and (name != "dog" or 1 <= json.loads(model[name])["age"] <= 9), (name, model[name])
    with sdk.assistant():
        model = start + ("It says: " + sdk.json("said", schema=schema, whitespace_flexible=True) + ";")
    assert '"age":' in str(model) and "};" in str(model), str(model)


def smolagents(base):
    from smolagents import OpenAIServerModel
    model = OpenAIServerModel(model_id="m", api_base=base + "/v1", api_key="none", max_tokens=16)
    assert model([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]).content


def haystack(base):
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret
    model = OpenAIChatGenerator(api_key=Secret.from_token("none"), model="m", api_base_url=base + "/v1",
                                generation_kwargs={"max_tokens": 16})
    assert model.run([ChatMessage.from_user(QUESTION)])["replies"][0].text


def openai_agents(base):
    os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=base + "/v1", OPENAI_AGENTS_DISABLE_TRACING="1")
    import agents as sdk
    agent = sdk.Agent(name="helper", instructions="Be brief.", model="m",
                      model_settings=sdk.ModelSettings(max_tokens=200, temperature=0))
    assert sdk.Runner.run_sync(agent, QUESTION + " Answer in one word.").final_output


def ask(url, body=None, headers=None):
    """The text of an answer; an error status is an exception."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.read().decode()


def open_webui(base):
    """What Open WebUI asks of a connection of each kind."""
    assert json.loads(ask(base + "/api/version"))["version"]
    assert json.loads(ask(base + "/api/tags"))["models"]
    assert json.loads(ask(base + "/api/ps"))["models"] is not None
    model = json.loads(ask(base + "/v1/models"))["data"][0]["id"]
    body = {"model": model, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 16,
            "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]}
    events = [json.loads(line[6:]) for line in ask(base + "/v1/chat/completions", body).splitlines()
              if line.startswith("data: ") and line != "data: [DONE]"]
    assert events[-1]["usage"]["completion_tokens"] <= 16
    lines = ask(base + "/api/chat", {"model": model, "messages": [{"role": "user", "content": QUESTION}],
                                     "options": {"num_predict": 16}, "stream": True}).splitlines()
    assert json.loads(lines[-1])["done"] and len(lines) > 1


def claude_code(base):
    """The shape of Claude Code's requests: a changing billing block, cached blocks, tools, thinking."""
    def body(billing):
        tools = [{"name": "Read", "description": "Reads a file.", "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}},
            "required": ["file_path"], "additionalProperties": False}}]
        return {"model": "claude-sonnet", "max_tokens": 32, "stream": True, "temperature": 1,
                "metadata": {"user_id": "user_1_account__session_2"}, "tools": tools,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={billing};"},
                           {"type": "text", "text": "You are a coding assistant. " * 20,
                            "cache_control": {"type": "ephemeral"}}],
                "messages": [{"role": "user", "content": [
                    {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"},
                    {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]}]}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219", "x-api-key": "none"}
    created, cached = [], []
    for billing in ("a1", "b2"):
        events = [json.loads(line[6:]) for line in
                  ask(base + "/v1/messages?beta=true", body(billing), headers).splitlines()
                  if line.startswith("data: ")]
        assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop", events
        cached.append(events[-2]["usage"]["cache_read_input_tokens"])
        created.append(events[-2]["usage"]["cache_creation_input_tokens"])
    # The marks stand at the end, so nearly all of the prompt is written to the cache once and read once.
    assert created[0] > 50 and created[1] == 0 and cached[1] >= created[0] - 4, (created, cached)
    counted = json.loads(ask(base + "/v1/messages/count_tokens?beta=true",
                             {k: v for k, v in body("c").items() if k in ("model", "system", "messages", "tools")},
                             headers))
    assert counted["input_tokens"] > 50


EXAMPLES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "examples", "clients")


def run_example(name, base):
    """A program of examples/clients, as its reader runs it; it fails or prints an answer."""
    command = ["sh", name, "--check"] if name.endswith(".sh") else [sys.executable, "-B", name]
    done = subprocess.run(command, cwd=EXAMPLES, env={**os.environ, "ESPALIER_URL": base}, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stdout + done.stderr[-2000:]


def example_names():
    """The examples that this environment's packages are for; evaluation_clients.py runs the harness's."""
    return [name for name in sorted(os.listdir(EXAMPLES))
            if name.endswith((".py", ".sh")) and name != "lm_evaluation_harness.py"]


# The package that each probe is about; none: requests by themselves.
PROBES = {langchain_openai: "langchain-openai", langchain_anthropic: "langchain-anthropic",
          langchain_ollama: "langchain-ollama", llama_index: "llama-index-llms-openai-like", litellm: "litellm",
          instructor: "instructor", pydantic_ai: "pydantic-ai-slim", dspy: "dspy", outlines: "outlines",
          guidance: "guidance", guidance_sglang: "guidance", guidance_vllm: "guidance",
          smolagents: "smolagents", haystack: "haystack-ai", openai_agents: "openai-agents", open_webui: "", claude_code: ""}


def main():
    """All libraries, or those that the arguments name; arguments with dashes are the server's flags."""
    more = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    rows, only = [], [argument for argument in sys.argv[1:] if argument not in more]  # names of probes and examples
    tried = [(probe.__name__, package, probe) for probe, package in PROBES.items()]
    tried += [(name, "", functools.partial(run_example, name)) for name in example_names()]
    with Server(*more) as server:
        for name, package, probe in tried:
            if only and name not in only:
                continue
            version = metadata.version(package) if package else "example" if "." in name else "requests"
            try:
                probe(f"http://127.0.0.1:{server.port}")
                rows.append((name, version, "works"))
            except Exception as failure:  # a library's own errors have no common base
                traceback.print_exc()
                rows.append((name, version, f"FAILS: {type(failure).__name__}: {failure}"[:200]))
    for row in rows:
        print(f"{row[0]:24} {row[1]:12} {row[2]}")
    sys.exit(any("FAILS" in row[2] for row in rows))


main()
