"""llama.cpp's own routes beside llama.cpp's server, with the trained model of real_model.py: the same requests, the
same members, and the same greedy text. Runs where ESPALIER_REAL_MODEL is set, as real_model.py does."""
import http.client
import json
import os
import sys

from real_model import THREADS, LlamaCpp, model_path
from harness import Server

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "n_predict": 8}
# Members whose value is a matter of speed, of what was asked before, or of the other server's build.
VARIES = {"timings", "id_slot", "generation_settings", "logprob", "top_logprobs"}
COMPLETIONS = [
    {"prompt": PROMPT},
    {"prompt": PROMPT, "return_tokens": True, "stop": ["The"]},
    {"prompt": PROMPT, "n_probs": 2},
    {"prompt": PROMPT, "n_predict": 2, "response_fields": ["content", "generation_settings/n_predict"]},
    {"prompt": [1, 2, "abc"], "n_predict": 2},
    {"prompt": ["a", "b"], "n_predict": 2},
    {"prompt": [[1, 2], "b", ["a", 3]], "n_predict": 2},
    {"prompt": {"prompt_string": "abc"}, "n_predict": 2},
    {"prompt": "x", "grammar": 'root ::= "yes" | "no"', "response_fields": ["stop_type", "stopping_word"]},
]
STREAMS = [{"prompt": PROMPT}, {"prompt": PROMPT, "n_probs": 1}, {"prompt": PROMPT, "timings_per_token": True}]
BROKEN = [({"n_predict": 2}, 400), ({"prompt": "x", "n_predict": "two"}, 400), ({"prompt": []}, 400),
          ({"prompt": "x", "grammar": "root ::= missing"}, 400)]
TEXTS = [{"content": "Hello world"}, {"content": "Hello world é€😀", "with_pieces": True},
         {"content": "<|im_start|>x", "parse_special": False}, {"content": ["Hi", 5, "you"]}, {}]


class Client:
    def __init__(self, host, port, prefix=""):
        self.address, self.prefix = (host, port), prefix

    def request(self, path, body=None):
        connection = http.client.HTTPConnection(*self.address, timeout=600)
        try:
            connection.request("GET" if body is None else "POST", self.prefix + path,
                               None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def ask(self, path, body=None):
        status, text = self.request(path, body)
        assert status == 200, (path, body, text[:300])
        return json.loads(text)

    def events(self, body):
        status, text = self.request("/completion", {**body, "stream": True})
        assert status == 200, text
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def same(ours, theirs, where):
    """The same members everywhere, and equal values but for those that vary."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), (where, sorted(ours.keys() ^ theirs.keys()))
        for name, value in theirs.items():
            if name not in VARIES:
                same(ours[name], value, f"{where}.{name}")
            elif isinstance(value, dict):
                assert ours[name].keys() == value.keys(), (where, name, sorted(ours[name].keys() ^ value.keys()))
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), (where, ours, theirs)
        for i, value in enumerate(theirs):
            same(ours[i], value, f"{where}[{i}]")
    else:
        assert ours == theirs, (where, ours, theirs)


def completions(ours, theirs):
    for body in COMPLETIONS:
        asked = {**GREEDY, **body}
        same(ours.ask("/completion", asked), theirs.ask("/completion", asked), json.dumps(body))
    for body in STREAMS:
        asked = {**GREEDY, **body}
        same(ours.events(asked), theirs.events(asked), json.dumps(body))
    print(f"/completion: {len(COMPLETIONS)} answers and {len(STREAMS)} streams have the same members and text")


def errors(ours, theirs):
    for body, status in BROKEN:
        for server in (ours, theirs):
            code, text = server.request("/completion", body)
            error = json.loads(text)["error"]
            assert code == status and error.keys() == {"code", "message", "type"}, (body, code, text)
            assert error["code"] == status and error["type"] == "invalid_request_error", text
    print(f"errors: {len(BROKEN)} have the same status, type and members")


def texts(ours, theirs):
    for body in TEXTS:
        same(ours.ask("/tokenize", body), theirs.ask("/tokenize", body), json.dumps(body))
    for ids in ([1, 2, 19556], []):
        same(ours.ask("/detokenize", {"tokens": ids}), theirs.ask("/detokenize", {"tokens": ids}), str(ids))
    messages = {"messages": [{"role": "user", "content": "Hi"}]}
    same(ours.ask("/apply-template", messages), theirs.ask("/apply-template", messages), "/apply-template")
    print(f"/tokenize, /detokenize, /apply-template: {len(TEXTS) + 3} equal answers")


def state(ours, theirs):
    mine, other = ours.ask("/props"), theirs.ask("/props")
    for name in ("chat_template", "bos_token", "eos_token"):
        assert mine[name] == other[name], (name, mine[name], other[name])
    missing = (other["default_generation_settings"]["params"].keys() -
               mine["default_generation_settings"]["params"].keys())
    assert not missing, missing
    slots = ours.ask("/slots")
    assert len(slots) == mine["total_slots"] and slots[0].keys() <= theirs.ask("/slots")[0].keys(), slots[0]
    for path in ("/health", "/lora-adapters"):
        assert ours.ask(path) == theirs.ask(path), path
    print("/props, /slots, /health, /lora-adapters: the same members")


def main():
    wanted = os.environ.get("ESPALIER_REAL_MODEL")
    if not wanted:
        print("skipped: set ESPALIER_REAL_MODEL to `download` or to the GGUF of SmolLM2-135M-Instruct")
        return
    path = model_path(wanted)
    llama_cpp = LlamaCpp(path)  # serves while it lives
    theirs = Client(*llama_cpp.address)
    with Server("--model-path", path, "--device", "cpu", "--num-threads", str(THREADS),
                "--max-running-requests", "8", "--served-model-name", path) as server:
        ours = Client("127.0.0.1", server.port, "/llama.cpp")
        for compare in (completions, errors, texts, state):
            compare(ours, theirs)
    sys.stdout.flush()


main()
