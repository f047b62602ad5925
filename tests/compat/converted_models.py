"""What `espalier models convert` and `quantize` write, loaded by other programs: folders by transformers, GGUFs by
llama.cpp. Each says what Espalier says of the same file: token ids, chat prompts, log-probabilities, greedy answers,
defaults of sampling.

The source is the model that ships, a folder, or with ESPALIER_MODEL_PATH another: tests/compat/run --real names the
GGUF of real_model.py.
"""
import json
import os
import sys
import tempfile

import torch
import transformers

from real_model import CHATS, PROMPTS, TEXTS, THREADS, LlamaCpp, post
from harness import ROOT, Server, run

SOURCE = os.environ.get("ESPALIER_MODEL_PATH") or os.path.join(ROOT, "share", "default_model")
TEXT_TOKENS = 400
ANSWER_TOKENS = 48
# The largest difference of two log-probabilities, in nats. transformers computes in F32, and Espalier is told to as
# well. llama.cpp stores keys and values in F16. For quantised weights both engines round activations to 8 bits, and
# they round differently (real_model.py has the details).
NEAR = {"transformers": 2e-3, "F32": 0.05, "Q8_0": 0.5}
SAMPLING = ("temperature", "top_p", "min_p", "top_k", "repetition_penalty")


def made(command, source, result, *flags):
    done = run("models", command, source, result, *flags)
    assert done.returncode == 0, done.stderr
    print(done.stdout.strip().replace(os.path.dirname(result) + os.sep, ""))
    return result


def serve(path, *flags):
    return Server("--model-path", path, "--device", "cpu", "--num-threads", str(THREADS), *flags)


def ids_of(server, text):
    return post(server, "/tokenize", {"prompt": text})["tokens"]


def chat_ids(server, messages):
    return post(server, "/v1/tokenize", {"messages": messages})["tokens"]


def long_text():
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as file:
        return file.read()


def answer(server, ids):
    """[its tokens, the log-probability of each]."""
    meta = post(server, "/generate", {"input_ids": ids, "return_logprob": True,
                                      "sampling_params": {"temperature": 0, "max_new_tokens": ANSWER_TOKENS}})
    return meta["output_ids"], [entry[0] for entry in meta["meta_info"]["output_token_logprobs"]]


def behind(server, ids, tokens):
    """How much likelier the choice of the server is than the last of these tokens, in nats."""
    meta = post(server, "/generate", {"input_ids": ids + tokens, "return_logprob": True, "logprob_start_len": len(ids) + len(tokens) - 2,
                                      "top_logprobs_num": 1, "sampling_params": {"max_new_tokens": 0}})["meta_info"]
    return meta["input_top_logprobs"][-1][0][0] - meta["input_token_logprobs"][-1][0]


def same_answer(server, ids, ours, theirs, near):
    """How many tokens are equal; the first other one is nearly as likely."""
    for i, (mine, other) in enumerate(zip(ours, theirs)):
        if mine != other:
            nats = behind(server, ids, theirs[:i + 1])
            assert nats < near, f"token {i} is {nats:.4f} nats behind: {ours[:i + 1]}, {theirs[:i + 1]}"
            return i
    assert len(ours) == len(theirs), (ours, theirs)
    return len(ours)


class Transformers:
    def __init__(self, folder):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def tokenize(self, text):
        return self.tokenizer(text)["input_ids"]

    def chat_ids(self, messages):
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.inference_mode()
    def logprobs(self, ids):
        """Of each token after the first."""
        rows = torch.log_softmax(self.model(torch.tensor([ids])).logits[0, :-1].double(), -1)
        return rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    @torch.inference_mode()
    def greedy(self, ids):
        """Up to what its generation_config.json says ends an answer."""
        prompt = torch.tensor([ids])
        out = self.model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=ANSWER_TOKENS, do_sample=False)
        return out[0, len(ids):].tolist()


