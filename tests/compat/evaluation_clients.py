"""lm-eval (EleutherAI's evaluation harness) against a server: log-probabilities of continuations and greedy texts
through its client of completions, and a task of its own making with choices and with free answers, whose data lie in
a local file. tests/compat/run installs it in an environment of its own."""
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import ROOT, Server  # noqa: E402

MODEL = os.path.join(ROOT, "share", "default_model")
PAIRS = [("The sun", " is warm"), ("Once upon a", " time"), ("Once upon a", " stone")]


def instance(kind, arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def likelihoods(server, model):
    """The client's sums are those of the tokens' log-probabilities, and it knows which continuation is greedy."""
    got = model.loglikelihood([instance("loglikelihood", pair) for pair in PAIRS], disable_tqdm=True)
    for (context, continuation), (logprob, is_greedy) in zip(PAIRS, got):
        ids = [server.post("/v1/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
               for text in (context, context + continuation)]
        assert ids[1][:len(ids[0])] == ids[0], "the continuation begins within a token"
        tokens = server.post("/generate", {
            "input_ids": ids[1], "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0}})["meta_info"]
        behind = range(len(ids[0]), len(ids[1]))
        expected = sum(tokens["input_token_logprobs"][i][0] for i in behind)
        greedy = all(tokens["input_top_logprobs"][i][0][1] == ids[1][i] for i in behind)
        assert abs(expected - logprob) < 1e-3 and is_greedy == greedy, (context, continuation, logprob, expected)
    print(f"lm-eval, loglikelihood: {len(PAIRS)} continuations")


def generations(server, model):
    until = {"until": ["."], "max_gen_toks": 12, "temperature": 0}
    text = model.generate_until([instance("generate_until", ("The sun", until))], disable_tqdm=True)[0]
    # The client sends token ids, without a token of the beginning.
    ids = server.post("/v1/tokenize", {"prompt": "The sun", "add_special_tokens": False})["tokens"]
    expected = server.post("/v1/completions", {"prompt": ids, "max_tokens": 12, "temperature": 0, "stop": ["."]})
    expected = expected["choices"][0]["text"]
    assert text == expected, (text, expected)
    print(f"lm-eval, generate_until: {text!r}")


def tasks(model):
    rows = [{"question": f"{a} and {b}", "choices": [f" {a}", f" {b}"], "label": 0, "answer": "x"}
            for a, b in (("red", "blue"), ("dog", "cat"), ("sun", "moon"), ("tea", "milk"))]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
        data.write("\n".join(json.dumps(row) for row in rows))
        data.flush()
        common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": data.name}}, "test_split": "test",
                  "doc_to_text": "{{question}}:"}
        choice = {**common, "task": "choices", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
                  "doc_to_target": "{{label}}", "metric_list": [{"metric": "acc"}]}
        free = {**common, "task": "free", "output_type": "generate_until", "doc_to_target": "{{answer}}",
                "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8}, "metric_list": [{"metric": "exact_match"}]}
        results = lm_eval.simple_evaluate(model=model, tasks=[choice, free], bootstrap_iters=0)["results"]
    assert 0 <= results["choices"]["acc,none"] <= 1 and results["free"]["exact_match,none"] == 0, results
    print(f"lm-eval, a task of choices and one of texts: {results['choices']['acc,none']}")


def example(base):
    """The program of examples/clients, as its reader runs it."""
    program = os.path.join(ROOT, "examples", "clients", "lm_evaluation_harness.py")
    done = subprocess.run([sys.executable, "-B", program], env={**os.environ, "ESPALIER_URL": base}, capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.returncode == 0 and "accuracy" in done.stdout, done.stdout + done.stderr[-2000:]
    print(f"lm-eval, the example: {done.stdout.strip().splitlines()[-1]}")


def main():
    with Server("--model-path", MODEL) as server:
        model = LocalCompletionsAPI(base_url=f"http://127.0.0.1:{server.port}/v1/completions", model="m",
                                    tokenizer=MODEL, num_concurrent=2, max_retries=1, max_length=1024)
        likelihoods(server, model)
        generations(server, model)
        tasks(model)
        example(f"http://127.0.0.1:{server.port}")


main()
