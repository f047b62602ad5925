"""The official OpenAI client against a server with the model that ships."""
import asyncio
import json
import os
import pathlib
import sys

import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import ROOT, Server  # noqa: E402

QUESTION = [{"role": "system", "content": "You are brief."},
            {"role": "user", "content": "What is the capital of France?"}]


def show(what, value):
    print(f"{what}: {value}", flush=True)


def chat(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=16,
                                            logprobs=True, top_logprobs=3)
    text = answer.choices[0].message.content
    show("chat", repr(text))
    assert answer.object == "chat.completion" and answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens <= 16
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3

    pieces, usage, reason = [], None, None
    for chunk in client.chat.completions.create(model=model, messages=QUESTION, temperature=0,
                                                max_tokens=16, stream=True,
                                                stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    show("chat, streamed", repr("".join(pieces)))
    assert "".join(pieces) == text, (pieces, text)
    assert reason == answer.choices[0].finish_reason
    assert usage.completion_tokens == answer.usage.completion_tokens


def completions(client, model):
    answer = client.completions.create(model=model, prompt=["The sun", "One day"], max_tokens=8,
                                       temperature=0, logprobs=2, extra_body={"ignore_eos": True})
    show("completions", [c.text for c in answer.choices])
    assert [c.index for c in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 16
    assert len(answer.choices[0].logprobs.tokens) == 8
    streamed = {0: "", 1: ""}
    for chunk in client.completions.create(model=model, prompt=["The sun", "One day"], max_tokens=8,
                                           temperature=0, stream=True,
                                           extra_body={"ignore_eos": True}):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert [streamed[0], streamed[1]] == [c.text for c in answer.choices], streamed


def samples(client, model):
    arguments = dict(model=model, messages=QUESTION, n=3, seed=11, temperature=1.5, max_tokens=12)
    first = [c.message.content for c in client.chat.completions.create(**arguments).choices]
    second = [c.message.content for c in client.chat.completions.create(**arguments).choices]
    show("three samples of one seed", first)
    assert first == second and len(first) == 3


def stop(client, model):
    whole = client.completions.create(model=model, prompt="The sun", max_tokens=24, temperature=0,
                                      extra_body={"ignore_eos": True}).choices[0].text
    word = whole.split()[2]
    cut = client.completions.create(model=model, prompt="The sun", max_tokens=24, temperature=0,
                                    stop=[word], extra_body={"ignore_eos": True}).choices[0]
    show("stopped before", repr(word))
    assert cut.text == whole[:whole.index(word)] and cut.finish_reason == "stop", (whole, cut)


def structured(client, model):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
              "required": ["name", "age"], "additionalProperties": False}
    try:
        answer = client.chat.completions.create(
            model=model, temperature=0, max_tokens=96,
            messages=[{"role": "user", "content": "Extract name and age as JSON: Tom is 31 years old."}],
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}})
    except openai.BadRequestError as problem:
        show("json_schema is refused by name", problem.body["message"])
        assert "json_schema" in str(problem.body)
        return
    show("json_schema", answer.choices[0].message.content)
    if answer.choices[0].finish_reason == "stop":
        assert set(json.loads(answer.choices[0].message.content)) == {"name", "age"}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "strict": True,
        "parameters": {"type": "object", "additionalProperties": False,
                       "properties": {"city": {"enum": ["Paris", "Rome"]},
                                      "unit": {"enum": ["celsius", "kelvin"]}},
                       "required": ["city", "unit"]}}},
    {"type": "function", "function": {
        "name": "now", "parameters": {"type": "object", "additionalProperties": False,
                                      "properties": {"utc": {"type": "boolean"}},
                                      "required": ["utc"]}}},
]


