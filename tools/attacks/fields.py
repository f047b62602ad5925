"""Every field of every route of /openapi.json with every hostile value, then pairs of fields. An answer
is right when it comes, is not 500, is UTF-8 (and JSON where it says so), and, as a 400, names the field."""
import collections
import copy
import dataclasses
import http.client
import json
import queue
import re
import tempfile
import urllib.parse

from common import ROOT, Outcome, Target, run_threads
import models
import values

PLACEHOLDER = "\u0001value\u0001"
CLIENTS = 4
TIMEOUT_S = 30
PAIRS_SHARE = 0.9  # of the cases; the rest is left to the server that embeds
# Their effects would reach the other clients' requests, so nothing else runs beside them.
ALONE = {"/pause_generation", "/abort_request", "/flush_cache", "/continue_generation"}
CLASSES = f"{ROOT}/tests/golden/pooled/llama_classes"
# Their good bodies name folders of adapters, which stand nowhere here: attacked although they are refused.
ADAPTERS = {"/load_lora_adapter", "/unload_lora_adapter"}
ENDLESS = {"/kv_events"}  # a stream for as long as the client stays
# What a prompt is made of, so that an error may speak of the prompt.
PROMPT = {"text", "input_ids", "prompt", "messages", "input", "instructions", "system", "tools", "content", "suffix",
          "query", "items", "documents", "instruct", "chat_template_kwargs", "tool_choice", "choices"}
