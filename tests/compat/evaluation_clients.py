"""lm-eval (EleutherAI's evaluation harness) against a server: log-probabilities of continuations and greedy texts
through its client of completions, greedy texts through its client of chats, and tasks of its own making with choices
and with free answers, whose data lie in a local file. tests/compat/run installs it in an environment of its own.

Runs on the model that ships, or on the one that ESPALIER_MODEL_PATH names (tests/compat/run --real: SmolLM2), whose
tokenizer is that of the folder which `espalier models convert` makes of the GGUF. It must choose
right in five of six rows."""
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "e2e"))
from harness import ROOT, Server, run  # noqa: E402

REAL_MODEL = os.environ.get("ESPALIER_MODEL_PATH")
MODEL = REAL_MODEL or os.path.join(ROOT, "share", "default_model")
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


QUESTIONS = [("The capital of France is", " Paris", " stone"), ("The colour of grass is", " green", " seven"),
             ("The opposite of hot is", " cold", " Monday"), ("One plus one is", " two", " grass"),
             ("Fish live in the", " water", " letter"), ("At night the sky is", " dark", " spoon")]


def write_data(file):
    rows = [{"question": question, "choices": [right, wrong], "label": 0, "answer": right}
            for question, right, wrong in QUESTIONS]
    file.write("\n".join(json.dumps(row) for row in rows))
    file.flush()
    return {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": file.name}}, "test_split": "test",
            "doc_to_text": "{{question}}"}


def free_task(common, limit):
    return {**common, "task": "free", "output_type": "generate_until", "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": limit, "temperature": 0},
            "metric_list": [{"metric": "exact_match", "ignore_case": True, "ignore_punctuation": True}]}


def texts_of(done):
    """{question: answer} of the task of free answers."""
    return {sample["doc"]["question"]: sample["resps"][0][0] for sample in done["samples"]["free"]}


def tasks(server, model):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
        common = write_data(data)
        choice = {**common, "task": "choices", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}",
                  "doc_to_target": "{{label}}", "metric_list": [{"metric": "acc"}]}
        done = lm_eval.simple_evaluate(model=model, tasks=[choice, free_task(common, 1)], bootstrap_iters=0)
    results = done["results"]
    accuracy, exact = results["choices"]["acc,none"], results["free"]["exact_match,none"]
    assert 0 <= accuracy <= 1 and 0 <= exact <= 1, results
    assert len(texts_of(done)) == len(QUESTIONS), done["samples"]
    assert not REAL_MODEL or accuracy >= 5 / 6, results
    print(f"lm-eval, a task of choices and one of texts: accuracy {accuracy}, exact {exact}")


def chats(server):
    """The client of chats: the task's answers are those that the server gives to the same messages."""
    model = LocalChatCompletion(base_url=f"http://127.0.0.1:{server.port}/v1/chat/completions", model="m",
                                num_concurrent=2, max_retries=1)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
        done = lm_eval.simple_evaluate(model=model, tasks=[free_task(write_data(data), 16)], bootstrap_iters=0,
                                       apply_chat_template=True)
    answers = texts_of(done)
    assert list(answers) == [question for question, _, _ in QUESTIONS], answers
    for question, answer in answers.items():
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 16, "temperature": 0, "stop": ["\n"]}
        expected = server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        assert answer == expected, (question, answer, expected)
    print(f"lm-eval, chats: {len(answers)} answers, the first {answers[QUESTIONS[0][0]]!r}")


def example(base, tokenizer):
    """The program of examples/clients, as its reader runs it."""
    program = os.path.join(ROOT, "examples", "clients", "lm_evaluation_harness.py")
    environment = {**os.environ, "ESPALIER_URL": base, "ESPALIER_MODEL_PATH": tokenizer}
    done = subprocess.run([sys.executable, "-B", program], env=environment, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0 and "accuracy" in done.stdout, done.stdout + done.stderr[-2000:]
    print(f"lm-eval, the example: {done.stdout.strip().splitlines()[-1]}")


def tokenizer_folder(folder):
    """Where lm-eval finds the model's tokenizer: it reads folders alone."""
    if os.path.isdir(MODEL):
        return MODEL
    done = run("models", "convert", MODEL, os.path.join(folder, "model"))
    assert done.returncode == 0, done.stderr
    return os.path.join(folder, "model")


def main():
    with tempfile.TemporaryDirectory() as folder, Server("--model-path", MODEL) as server:
        tokenizer = tokenizer_folder(folder)
        model = LocalCompletionsAPI(base_url=f"http://127.0.0.1:{server.port}/v1/completions", model="m",
                                    tokenizer=tokenizer, num_concurrent=2, max_retries=1, max_length=1024)
        likelihoods(server, model)
        generations(server, model)
        tasks(server, model)
        chats(server)
        example(f"http://127.0.0.1:{server.port}", tokenizer)


main()
