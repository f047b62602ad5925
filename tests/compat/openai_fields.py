"""Every field of OpenAI's chat and completions, as the official client's own types list them: each is honoured,
accepted without effect or refused by name, and /openapi.json says which. A field of a newer client fails here."""
import json
import os
import sys
import typing

import openai
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as chat

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import Server  # noqa: E402

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# A value of each field, with the fields that it needs beside it.
HONOURED = {
    "frequency_penalty": 0.5, "logit_bias": {"5": -1}, "max_tokens": 2, "n": 2, "presence_penalty": 0.5, "seed": 3,
    "stop": ["x"], "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.5}
CHAT = {
    "logprobs": True, "max_completion_tokens": 2, "messages": [{"role": "developer", "content": "Hi"}],
    "metadata": {"a": "b"}, "store": True,
    "modalities": ["text"], "parallel_tool_calls": False, "reasoning_effort": "low",
    "response_format": {"type": "json_object"}, "tool_choice": "none", "tools": [TOOL], "top_logprobs": 1}
COMPLETION = {"echo": True, "logprobs": 1, "prompt": ["a", "b"]}
BESIDE = {"tool_choice": {"tools": [TOOL]}, "top_logprobs": {"logprobs": True}, "stream_options": {"stream": True},
          "parallel_tool_calls": {"tools": [TOOL]}, "metadata": {"store": True}}
WITHOUT_EFFECT = {
    "best_of": 1, "prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h", "safety_identifier": "u",
    "service_tier": "auto", "user": "u", "verbosity": "low"}
REFUSED = {
    "audio": {"voice": "alloy", "format": "wav"}, "function_call": "auto", "functions": [{"name": "f"}],
    "moderation": {"model": "m"}, "web_search_options": {"search_context_size": "low"},
    "suffix": "x"}  # suffix is for vocabularies with tokens for it, and this model's has none


def fields_of(module):
    return set(typing.get_type_hints(module.CompletionCreateParamsBase)) - {"model"}


def check(create, module, schema, base, honoured):
    """Sends each field alone, beside what it needs; the client sends it as it is, in the body."""
    known = {**HONOURED, **honoured}
    for name in sorted(fields_of(module)):
        groups = [group for group in (known, WITHOUT_EFFECT, REFUSED) if name in group]
        assert len(groups) == 1, f"{name} is a field of {module.__name__} that nothing here handles: {len(groups)}"
        assert name in schema["properties"], f"{name} is not in /openapi.json"
        description = schema["properties"][name]["description"]
        assert ("without effect" in description) == (groups[0] is WITHOUT_EFFECT), (name, description)
        body = {**base, **BESIDE.get(name, {}), name: groups[0][name]}
        try:
            create(extra_body={k: v for k, v in body.items() if k not in ("stream", *base)},
                   stream=body.get("stream", False), model="m", **base)
        except openai.BadRequestError as failure:
            assert groups[0] is REFUSED and name in str(failure), (name, str(failure))
        else:
            assert groups[0] is not REFUSED, f"{name} is to be refused, and was accepted"
    print(f"{module.__name__}: {len(fields_of(module))} fields")


def main():
    with Server() as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
        schemas = json.loads(server.get("/openapi.json")[2])["components"]["schemas"]
        check(client.chat.completions.create, chat, schemas["ChatCompletionRequest"],
              {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, CHAT)
        check(client.completions.create, completion, schemas["CompletionRequest"],
              {"prompt": "The sun", "max_tokens": 4}, COMPLETION)
    print("every field of chat and completions is honoured, accepted without effect or refused by name")


main()