class Gguf(LlamaCpp):
    def tokenize(self, text):
        """With what the vocabulary adds; llama.cpp takes it from the beginning of a template's text, so it comes once."""
        return self.post("/tokenize", {"content": text, "parse_special": True, "add_special": True})["tokens"]


def same_texts(server, theirs):
    for text in TEXTS:
        assert ids_of(server, text) == theirs.tokenize(text), (text, ids_of(server, text), theirs.tokenize(text))
    for messages in CHATS:
        assert chat_ids(server, messages) == theirs.chat_ids(messages), messages


def folder_in_transformers(folder, defaults):
    theirs = Transformers(folder)
    with serve(folder, "--dtype", "float32") as server:
        same_texts(server, theirs)
        ids = ids_of(server, long_text())[:TEXT_TOKENS]
        scored = post(server, "/generate", {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}})
        ours = [entry[0] for entry in scored["meta_info"]["input_token_logprobs"][1:]]
        worst = max(abs(a - b) for a, b in zip(ours, theirs.logprobs(ids), strict=True))
        assert worst < NEAR["transformers"], worst
        prompts = [ids_of(server, text) for text in PROMPTS] + [chat_ids(server, messages) for messages in CHATS]
        equal = [same_answer(server, ids, answer(server, ids)[0], theirs.greedy(ids), NEAR["transformers"]) for ids in prompts]
    found = theirs.model.generation_config
    for name, value in defaults.items():
        assert abs(getattr(found, name) - value) < 1e-6, (name, value, found)
    print(f"{os.path.basename(folder)} in transformers: {len(TEXTS)} texts and {len(CHATS)} chats have the same ids; log-probabilities of "
          f"{len(ids)} tokens within {worst:.1e}; greedy answers equal for {equal} tokens; defaults {defaults}")


def gguf_in_llama_cpp(path, near, *flags):
    theirs = Gguf(path)
    with serve(path, *flags) as server:
        same_texts(server, theirs)
        equal, worst = [], 0
        for ids in [ids_of(server, text) for text in PROMPTS] + [chat_ids(server, messages) for messages in CHATS]:
            ours, logprobs = answer(server, ids)
            said = theirs.post("/completion", {"prompt": ids, "n_predict": ANSWER_TOKENS, "temperature": 0, "return_tokens": True,
                                               "cache_prompt": False, "n_probs": 1})
            if said["stop_type"] == "eos" and len(ours) == len(said["tokens"]) + 1:
                ours.pop()  # llama.cpp does not tell the token that ends an answer
            equal.append(same_answer(server, ids, ours, said["tokens"], near))
            for mine, other in zip(logprobs[:equal[-1]], said["completion_probabilities"]):
                worst = max(worst, abs(mine - other["logprob"]))
        assert worst < near, worst
    print(f"{os.path.basename(path)} in llama.cpp: {len(TEXTS)} texts and {len(CHATS)} chats have the same ids; greedy answers equal for {equal} "
          f"tokens, log-probabilities within {worst:.1e}")


def main():
    torch.set_num_threads(1)  # threads that wait for each other are slow beside other work
    with tempfile.TemporaryDirectory() as folder:
        gguf = made("convert", SOURCE, os.path.join(folder, "model.gguf"), "--type", "F32")
        defaults = {}
        stated = os.path.join(SOURCE, "generation_config.json")
        if os.path.isfile(stated):
            with open(stated, encoding="utf-8") as file:
                defaults = {name: value for name, value in json.load(file).items() if name in SAMPLING}
        folder_in_transformers(made("convert", gguf, os.path.join(folder, "folder-F32"), "--type", "F32"), defaults)
        folder_in_transformers(made("convert", gguf, os.path.join(folder, "folder-BF16")), defaults)
        gguf_in_llama_cpp(gguf, NEAR["F32"], "--dtype", "float32")
        gguf_in_llama_cpp(made("quantize", SOURCE, os.path.join(folder, "model-Q8_0.gguf"), "--type", "Q8_0"), NEAR["Q8_0"])


if __name__ == "__main__":
    sys.exit(main())
