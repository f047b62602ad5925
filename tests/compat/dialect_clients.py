"""The official clients of the other dialects against a server with the model that ships: OpenAI's
Responses and its agents with their defaults, Anthropic's, Ollama's, LangChain's of llama.cpp's server, Cohere's
and LiteLLM's rerank."""
import hashlib
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request

import anthropic
import ollama
import openai

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import ROOT, Server  # noqa: E402

GREEDY = {"temperature": 0}
QUESTION = "What is the capital of France?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
          "required": ["city"], "additionalProperties": False}


def show(what, value):
    print(f"{what}: {value}", flush=True)


def responses(client):
    answer = client.responses.create(model="m", input=QUESTION, temperature=0, max_output_tokens=16)
    show("responses", repr(answer.output_text))
    assert answer.status in ("completed", "incomplete") and answer.usage.output_tokens <= 16
    pieces = []
    with client.responses.stream(model="m", input=QUESTION, temperature=0, max_output_tokens=16) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                pieces.append(event.delta)
            if event.type in ("response.completed", "response.incomplete"):  # the latter: cut by its tokens
                final = event.response
    assert "".join(pieces) == final.output_text == answer.output_text, (pieces, answer.output_text)

    again = client.responses.retrieve(answer.id)
    assert again.output_text == answer.output_text
    assert client.responses.input_items.list(answer.id).data[0].role == "user"
    counted = client.responses.input_tokens.count(model="m", input=QUESTION)
    assert counted.object == "response.input_tokens" and counted.input_tokens == answer.usage.input_tokens
    more = client.responses.create(model="m", input="And of Italy?", previous_response_id=answer.id,
                                   max_output_tokens=4)
    assert more.usage.input_tokens > answer.usage.input_tokens + 4
    client.responses.delete(answer.id)
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError as failure:
        show("responses, deleted", failure.status_code)
    else:
        raise AssertionError("a deleted response was found")

    shaped = client.responses.create(model="m", input=QUESTION, max_output_tokens=60, text={
        "format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}})
    show("responses, schema", repr(shaped.output_text))
    tools = [{"type": "function", "name": "find", "parameters": SCHEMA, "strict": True}]
    call = client.responses.create(model="m", input=QUESTION, tools=tools, tool_choice="required",
                                   parallel_tool_calls=False, max_output_tokens=200).output[0]
    show("responses, call", (call.name, call.arguments))
    assert call.type == "function_call" and call.name == "find"
    result = client.responses.create(model="m", max_output_tokens=8, tools=tools, input=[
        {"role": "user", "content": QUESTION}, call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "Paris"}])
    assert result.object == "response"


def response_logprobs(client):
    """Log-probabilities of a message: the tokens spell it, and a stream has the same."""
    towns = {"type": "json_schema", "name": "towns", "schema": {"const": {"towns": "Zürich, 東京"}}}
    for text in ({"format": {"type": "text"}}, {"format": towns}):
        ask_for = {"model": "m", "input": QUESTION, "temperature": 0, "max_output_tokens": 40, "text": text,
                   "include": ["message.output_text.logprobs"], "top_logprobs": 3}
        part = client.responses.create(**ask_for).output[-1].content[0]
        assert b"".join(bytes(token.bytes) for token in part.logprobs).decode() == part.text
        assert all(len(token.top_logprobs) == 3 for token in part.logprobs)
        events = list(client.responses.create(**ask_for, stream=True))
        streamed = [token for event in events if event.type == "response.output_text.delta"
                    for token in event.logprobs]
        assert events[-1].response.output[-1].content[0].logprobs == part.logprobs
        assert [token.token for token in streamed] == [token.token for token in part.logprobs]
        show("responses, logprobs", (part.text, [round(token.logprob, 3) for token in part.logprobs[:4]]))


def background(client):
    """A response without a client: fetched, read as a stream, read again from an event, cancelled."""
    begun = client.responses.create(model="m", input=QUESTION, background=True, temperature=0,
                                    max_output_tokens=16)
    assert begun.status in ("queued", "in_progress"), begun.status
    deadline = time.monotonic() + 60
    while (ended := client.responses.retrieve(begun.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    show("responses, background", (begun.status, ended.status, ended.output_text))
    assert ended.status in ("completed", "incomplete") and ended.output_text
    with client.responses.create(model="m", input=QUESTION, background=True, stream=True, temperature=0,
                                 max_output_tokens=16) as stream:
        events = list(stream)
    again = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in again] == [event.sequence_number for event in events[4:]]
    assert events[-1].response.output_text == ended.output_text
    long = client.responses.create(model="m", input=QUESTION, background=True, max_output_tokens=2000)
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.cancel(long.id).status == "cancelled"


def conversations(client):
    """Conversations and their items, each method of the client; responses that continue and extend one."""
    made = client.conversations.create(metadata={"topic": "names"},
                                       items=[{"role": "user", "content": "The code word is Alabaster."}])
    talk, items = client.conversations, client.conversations.items
    assert talk.retrieve(made.id).metadata == {"topic": "names"}
    assert talk.update(made.id, metadata={"topic": "words"}).metadata == {"topic": "words"}
    alone = client.responses.input_tokens.count(model="m", input=QUESTION).input_tokens
    answer = client.responses.create(model="m", conversation=made.id, input=QUESTION, temperature=0,
                                     max_output_tokens=16)
    assert answer.conversation.id == made.id and answer.usage.input_tokens > alone + 4
    events = list(client.responses.create(model="m", conversation={"id": made.id}, input="And of Italy?",
                                          temperature=0, max_output_tokens=16, stream=True))
    again = events[-1].response
    assert again.usage.input_tokens > answer.usage.input_tokens + 4
    texts = [item.content[0].text for item in items.list(made.id, order="asc", limit=2)]  # three pages
    assert texts == ["The code word is Alabaster.", QUESTION, answer.output_text, "And of Italy?",
                     again.output_text], texts
    added = items.create(made.id, items=[{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                         {"type": "function_call_output", "call_id": "c", "output": "3"}])
    assert items.retrieve(added.last_id, conversation_id=made.id).output == "3"
    assert items.delete(added.first_id, conversation_id=made.id).id == made.id
    assert [item.type for item in items.list(made.id)][:2] == ["function_call_output", "message"]
    show("conversations", texts)
    assert talk.delete(made.id).deleted
    try:
        talk.retrieve(made.id)
    except openai.NotFoundError as failure:
        show("conversations, deleted", failure.status_code)
    else:
        raise AssertionError("a deleted conversation was found")


def stored_chats(client):
    """A chat completion that is kept, in each method of the client; a stream is kept as well."""
    question = [{"role": "user", "content": QUESTION}]
    made = client.chat.completions.create(model="m", messages=question, store=True, temperature=0,
                                          max_tokens=16, metadata={"topic": "cities"})
    store = client.chat.completions
    text = made.choices[0].message.content
    assert store.retrieve(made.id).choices[0].message.content == text
    assert [m.content for m in store.messages.list(made.id)] == [QUESTION]
    assert made.id in [known.id for known in store.list(metadata={"topic": "cities"})]
    assert made.id not in [known.id for known in store.list(metadata={"topic": "rivers"})]
    assert store.update(made.id, metadata={"topic": "rivers"}).metadata == {"topic": "rivers"}
    chunks = list(client.chat.completions.create(model="m", messages=question, store=True, temperature=0,
                                                 max_tokens=16, stream=True))
    assert store.retrieve(chunks[0].id).choices[0].message.content == text
    assert [known.id for known in store.list(limit=1, order="desc")][:2] == [chunks[0].id, made.id]
    show("stored chats", repr(text))
    assert store.delete(made.id).deleted
    try:
        store.retrieve(made.id)
    except openai.NotFoundError as failure:
        show("stored chats, deleted", failure.status_code)
    else:
        raise AssertionError("a deleted chat completion was found")


def batches(client):
    """Files, and a batch over one: every method of both."""
    lines = [{"custom_id": f"q{i}", "method": "POST", "url": "/v1/chat/completions",
              "body": {"model": "m", "max_tokens": 8, "temperature": 0,
                       "messages": [{"role": "user", "content": f"What is {i} + 1?"}]}} for i in range(20)]
    lines.append({"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {}})
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch",
                               expires_after={"anchor": "created_at", "seconds": 3600})
    assert client.files.retrieve(file.id).bytes == len(content)
    assert client.files.content(file.id).read() == content
    assert file.id in [known.id for known in client.files.list(purpose="batch")]
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions",
                                  completion_window="24h", metadata={"k": "v"})
    deadline = time.monotonic() + 120
    while (batch := client.batches.retrieve(batch.id)).status in ("validating", "in_progress", "finalizing"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    show("batches", (batch.status, batch.request_counts.model_dump()))
    assert batch.request_counts.completed == 20 and batch.request_counts.failed == 1
    records = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [record["custom_id"] for record in records] == [f"q{i}" for i in range(20)]
    alone = client.chat.completions.create(**lines[3]["body"]).choices[0].message.content
    assert records[3]["response"]["body"]["choices"][0]["message"]["content"] == alone
    failed = json.loads(client.files.content(batch.error_file_id).text)
    assert failed["custom_id"] == "bad" and failed["response"]["status_code"] == 400
    assert batch.id in [known.id for known in client.batches.list(limit=1)]
    try:
        client.batches.cancel(batch.id)
    except openai.BadRequestError as failure:
        show("batches, cancel", failure.message)
    else:
        raise AssertionError("a batch that has ended was cancelled")
    assert client.files.delete(file.id).deleted


def batch_over(client, url, bodies):
    """The bodies of a batch's answers, in the order of its lines."""
    lines = [json.dumps({"custom_id": f"q{i}", "method": "POST", "url": url, "body": body})
             for i, body in enumerate(bodies)]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    deadline = time.monotonic() + 120
    while (batch := client.batches.retrieve(batch.id)).status in ("validating", "in_progress", "finalizing"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    show(f"batch over {url}", (batch.status, batch.request_counts.model_dump()))
    assert batch.request_counts.completed == len(bodies), batch
    records = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [record["custom_id"] for record in records] == [f"q{i}" for i in range(len(bodies))]
    return [record["response"]["body"] for record in records]


def response_batches(client):
    bodies = [{"model": "m", "input": f"What is {i} + 1?", "temperature": 0, "max_output_tokens": 8}
              for i in range(6)]
    made = batch_over(client, "/v1/responses", bodies)
    alone = client.responses.create(**bodies[4])
    assert made[4]["output"][0]["content"][0]["text"] == alone.output_text, made[4]


def embedding_batches(client):
    bodies = [{"model": "m", "input": [f"text {i}", "another"]} for i in range(6)]
    made = batch_over(client, "/v1/embeddings", bodies)
    alone = client.embeddings.create(**bodies[4], encoding_format="float").data[0].embedding
    vector = made[4]["data"][0]["embedding"]
    assert len(vector) == len(alone) and max(abs(a - b) for a, b in zip(vector, alone)) < 1e-5


def uploads(client):
    """A file in parts, each method of the client, and its own way of cutting a file."""
    content = os.urandom(3_000_000)
    digest = hashlib.md5(content).hexdigest()
    made = client.uploads.upload_file_chunked(file=content, filename="in.bin", bytes=len(content), md5=digest,
                                              mime_type="application/octet-stream", purpose="user_data",
                                              part_size=1 << 20)
    assert made.status == "completed" and client.files.content(made.file.id).read() == content
    upload = client.uploads.create(bytes=len(content), filename="in.bin", purpose="user_data",
                                   mime_type="application/octet-stream")
    pieces = content[:1_000_000], content[1_000_000:]
    end, begin = [client.uploads.parts.create(upload.id, data=piece).id for piece in reversed(pieces)]
    try:
        client.uploads.complete(upload.id, part_ids=[end, begin], md5=digest)
    except openai.BadRequestError as failure:
        show("uploads, wrong order", failure.message)
    else:
        raise AssertionError("parts in the wrong order were taken")
    done = client.uploads.complete(upload.id, part_ids=[begin, end], md5=digest)
    assert client.files.content(done.file.id).read() == content and done.file.bytes == len(content)
    content = bytes(65 << 20)  # two parts, as the client cuts by default
    made = client.uploads.upload_file_chunked(file=content, filename="large.bin", bytes=len(content),
                                              mime_type="application/octet-stream", purpose="user_data")
    show("uploads, parts of the client's size", made.file.bytes)
    assert made.file.bytes == len(content) and client.files.delete(made.file.id).deleted
    upload = client.uploads.create(bytes=1, filename="f", purpose="batch", mime_type="text/jsonl")
    assert upload.status == "pending" and client.uploads.cancel(upload.id).status == "cancelled"


def models(client):
    """The model is listed and found; it is not deleted."""
    name = client.models.list().data[0].id
    assert client.models.retrieve(name).id == name
    try:
        client.with_options(max_retries=0).models.delete(name)
    except openai.APIStatusError as failure:
        show("models, delete", failure.message)
        assert failure.status_code == 501 and "is not served here" in failure.message
    else:
        raise AssertionError("a model was deleted")


def agents(base):
    os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=base, OPENAI_AGENTS_DISABLE_TRACING="1")
    import agents as sdk
    agent = sdk.Agent(name="helper", instructions="Be brief.", model="m",
                      model_settings=sdk.ModelSettings(max_tokens=200, temperature=0))
    result = sdk.Runner.run_sync(agent, QUESTION + " Answer in one word.")
    show("openai-agents, defaults", repr(result.final_output))
    assert result.raw_responses[0].usage.output_tokens <= 200


def messages(client):
    question = [{"role": "user", "content": QUESTION}]
    answer = client.messages.create(model="m", max_tokens=16, system="Be brief.", extra_body=GREEDY,
                                    messages=question)
    show("messages", (answer.content, answer.stop_reason))
    text = "".join(block.text for block in answer.content)
    with client.messages.stream(model="m", max_tokens=16, system="Be brief.", extra_body=GREEDY,
                                messages=question) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == text and final.stop_reason == answer.stop_reason, (streamed, text)
    assert final.usage.cache_read_input_tokens > 0
    count = client.messages.count_tokens(model="m", system="Be brief.", messages=question)
    usage = answer.usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (count, usage)

    marked = {"type": "text", "text": "You answer in one word. " * 20, "cache_control": {"type": "ephemeral"}}
    uses = [client.messages.create(model="m", max_tokens=2, system=[marked], messages=question).usage
            for _ in range(2)]
    show("messages, cache_control", [(u.input_tokens, u.cache_creation_input_tokens, u.cache_read_input_tokens)
                                     for u in uses])
    total = uses[0].input_tokens + uses[0].cache_creation_input_tokens + uses[0].cache_read_input_tokens
    assert uses[0].cache_creation_input_tokens > total / 2 and 0 < uses[0].input_tokens < total / 2, uses
    assert uses[0].cache_creation.ephemeral_5m_input_tokens == uses[0].cache_creation_input_tokens
    assert uses[1].cache_read_input_tokens > total / 2 and uses[1].cache_creation_input_tokens == 0, uses

    known = client.models.list().data[0]
    assert known.type == "model" and known.display_name and known.created_at.year > 2000
    assert client.models.retrieve(known.id) == known

    tools = [{"name": "find", "description": "Finds a city.", "input_schema": SCHEMA}]
    with client.messages.stream(model="m", max_tokens=200, tools=tools, messages=question, tool_choice={
            "type": "tool", "name": "find", "disable_parallel_tool_use": True}) as stream:
        called = stream.get_final_message()
    call = called.content[-1]
    show("messages, call", (call.name, call.input, called.stop_reason))
    assert call.type == "tool_use" and set(call.input) == {"city"} and called.stop_reason == "tool_use"
    client.messages.create(model="m", max_tokens=8, tools=tools, messages=[
        *question, {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Paris"}]}])
    try:
        client.messages.create(model="m", max_tokens=8, messages=[])
    except anthropic.BadRequestError as failure:
        show("messages, error", failure.message)
    else:
        raise AssertionError("no messages were accepted")


def message_batches(client):
    """Batches of messages, each method of the client, of its beta as well."""
    params = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": QUESTION}]}
    single = client.messages.create(**params, extra_body=GREEDY)
    params |= GREEDY
    batches = client.messages.batches
    made = batches.create(requests=[{"custom_id": f"q{i}", "params": params} for i in range(10)]
                          + [{"custom_id": "bad", "params": {**params, "messages": []}}])
    assert made.processing_status == "in_progress" and made.request_counts.processing == 11
    deadline = time.monotonic() + 120
    while (ended := batches.retrieve(made.id)).processing_status != "ended":
        assert time.monotonic() < deadline, ended
        time.sleep(0.05)
    show("message batches", ended.request_counts.model_dump())
    assert (ended.request_counts.succeeded, ended.request_counts.errored) == (10, 1) and ended.ended_at
    results = {line.custom_id: line.result for line in batches.results(made.id)}
    assert results.keys() == {f"q{i}" for i in range(10)} | {"bad"}
    assert results["q7"].message.content[0].text == single.content[0].text
    assert results["bad"].error.error.type == "invalid_request_error"
    assert {line.custom_id for line in client.beta.messages.batches.results(made.id)} == results.keys()
    long = batches.create(requests=[{"custom_id": f"q{i}", "params": {**params, "max_tokens": 2000}}
                                    for i in range(200)])
    assert batches.cancel(long.id).processing_status in ("canceling", "ended")
    while batches.retrieve(long.id).processing_status != "ended":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kinds = [line.result.type for line in batches.results(long.id)]
    show("message batches, canceled", {kind: kinds.count(kind) for kind in kinds})
    assert len(kinds) == 200 and "canceled" in kinds
    assert [batch.id for batch in batches.list(limit=1)] == [long.id, made.id]  # two pages
    assert batches.delete(made.id).type == "message_batch_deleted"
    try:
        batches.retrieve(made.id)
    except anthropic.NotFoundError as failure:
        show("message batches, deleted", failure.status_code)
    else:
        raise AssertionError("a deleted batch was found")


def local(client):
    question = [{"role": "user", "content": QUESTION}]
    options = {"num_predict": 16, "temperature": 0}
    name = client.list().models[0].model
    assert client.show(name).capabilities[0] == "completion" and client.ps().models[0].model == name
    answer = client.chat(name, question, options=options)
    show("ollama chat", repr(answer.message.content))
    pieces = [part.message.content for part in client.chat(name, question, options=options, stream=True)]
    assert "".join(pieces) == answer.message.content and len(pieces) > 2
    shaped = client.chat(name, question, format=SCHEMA, options={"num_predict": 60})
    show("ollama schema", repr(shaped.message.content))
    text = client.generate(name, "The sun", raw=True, options=options)
    show("ollama generate", repr(text.response))
    assert text.eval_count <= 16 and text.done_reason in ("stop", "length")
    assert client.pull(name).status == "success"
    for refused in (lambda: client.copy(name, "b"), lambda: client.delete(name), lambda: client.push(name),
                    lambda: client.create("b", from_=name)):
        try:
            refused()
        except ollama.ResponseError as failure:
            assert failure.status_code == 501 and "is not served here" in failure.error, failure
        else:
            raise AssertionError("a model was changed")
    try:
        client.pull("other")
    except ollama.ResponseError as failure:
        show("ollama, other model", failure.error)
    else:
        raise AssertionError("another model was pulled")


def ask(url, body=None):
    """(status, JSON) of a GET, or of a POST with a body."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as failure:
        return failure.code, json.loads(failure.read())


def llama_cpp(base):
    from langchain_community.llms.llamafile import Llamafile
    model = Llamafile(base_url=base, temperature=0, n_predict=16, repeat_penalty=1)
    text = model.invoke("The sun")
    show("LangChain's Llamafile", repr(text))
    assert "".join(model.stream("The sun")) == text
    greedy = {"prompt": "The sun", "temperature": 0, "n_predict": 16}
    for prefix in ("", "/llama.cpp"):
        status, answer = ask(base + prefix + "/completion", greedy)
        assert status == 200 and answer["content"] == text and answer["stop_type"] in ("eos", "limit"), answer
    tokens = ask(base + "/llama.cpp/tokenize", {"content": text})[1]["tokens"]
    assert ask(base + "/tokenize", {"content": text})[1]["tokens"] == tokens
    assert ask(base + "/llama.cpp/detokenize", {"tokens": tokens})[1]["content"] == text
    prompt = ask(base + "/apply-template", {"messages": [{"role": "user", "content": QUESTION}]})[1]["prompt"]
    assert QUESTION in prompt
    client = openai.OpenAI(base_url=base + "/llama.cpp/v1", api_key="none")
    assert client.completions.create(model="m", prompt="The sun", temperature=0, max_tokens=16).choices[0].text == text
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched
    import litellm
    answer = litellm.completion(model="llamafile/m", api_base=base + "/llama.cpp/v1", temperature=0, max_tokens=16,
                                messages=[{"role": "user", "content": QUESTION}])
    show("LiteLLM, llamafile", repr(answer.choices[0].message.content))
    assert answer.usage.completion_tokens <= 16
    status, props = ask(base + "/props")
    assert props["total_slots"] == len(ask(base + "/slots")[1]) and props["chat_template"]
    status, refused = ask(base + "/completion", {**greedy, "mirostat": 2})
    show("llama.cpp, error", refused)
    assert status == 501 and refused["error"]["type"] == "not_supported_error"


def ranked(base):
    import cohere
    import litellm
    texts = ["A dog lay on the rug.", "The cat sat on the mat."]
    client = cohere.ClientV2(base_url=base, api_key="none")
    answer = client.rerank(model="m", query="The cat sat on the mat.", documents=texts, top_n=1)
    show("cohere, rerank", [(r.index, r.relevance_score) for r in answer.results])
    assert [r.index for r in answer.results] == [1]
    for provider in ("jina_ai", "cohere", "infinity"):
        api_base = base + "/v2/rerank" if provider == "cohere" else base
        answer = litellm.rerank(model=f"{provider}/m", query="The cat sat on the mat.", documents=texts, top_n=2,
                                return_documents=False, api_base=api_base, api_key="none")
        show(f"LiteLLM, {provider}", [r["index"] for r in answer.results])
        assert [r["index"] for r in answer.results] == [1, 0]


def moderations(base):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none")
    answer = client.moderations.create(input=["one text", "another"], model="m")
    scores = [result.category_scores.model_dump() for result in answer.results]
    show("moderations", scores)
    for result, score in zip(answer.results, scores):
        assert abs(score["hate"] + score["safe"] - 1) < 1e-5 and result.flagged == (score["hate"] >= 0.5)


def main():
    with tempfile.TemporaryDirectory() as storage, Server("--storage-path", storage) as server:
        base = f"http://127.0.0.1:{server.port}"
        client = openai.OpenAI(base_url=base + "/v1", api_key="none")
        responses(client)
        response_logprobs(client)
        background(client)
        conversations(client)
        stored_chats(client)
        batches(client)
        response_batches(client)
        uploads(client)
        models(client)
        agents(base + "/v1")
        messages(anthropic.Anthropic(base_url=base, api_key="none"))
        message_batches(anthropic.Anthropic(base_url=base, api_key="none"))
        local(ollama.Client(host=base))
        llama_cpp(base)
    with Server("--api-key", "secret") as server:
        base = f"http://127.0.0.1:{server.port}"
        anthropic.Anthropic(base_url=base, api_key="secret").messages.create(
            model="m", max_tokens=2, messages=[{"role": "user", "content": "Hi"}])
    with tempfile.TemporaryDirectory() as storage, \
            Server("--is-embedding", "--rerank-format", "jina", "--storage-path", storage) as server:
        base = f"http://127.0.0.1:{server.port}"
        ranked(base)
        embedding_batches(openai.OpenAI(base_url=base + "/v1", api_key="none"))
    head = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "hate", "1": "safe"}}
    with Server("--model-path", os.path.join(ROOT, "share", "default_model"), "--load-format", "dummy",
                "--json-model-override-args", json.dumps(head)) as server:
        moderations(f"http://127.0.0.1:{server.port}")
    print("the clients of the other dialects work")


main()
