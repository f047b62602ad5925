"""Tool calls of the model that ships, constrained by grammar: 200 questions with random tools in the
format that the chat template speaks, and some in every other format. Each answer must be a call of
one of the tools whose arguments are valid for its schema, streamed or not, with equal results."""
import json
import os
import random
import sys

import jsonschema
import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import Server, run  # noqa: E402

WORDS = ["city", "date", "unit", "amount", "name", "limit", "query", "language", "color", "size"]


def random_schema(rng, depth=0):
    kind = rng.choice(["string", "enum", "integer", "number", "boolean", "array", "object"][:7 if depth < 2 else 5])
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(1, 12)}
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", "blue", 1, 2.5, None, "a b", "\"quoted\""], rng.randint(1, 4))}
    if kind == "integer":
        low = rng.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 1000)}
    if kind == "number":
        return {"type": "number", "minimum": 0, "maximum": rng.randint(1, 100)}
    if kind == "boolean":
        return {"type": "boolean"}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "maxItems": rng.randint(1, 3)}
    return random_object(rng, depth + 1)


def random_object(rng, depth=0):
    names = rng.sample(WORDS, rng.randint(1, 3))
    required = [name for name in names if rng.random() < 0.7]
    return {"type": "object", "properties": {name: random_schema(rng, depth) for name in names},
            "required": required, "additionalProperties": False}


def random_request(rng):
    names = rng.sample(["find_city", "add", "send.mail", "look-up", "convert_unit", "plan"], rng.randint(1, 4))
    tools = [{"type": "function", "function": {"name": name, "description": f"Does {name}.",
                                               "parameters": random_object(rng)}} for name in names]
    choice = "required"
    if rng.random() < 0.4:
        choice = {"type": "function", "function": {"name": rng.choice(names)}}
    return {"model": "m", "tools": tools, "tool_choice": choice, "parallel_tool_calls": rng.random() < 0.3,
            "temperature": 0, "max_tokens": 1000, "extra_body": {"repetition_penalty": 1.1},
            "messages": [{"role": "user", "content": f"Please {rng.choice(WORDS)} with {rng.choice(names)}."}]}


def calls_of(client, request):
    choice = client.chat.completions.create(**request).choices[0]
    return choice.finish_reason, [(call.function.name, call.function.arguments)
                                  for call in choice.message.tool_calls or []]


def streamed_calls_of(client, request):
    reason, calls = None, {}
    for chunk in client.chat.completions.create(**request, stream=True):
        if not chunk.choices:
            continue
        reason = chunk.choices[0].finish_reason or reason
        for part in chunk.choices[0].delta.tool_calls or []:
            name, arguments = calls.get(part.index, ("", ""))
            calls[part.index] = (name + (part.function.name or ""), arguments + (part.function.arguments or ""))
    return reason, [calls[index] for index in sorted(calls)]


def problem_of(request, reason, calls):
    """What is wrong with an answer, "" where nothing is. An answer cut by its length is not finished."""
    if not calls and reason != "length":
        return f"no call, and it ends by {reason}"
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request["tools"]}
    named = request["tool_choice"]
    for index, (name, arguments) in enumerate(calls):
        if reason == "length" and index == len(calls) - 1:
            return ""
        if name not in schemas or (isinstance(named, dict) and name != named["function"]["name"]):
            return f"a call of {name}"
        try:
            jsonschema.validate(json.loads(arguments), schemas[name])
        except (ValueError, jsonschema.ValidationError) as failure:
            return f"{name}({arguments}): {str(failure).splitlines()[0]}"
    return ""


def run_suite(server, seed, count):
    """(answers with valid calls, answers cut by their length, descriptions of the others)."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
    valid, cut, wrong = 0, 0, []
    for number in range(count):
        request = random_request(random.Random(seed * 100_000 + number))
        reason, calls = calls_of(client, request)
        problem = problem_of(request, reason, calls)
        if not problem and (reason, calls) != streamed_calls_of(client, request):
            problem = "streamed calls differ"
        if problem:
            wrong.append(f"request {number}: {problem}")
        elif reason == "length":
            cut += 1
        else:
            valid += 1
    return valid, cut, wrong


def formats():
    text = run("serve", "--tool-call-parser", "?").stderr
    names = text[text.index("one of") + len("one of"):] if "one of" in text else ""
    names = [name.strip(" '.\n") for name in names.replace(" or ", ", ").split(",") if name.strip(" '.\n")]
    # A server refuses this one for models whose tokenizer has no response_template, and these have none.
    names.remove("response_template")
    return names


def main():
    """All formats, or those that the arguments name; arguments with dashes are the server's flags."""
    more = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    failed, only = False, [argument for argument in sys.argv[1:] if argument not in more]
    print(f"{'format':24} {'valid':>6} {'cut':>4} {'wrong':>6}")
    runs = [("(chat template)", [], 200)] + [(name, ["--tool-call-parser", name], 10) for name in formats()]
    assert len(runs) > 30, runs
    runs = [row for row in runs if not only or row[0] in only]
    for seed, (name, flags, count) in enumerate(runs):
        with Server(*flags, *more) as server:
            valid, cut, wrong = run_suite(server, seed, count)
        print(f"{name:24} {valid:6} {cut:4} {len(wrong):6}", flush=True)
        for line in wrong[:3]:
            print(f"    {line}")
        failed = failed or bool(wrong)
    sys.exit(1 if failed else 0)


main()