def tools(client, model):
    def check(calls):
        assert calls, "no call"
        for call in calls:
            arguments = json.loads(call.function.arguments)
            if call.function.name == "now":
                assert isinstance(arguments["utc"], bool), call
            else:
                assert arguments["city"] in ("Paris", "Rome"), call
                assert arguments["unit"] in ("celsius", "kelvin"), call

    request = dict(model=model, messages=QUESTION, tools=TOOLS, max_tokens=300, temperature=0)
    named = {"type": "function", "function": {"name": "now"}}
    for choice in ("required", named):
        whole = client.chat.completions.create(**request, tool_choice=choice,
                                               parallel_tool_calls=False).choices[0]
        check(whole.message.tool_calls)
        assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
        assert whole.message.tool_calls[0].id and whole.message.tool_calls[0].type == "function"
        if choice is named:
            assert whole.message.tool_calls[0].function.name == "now"
        # The client's own assembly of a stream.
        with client.chat.completions.stream(**request, tool_choice=choice,
                                            parallel_tool_calls=False) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.delta":
                    assert event.name, event
            final = stream.get_final_completion().choices[0]
        check(final.message.tool_calls)
        assert [c.function.arguments for c in final.message.tool_calls] == \
            [c.function.arguments for c in whole.message.tool_calls]
        show("tool call", [(c.function.name, c.function.arguments) for c in whole.message.tool_calls])
    told = QUESTION + [whole.message.model_dump(exclude_none=True),
                       {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id,
                        "content": "noon"}]
    answer = client.chat.completions.create(model=model, messages=told, tools=TOOLS, max_tokens=8,
                                            temperature=0, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    auto = client.chat.completions.create(**request, tool_choice="auto")
    show("auto", auto.choices[0].finish_reason)


def errors(client, model):
    for arguments in ({"temperature": -1}, {"max_tokens": -5}, {"top_p": 3},
                      {"messages": [{"role": "user", "content": "word " * 100000}]}):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **arguments})
            raise AssertionError(f"{list(arguments)} was accepted")
        except openai.BadRequestError as problem:
            show("refused", str(problem.body["message"])[:100])
    try:
        client.models.retrieve("no-such-model")
        raise AssertionError("an unknown model was found")
    except openai.NotFoundError:
        pass


async def many(url, model):
    async with openai.AsyncOpenAI(base_url=url, api_key="any") as client:
        async def one(number):
            return await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": f"Count from {number}."}],
                max_tokens=8, temperature=0)
        answers = await asyncio.gather(*(one(i) for i in range(32)))
    show("concurrent answers", len(answers))
    assert all(a.choices[0].message.content is not None for a in answers)


def transcriptions():
    """By a small Whisper model of random weights: the answers' types are the client's."""
    folder = os.path.join(ROOT, "tests", "golden")
    with Server("--model-path", os.path.join(folder, "speech", "multilingual"), "--dtype", "float32") as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="any", max_retries=0)
        audio = pathlib.Path(folder, "media", "sounds", "pcm16.wav")
        text = client.audio.transcriptions.create(model="m", file=audio, language="en").text
        show("transcription", repr(text))
        verbose = client.audio.transcriptions.create(model="m", file=audio, language="en", temperature=0,
                                                     response_format="verbose_json",
                                                     timestamp_granularities=["segment"])
        assert verbose.language == "english" and verbose.duration == 0.25 and verbose.segments[0].tokens
        assert client.audio.transcriptions.create(model="m", file=audio, language="en",
                                                  response_format="text") == text + "\n"
        events = list(client.audio.transcriptions.create(model="m", file=audio, language="en", stream=True))
        assert "".join(event.delta for event in events[:-1]) == text == events[-1].text
        assert events[-1].type == "transcript.text.done" and events[-1].usage.output_tokens > 0
        assert client.audio.translations.create(model="m", file=audio).text is not None
        try:
            client.audio.transcriptions.create(model="m", file=audio, language="xx")
            raise AssertionError("an unknown language was accepted")
        except openai.BadRequestError as refused:
            show("an unknown language", refused.message)


def main():
    transcriptions()
    with Server("--enable-cache-report") as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
        model = client.models.list().data[0].id
        show("model", model)
        assert client.models.retrieve(model).id == model
        for part in (chat, completions, samples, stop, structured, tools, errors):
            part(client, model)
        asyncio.run(many(url, model))
        repeated = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1)
        show("cached tokens", repeated.usage.prompt_tokens_details.cached_tokens)
        assert repeated.usage.prompt_tokens_details.cached_tokens > 0
    with Server("--api-key", "secret") as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="wrong")
        try:
            client.models.list()
            raise AssertionError("a wrong key was accepted")
        except openai.AuthenticationError:
            show("a wrong key", "refused")
    print("openai client: ok")


if __name__ == "__main__":
    main()
