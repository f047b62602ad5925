"""What programs written for SGLang take for granted: the launch lines that they start a server with, what they send, and
what they read in answers. Each check names one habit; `serve` must keep it, or refuse it by name with advice.

Runs on the model that ships, or on the one that ESPALIER_MODEL_PATH names."""
import json
import math
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import Server, run, wait_until  # noqa: E402

NAME = "org/name"  # as a client knows the model
LAUNCH = ("--tp", "1", "--dp-size", "1", "--trust-remote-code", "--attention-backend", "flashinfer", "--log-level-http",
          "warning", "--skip-server-warmup", "--enable-mixed-chunk", "--grammar-backend", "xgrammar", "--dtype", "auto",
          "--load-format", "safetensors", "--served-model-name", NAME)
# Flags and values that ask for what is not there, with a word of the advice that ends the start.
REFUSED = ((("--enable-custom-logit-processor",), "code from requests is never run"),
           (("--log-requests-target", "stdout"), "2>FILE"), (("--schedule-policy", "routing-key"), "take lpm"),
           (("--completion-template", "x"), "--chat-template"), (("--kv-cache-dtype", "fp8_e5m2"), "fp8_e4m3"))
QUESTION = "Question: Is Paris the Capital of France? Answer:"
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
HI = [{"role": "user", "content": "Hi"}]


def refusal(server, path, body):
    """(status, the error's members) of a request that must fail."""
    status, _, text = server.request("POST", path, body)
    assert status >= 400, (path, body, text[:300])
    answer = json.loads(text)
    return status, answer if "message" in answer else answer["error"]


def generate(server, text, params=None, **fields):
    return server.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 1, **(params or {})}, **fields})


def refused_flags():
    for flags, advice in REFUSED:
        done = run("serve", *flags)
        assert done.returncode == 2 and advice in done.stderr, (flags, done.returncode, done.stderr)


def dialects(server):
    server.post("/v1/responses", {"model": NAME, "input": "Hi", "max_output_tokens": 2})
    server.post("/v1/messages", {"model": NAME, "messages": HI, "max_tokens": 2})
    server.post("/api/chat", {"model": NAME, "messages": HI, "stream": False, "options": {"num_predict": 2}})


def response_length(server):
    body = {"model": NAME, "input": "Hi", "max_output_tokens": 9, "ignore_eos": True, "top_k": 5, "stop": []}
    assert server.post("/v1/responses", body)["usage"]["output_tokens"] == 9


def reasoning_in_each_chunk(server):
    chunks = [c for c in server.stream("/v1/chat/completions", {"model": NAME, "messages": HI, "max_tokens": 3}) if c]
    assert chunks and all("reasoning_content" in c["choices"][0]["delta"] for c in chunks), chunks


def context_wording(server):
    long = " word" * 200_000
    body = {"model": NAME, "messages": [{"role": "user", "content": long}]}
    status, error = refusal(server, "/v1/chat/completions", body)
    assert status == 400 and "longer than the model's context length" in error["message"], error
    body = {"model": NAME, "messages": HI, "max_completion_tokens": 10**8}
    assert "max_completion_tokens is too large" in refusal(server, "/v1/chat/completions", body)[1]["message"]


def logprobs_after_mask_and_temperature(server):
    odds = []
    for temperature in (0.5, 1, 2):
        top = generate(server, QUESTION, {"regex": "( Yes| No)", "temperature": temperature}, return_logprob=True,
                       top_logprobs_num=5, return_text_in_logprobs=True)["meta_info"]["output_top_logprobs"][0]
        chances = {text: math.exp(value) for value, _, text in top if value > -1e30}
        assert abs(sum(chances.values()) - 1) < 1e-3 and all(t.strip() in "Yes No" for t in chances), chances
        best, second = sorted(chances.values(), reverse=True)[:2]
        odds.append(temperature * math.log(best / second))
    assert max(odds) - min(odds) < 0.05, odds
    biased = generate(server, QUESTION, {"logit_bias": {"5": 100}, "temperature": 1}, return_logprob=True)["meta_info"]
    chance, token = biased["output_token_logprobs"][0][:2]
    assert token == 5 and chance > -1e-3, biased


def names_of_models(server):
    listed = json.loads(server.get("/v1/models")[2])["data"]
    assert [m["id"] for m in listed] == [NAME], listed
    assert json.loads(server.get("/v1/models/" + NAME)[2])["id"] == NAME


def first_call_of_a_session(server):
    session = server.post("/open_session", {"capacity_of_str_len": 1000})
    generate(server, "a", session_params={"id": session, "rid": None, "offset": -1, "replace": True})
    assert server.request("POST", "/close_session", {"session_id": session})[0] == 200


def gap_by_suffix(server):
    status, _, text = server.request("POST", "/v1/completions", {"model": NAME, "prompt": "a", "suffix": "b"})
    if status == 200:
        assert os.environ.get("ESPALIER_MODEL_PATH"), "the model that ships has no tokens for it"
        return
    assert status == 400 and "needs a model whose vocabulary has tokens for it" in json.loads(text)["message"], text


