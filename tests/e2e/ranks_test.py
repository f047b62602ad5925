"""A model that ranks and stages divide, at the built binary: the same answers as undivided, also in a crowd."""
import json
import os
import threading

from harness import ROOT, Server, run

PROMPTS = ["The capital of France is", "The capital of Spain is", "1 2 3 4 5 6", "Q: What is"]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def ask(server, prompt, **more):
    status, _, body = server.request("POST", "/generate", {
        "text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True, **more}})
    assert status == 200, body
    return json.loads(body)["text"]


GOLDENS = os.path.join(ROOT, "tests", "golden", "models")


def tokens_of(model, *args):
    """Greedy tokens of a golden model, which has no tokenizer."""
    with Server("--model-path", os.path.join(GOLDENS, model), "--device", "cpu", "--dtype", "float32",
                "--skip-tokenizer-init", *args) as server:
        return [server.post("/generate", {"input_ids": [5, 6, 7, i], "sampling_params": {
            "temperature": 0, "max_new_tokens": 16, "ignore_eos": True}})["output_ids"] for i in range(8, 14)]


def stages():
    """Stages of a pipeline: refusals, the plan, and the tokens of the whole model."""
    model = "llama_untied_bias"
    path = os.path.join(GOLDENS, model)
    for flags, message in ((("--pp-size", "4"), "pp_size is 4, but the model has 3 layers"),
                           (("--pp-size", "0"), "--pp-size: 0 is out of range"),
                           (("--pp-size", "2", "--enable-lora"), "leave --enable-lora or --pp-size out")):
        refused = run("serve", "--port", "0", "--device", "cpu", "--model-path", path, "--skip-tokenizer-init", *flags)
        assert refused.returncode != 0 and message in refused.stderr, refused.stderr
    plan = run("inspect", path, "--device", "cpu", "--pipeline-parallel-size", "2", "--json")
    parts = json.loads(plan.stdout)["stages"]
    assert [p["embeds"] for p in parts] == [True, False] and [p["samples"] for p in parts] == [False, True], parts
    assert sum(p["num_layers"] for p in parts) == 3 and abs(sum(p["of_step"] for p in parts) - 1) < 1e-6, parts
    table = run("inspect", path, "--device", "cpu", "--pp", "2").stdout
    assert "stage 0" in table and "embedding, layer" in table and ", head" in table, table
    for name in (model, "gemma3", "deepseek_v2"):
        whole = tokens_of(name)
        assert tokens_of(name, "--pp-size", "3") == whole, name
        assert tokens_of(name, "--pp-size", "2", "--tp-size", "2") == whole, name


def main():
    for value, message in (("5", "tp_size is 5, but the model has 6 heads"), ("0", "--tp-size: 0 is out of range")):
        refused = run("serve", "--port", "0", "--device", "cpu", "--tp-size", value)
        assert refused.returncode != 0 and message in refused.stderr, refused.stderr

    refused = run("serve", "--port", "0", "--device", "cpu", "--tp-size", "2", "--ep-size", "2")
    assert refused.returncode != 0 and "the model has no experts" in refused.stderr, refused.stderr
    for model in ("qwen3_moe", "gpt_oss"):
        whole = tokens_of(model)
        assert tokens_of(model, "--tp-size", "4", "--ep-size", "2") == whole, model
    plan = run("inspect", os.path.join(GOLDENS, "qwen3_moe"), "--device", "cpu", "--tp-size", "4", "--ep-size", "2",
               "--json")
    ranks = json.loads(plan.stdout)["ranks"]
    half = ranks[0]["num_experts"]
    assert [r["first_expert"] for r in ranks] == [0, 0, half, half], ranks

    stages()

    with Server("--device", "cpu") as server:
        want = [ask(server, prompt) for prompt in PROMPTS]
    with Server("--device", "cpu", "--pp-size", "2", "--chunked-prefill-size", "16") as server:
        status, info = server.get("/server_info")[0::2]
        assert status == 200 and json.loads(info)["pp_size"] == 2, info
        assert [ask(server, prompt) for prompt in PROMPTS] == want
    with Server("--device", "cpu", "--tp", "2") as server:
        status, info = server.get("/server_info")[0::2]
        assert status == 200 and json.loads(info)["tp_size"] == 2, info
        assert [ask(server, prompt) for prompt in PROMPTS] == want
        answers = [None] * 16
        threads = [threading.Thread(target=lambda i=i: answers.__setitem__(i, ask(server, PROMPTS[i % 4])))
                   for i in range(len(answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == want * 4, answers
        number = ask(server, "n:", json_schema=json.dumps(SCHEMA), ignore_eos=False, max_new_tokens=60)
        assert isinstance(json.loads(number)["n"], int), number


main()