# What carries a grammar, so that an error may name the grammar's kind.
GRAMMAR = {"response_format", "format", "text", "output_format", "output_config", "tools"}
CHAT = [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}}
SAMPLING = {"max_new_tokens": 2, "temperature": 0.5, "stop": ["z"], "logit_bias": {"5": 1.5}, "stop_token_ids": [9]}
OPTIONS = {"num_predict": 2, "temperature": 0.5, "seed": 1, "stop": ["z"], "top_k": 4, "num_ctx": 128}
# A good body for each schema; every place in it is attacked, beside every field that the schema names.
BODIES = {
    "GenerateRequest": {"text": "Once", "sampling_params": SAMPLING},
    "ChatCompletionRequest": {"messages": CHAT, "max_tokens": 2, "tools": [TOOL], "tool_choice": "none",
                              "stream_options": {"include_usage": True}, "stream": True,
                              "response_format": {"type": "text"}},
    "CompletionRequest": {"prompt": "Once", "max_tokens": 2, "response_format": {"type": "text"}},
    "ConcatenateRequest": {"src_rids": ["a"], "dst_rid": "b"},
    "EmbeddingRequest": {"input": ["a"]},
    "ClassifyRequest": {"input": ["a"]},
    "ScoreRequest": {"query": "a", "items": ["b"], "label_token_ids": [1, 2]},
    "RerankRequest": {"query": "a", "documents": ["b"]},
    "ResponseRequest": {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}],
                        "max_output_tokens": 2, "text": {"format": {"type": "text"}}, "tools": [
                            {"type": "function", "name": "f", "parameters": {"type": "object"}}]},
    "MessagesRequest": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 2,
                        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "system": [{"type": "text", "text": "a"}]},
    "OllamaChatRequest": {"messages": [{"role": "user", "content": "a"}], "options": OPTIONS, "stream": False},
    "OllamaGenerateRequest": {"prompt": "a", "options": OPTIONS, "stream": False},
    "OllamaEmbedRequest": {"input": ["a"]},
    "OllamaPullRequest": {"model": "espalier"},
    "GrammarCompileRequest": {"regex": "a"},
    "TokenizeRequest": {"messages": CHAT},  # /tokenize takes a prompt too, /apply-template does not
    "DetokenizeRequest": {"tokens": [5]},
    "ParseFunctionCallRequest": {"text": "a", "tools": [TOOL], "tool_call_parser": "json"},
    "SeparateReasoningRequest": {"text": "a", "reasoning_parser": "qwen3"},
    "ExactLikelihood": {"text": "a", "choices": ["b"]},
    "OpenSession": {"capacity_of_str_len": 100},
    "CloseSession": {"session_id": "a"},
    "PauseGeneration": {"mode": "abort"},
    "AbortRequest": {"rid": "none"},
    "LlamaCppCompletionRequest": {"prompt": "Once", "n_predict": 2, "stop": ["z"], "logit_bias": [[5, 1.5]]},
    "LlamaCppInfillRequest": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "LlamaCppEmbeddingRequest": {"content": "a"},
    "LlamaCppTokenizeRequest": {"content": "a"},
    "LlamaCppDetokenizeRequest": {"tokens": [5]},
    "ModerationRequest": {"input": ["a"]},
    "BatchRequest": {"input_file_id": "file-none", "endpoint": "/v1/completions", "metadata": {"a": "b"},
                     "output_expires_after": {"anchor": "created_at", "seconds": 3600}},
    "MessageBatchRequest": {"requests": [{"custom_id": "a", "params": {
        "max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}}]},
    "ChatCompletionUpdate": {"metadata": {"a": "b"}},
    "ConversationItems": {"items": [{"type": "message", "role": "user", "content": "a"}]},
    "UploadRequest": {"bytes": 1, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch"},
}


@dataclasses.dataclass
class Case:
    method: str
    path: str
    body: str
    names: set  # an error may name any of these
    what: str
    readable: bool = True  # the body is JSON


def places(value, at=()):
    """The path of every part of a body."""
    if at:
        yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in members:
        yield from places(inner, at + (key,))


def with_value(body, at, value):
    """The text of `body` with the text `value` at a place."""
    changed = copy.deepcopy(body)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = PLACEHOLDER
    return json.dumps(changed).replace(json.dumps(PLACEHOLDER), value)


def schema_name(operation):
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    return schema.get("$ref", "").rsplit("/", 1)[-1]


def body_of(name, schema):
    """A good body of a schema; one that stands in no table gets an empty string for what it requires."""
    return BODIES.get(name, {field: "" for field in schema.get("required", [])})


def attacked_places(document, name):
    schema = document["components"]["schemas"][name]
    found = dict.fromkeys(places(body_of(name, schema)))
    for field, inner in schema["properties"].items():
        found[(field,)] = None
        if "SamplingParams" in json.dumps(inner):
            for nested in document["components"]["schemas"]["SamplingParams"]["properties"]:
                found[(field, nested)] = None
        for nested in inner.get("properties", {}):
            found[(field, nested)] = None
    return list(found)


def cases_of_body(document, method, path, name):
    body = body_of(name, document["components"]["schemas"][name])
    # The good bodies of adapters are refused, so an error may be about what they lack.
    others = {"lora_name", "lora_path"} if path in ADAPTERS else set()
    for at in attacked_places(document, name):
        base = body
        if len(at) > 1 and at[0] not in body:
            base = {**body, at[0]: {}}
        for value in values.ALL:
            yield Case(method, path, with_value(base, at, value), others | {str(k) for k in at if isinstance(k, str)},
                       f"{'.'.join(map(str, at))} = {value[:60]}", values.is_json(value))
    for field in body:
        rest = {k: v for k, v in body.items() if k != field}
        yield Case(method, path, json.dumps(rest), set(document["components"]["schemas"][name]["properties"]),
                   f"{field} missing")
    for raw in values.ALL:
        yield Case(method, path, raw, {"body", "object", "JSON"} | set(body), f"body = {raw[:60]}", values.is_json(raw))


def cases_of_path(method, path, operation):
    names = re.findall(r"\{(\w+)\}", path)
    for text in values.STRINGS[:-2] + ["a" * 4000]:
        quoted = urllib.parse.quote(text, safe="")
        if names:
            yield Case(method, re.sub(r"\{\w+\}", quoted, path), "", set(names), f"{names[0]} = {text[:40]!r}")
        query = "&".join(f"{p['name']}={quoted}" for p in operation.get("parameters", []) if p["in"] == "query")
        yield Case(method, re.sub(r"\{\w+\}", "a", path) + f"?{query or quoted + '=' + quoted}", "",
                   {"query", *query.split("=")}, f"query {text[:40]!r}")


def singles(document):
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = schema_name(operation)
            if name:
                yield from cases_of_body(document, method.upper(), path, name)
            if path not in ALONE:
                yield from cases_of_path(method.upper(), path, operation)


def pairs(document, rng):
    """Without end: two places of a body, each with a value."""
    routes = [(m.upper(), p, schema_name(o)) for p, ms in document["paths"].items() for m, o in ms.items() if schema_name(o)]
    readable = [v for v in values.ALL if values.is_json(v) and len(v) < 5000]
    while True:
        method, path, name = rng.choice(routes)
        body = body_of(name, document["components"]["schemas"][name])
        fields = [at[0] for at in attacked_places(document, name) if len(at) == 1]
        first, second = rng.choice(fields), rng.choice(fields)
        text = with_value({**body, second: None}, (first,), rng.choice(readable))
        if second != first:
            text = with_value(json.loads(text), (second,), rng.choice(readable))
        yield Case(method, path, text, {first, second, *body}, f"{first}, {second}: {text[:120]}")


class Client:
    """One kept connection, opened anew after a failure."""

    def __init__(self, target, outcome):
        self.target, self.outcome, self.connection = target, outcome, None

    def ask(self, case):
        for attempt in (1, 2):  # the server may close a kept connection just then
            fresh = self.connection is None
            if fresh:
                self.connection = self.target.connect(timeout=TIMEOUT_S)
            try:
                self.connection.request(case.method, case.path, case.body.encode("utf-8", "surrogatepass"),
                                        {"Content-Type": "application/json"})
                answer = self.connection.getresponse()
                if case.path.partition("?")[0] in ENDLESS and answer.status == 200:
                    self.connection = None
                    return 200, "", b""
                return answer.status, answer.getheader("Content-Type", ""), answer.read()
            except TimeoutError:
                self.connection = None
                return -1, "", b""
            except (OSError, http.client.HTTPException) as error:
                self.connection = None
                if fresh or attempt == 2:
                    return 0, "", repr(error).encode()
        return 0, "", b""

    def run(self, case):
        self.outcome.case()
        status, kind, body = self.ask(case)
        judge(self.outcome, case, status, kind, body)


def judge(outcome, case, status, kind, body):
    where = f"{case.method} {case.path} {case.what}: {status} {body[:200]!r}"
    if status <= 0:
        return outcome.fail("no answer" if status == 0 else "no answer in time", where)
    outcome.statuses[status] += 1
    # As llama.cpp has it; routes of SGLang and Ollama that say why they are not served, or which flag serves them.
    unsupported = status == 501 and b'"type":"not_supported_error"' in body
    unserved = status == 501 and (b"is not served here: " in body or b": start it with --" in body)
    if status >= 500 and status != 529 and not unsupported and not unserved or b'"code":500' in body:
        outcome.fail(f"status {status}", where)
    try:
        text = body.decode()
        if kind.startswith("application/json") and text:
            json.loads(text)
    except ValueError as error:
        return outcome.fail("answer is not UTF-8 or not JSON", f"{where} {error}")
    if (status == 400 or unsupported) and not names_field(text, case):
        outcome.fail(f"400 without the field's name: {message_of(text)[:48]}", where)


def message_of(text):
    """The message of an error in any dialect, without the figures and names in it, so that alike ones count as one."""
    return re.sub(r"[\d.]+|'[^']*'", "#", re.sub(r'^.*?(?:"message"|"error"):"|"[,}].*$', "", text))


def names_field(text, case):
    if case.names & PROMPT and "the prompt" in text:
        return True
    if "stop_sequences" in case.names and "stop" in text:
        return True
    if "max_tokens" in case.names and "n_predict" in text or "/infill needs a model" in text:
        return True
    if case.names & GRAMMAR and re.search("json_schema|structural_tag", text):
        return True
    if not case.body and re.search("the body is empty|the Content-Type must be", text):
        return True
    if "?" in case.path or not case.body:
        return "path" in text or "query" in text or any(name in text for name in case.names)
    if not case.readable or "not valid JSON" in text:
        return "JSON" in text or any(name in text for name in case.names)
    return any(re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text) for name in case.names)


def taken_routes(target, document):
    """(method, path) of the routes that take their good body: a server that generates makes no embeddings."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path == "/close_session":
                target.send("POST", "/open_session", {"capacity_of_str_len": 100, "session_id": "a"})
            name = schema_name(operation)
            body = body_of(name, document["components"]["schemas"][name]) if name else None
            answer = target.send(method.upper(), path, body) if name else None
            if not name or answer.status != 400 or path in ADAPTERS:
                yield method, path
    target.send("POST", "/continue_generation")


def attack_alone(client, case):
    client.run(case)
    if case.path in ALONE:
        client.target.send("POST", "/continue_generation")


def attack(target, outcome, budget, document, left, embeds):
    """Every case of `document`, from several clients, then pairs of fields."""
    every = list(singles(document))
    budget.random.shuffle(every)
    every = every[:left]
    shared = queue.SimpleQueue()
    for case in every:
        if case.path not in ALONE:
            shared.put(case)

    def work():
        client = Client(target, outcome)
        while not budget.is_spent() and target.is_alive():
            try:
                client.run(shared.get_nowait())
            except queue.Empty:
                return
    run_threads([work] * CLIENTS)
    alone = Client(target, outcome)
    for case in every:
        if case.path in ALONE and target.is_alive():
            attack_alone(alone, case)
    more = pairs(document, budget.random)
    while target.is_alive() and not budget.is_spent(outcome.cases) and outcome.cases < left * PAIRS_SHARE:
        attack_alone(alone, next(more))
    target.check(outcome, "all fields", generates=not embeds)


def run(budget):
    outcome = Outcome("fields x values")
    outcome.statuses = collections.Counter()
    missed = None
    classes = ["--model-path", CLASSES, "--tokenizer-path", models.TOKENIZER]
    for arguments in (["--enable-lora"], ["--is-embedding"], classes):
        with tempfile.TemporaryDirectory() as storage, tempfile.TemporaryDirectory() as files, \
                Target("--context-length", "128", "--max-total-tokens", "65536", "--storage-path", storage,
                       "--cache-file-dir", files, *arguments) as target:
            document = json.loads(target.get("/openapi.json")[2])
            taken = set(taken_routes(target, document))
            if missed is None:
                missed, wanted = {(m, p) for p, ms in document["paths"].items() for m in ms} - taken, taken
            else:
                wanted, missed = missed & taken, missed - taken
            document["paths"] = {p: {m: o for m, o in ms.items() if (m, p) in wanted} for p, ms in document["paths"].items()}
            attack(target, outcome, budget, document, budget.cases - outcome.cases, "--enable-lora" not in arguments)
    for method, path in sorted(missed):
        outcome.fail("a good body is refused", f"{method} {path}")
    outcome.fact("answers " + ", ".join(f"{k}: {v}" for k, v in sorted(outcome.statuses.items())))
    return outcome