def count_of_streamed_logprobs(server):
    body = {"text": "a", "return_logprob": True, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    last = [event for event in server.stream("/generate", body) if event][-1]["meta_info"]
    assert last["output_token_logprobs_length"] == 3, last


def top_logprobs_of_a_prefill(server):
    meta = generate(server, "a b c", {"max_new_tokens": 0}, return_logprob=True, top_logprobs_num=2)["meta_info"]
    assert len(meta["output_top_logprobs"][0]) == 2, meta


def grammar_of_llguidance(server):
    text = generate(server, "a", {"ebnf": '%llguidance {}\nstart: "yes" | "no"', "max_new_tokens": 8})["text"]
    assert text in ("yes", "no"), text


def tools(server):
    count = len(server.post("/v1/tokenize", {"messages": HI, "tools": [TOOL]})["tokens"])
    assert count > len(server.post("/v1/tokenize", {"messages": HI})["tokens"])
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [
            {"type": "function", "function": {"name": "now"}}]}}
        answer = server.post("/v1/chat/completions", {"model": NAME, "messages": HI, "tools": [TOOL],
                                                      "tool_choice": choice, "max_tokens": 64, "temperature": 0})
        assert mode == "auto" or answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now", answer
    custom = {"model": NAME, "messages": HI, "tools": [{"type": "custom", "custom": {"name": "x"}}]}
    assert "tools[0].type" in refusal(server, "/v1/chat/completions", custom)[1]["message"]


def small_wording(server):
    twice = {"text": ["a", "b"], "rid": ["r", "r"], "sampling_params": {"max_new_tokens": 1}}
    assert "Duplicate request IDs" in refusal(server, "/generate", twice)[1]["message"]
    nested = {"text": "a", "return_logprob": True, "token_ids_logprob": [[1, 2], [3]]}
    assert refusal(server, "/generate", nested)[0] == 400
    beyond = {"input_ids": [10**8], "sampling_params": {"max_new_tokens": 1}}
    assert "the model's are in [0, " in refusal(server, "/generate", beyond)[1]["message"]
    assert server.get("/ready")[0] == 200


def scores(server):
    answer = server.post("/v1/score", {"query": [5, 6], "items": [[7], [8, 9]], "label_token_ids": [20, 30]})
    assert answer["object"] == "scoring" and len(answer["scores"]) == 2, answer
    assert server.post("/v1/score", {"query": [5], "items": [], "label_token_ids": [20]})["scores"] == []


def full_queue():
    """A request of a higher priority takes the place of one that waits; the refusal has OpenAI's members."""
    long = {"max_new_tokens": 1500, "ignore_eos": True}
    ends = {}

    def ask(name, priority, params):
        ends[name] = server.request("POST", "/generate", {"text": "a", "priority": priority, "sampling_params": params})

    with Server("--enable-priority-scheduling", "--max-running-requests", "1", "--max-queued-requests", "1",
                "--disable-priority-preemption") as server:
        threads = [threading.Thread(target=ask, args=("runs", 9, long))]
        threads[0].start()
        wait_until(lambda: server.metric("sglang:num_running_reqs") == 1, "the first request runs")
        threads.append(threading.Thread(target=ask, args=("gives way", 1, {"max_new_tokens": 1})))
        threads[1].start()
        wait_until(lambda: server.metric("sglang:num_queue_reqs") == 1, "the second request waits")
        threads.append(threading.Thread(target=ask, args=("overtakes", 5, {"max_new_tokens": 1})))
        threads[2].start()
        for thread in threads:
            thread.join()
        assert ends["overtakes"][0] == 200, ends
        evicted = json.loads(ends["gives way"][2])
        assert ends["gives way"][0] == 503 and evicted["object"] == "error", ends
        assert "aborted by a higher priority request" in evicted["message"], evicted
        assert 'priority="' in server.get("/metrics")[2]


def vectors():
    with Server("--is-embedding") as server:
        assert len(server.post("/v1/embeddings", {"model": NAME, "input": "a"})["data"][0]["embedding"]) > 1
        assert refusal(server, "/v1/embeddings", {"model": NAME, "input": ""})[0] == 400


def key_of_every_page():
    with Server("--api-key", "k", "--skip-tokenizer-init", "--tokenizer-worker-num", "4") as server:
        assert [server.get(path)[0] for path in ("/", "/openapi.json", "/v1/models", "/health")] == [401, 401, 401, 200]
        ids = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
        assert len(json.loads(server.request("POST", "/generate", ids, {"Authorization": "Bearer k"})[2])["output_ids"]) == 2


ON_ONE_SERVER = (dialects, response_length, reasoning_in_each_chunk, context_wording, logprobs_after_mask_and_temperature,
                 names_of_models, first_call_of_a_session, gap_by_suffix, count_of_streamed_logprobs,
                 top_logprobs_of_a_prefill, grammar_of_llguidance, tools, small_wording, scores)


def main():
    failed = []

    def check(call, *args):
        try:
            call(*args)
            print(f"kept: {call.__name__}", flush=True)
        except (AssertionError, KeyError, IndexError) as error:
            failed.append(call.__name__)
            print(f"broken: {call.__name__}: {type(error).__name__}: {str(error)[:500]}", flush=True)

    check(refused_flags)
    with Server(*LAUNCH) as server:
        for call in ON_ONE_SERVER:
            check(call, server)
    for call in (full_queue, vectors, key_of_every_page):
        check(call)
    sys.exit(f"broken: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
