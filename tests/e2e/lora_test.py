"""LoRA adapters at the built binary: stated at the start, two at once over HTTP, loaded and unloaded
while requests run, and refused where they do not fit."""
import concurrent.futures
import json
import os
import random
import re
import struct
import tempfile

from harness import ROOT, Server, run, wait_until

MODEL = os.path.join(ROOT, "tests", "golden", "models", "llama_tied_llama3")
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
RANK = 4


def shapes():
    """Of the adapted matrices, from the header of the model's file."""
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return {name[:-len(".weight")]: entry["shape"] for name, entry in header.items()
            if name.endswith(tuple(f"{n}.weight" for n in names))}


def write_adapter(folder, seed, rank=RANK, config=None, module=None):
    """As PEFT's save_pretrained writes it."""
    os.makedirs(folder)
    rng = random.Random(seed)
    header, data = {}, b""
    for name, (rows, columns) in shapes().items():
        for factor, shape, deviation in (("lora_A", [rank, columns], 0.1), ("lora_B", [rows, rank], 1.0)):
            values = [rng.gauss(0, deviation) for _ in range(shape[0] * shape[1])]
            header[f"base_model.model.{module or name}.{factor}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
            data += struct.pack(f"<{len(values)}f", *values)
        if module:
            break
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 8, **(config or {})}, file)
    return folder


def post(server, path, body, key=None):
    status, _, text = server.request("POST", path, body, {"Authorization": f"Bearer {key}"} if key else {})
    return status, json.loads(text)


def ids(server, lora, **more):
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}}
    status, answer = post(server, "/generate", {**body, **({"lora_path": lora} if lora else {}), **more}, "user")
    assert status == 200, answer
    return answer["output_ids"]


def completion(server, model, **more):
    return post(server, "/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0,
                                            **more}, "user")


def check_answers(server):
    names = ["", "a", "b"]
    alone = [ids(server, name) for name in names]
    assert len({tuple(x) for x in alone}) == 3, alone
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda i: ids(server, names[i % 3]), range(48)))
    assert all(answer == alone[i % 3] for i, answer in enumerate(answers))
    # A list has one adapter for each prompt.
    status, batch = post(server, "/generate", {
        "input_ids": [PROMPT] * 3, "lora_path": [None, "a", "b"],
        "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}}, "user")
    assert status == 200 and [each["output_ids"] for each in batch] == alone, batch
    return alone


def check_names(server):
    _, _, text = server.request("GET", "/v1/models", headers={"Authorization": "Bearer user"})
    models = {each["id"]: each["parent"] for each in json.loads(text)["data"]}
    assert models == {"tiny": None, "a": "tiny", "b": "tiny"}, models
    for model in ("a", "tiny:a", "other:a"):
        status, answer = completion(server, model)
        assert status == 200 and answer["model"] == model, answer
    status, answer = completion(server, "tiny:none")
    assert status == 400 and "no adapter 'none' is loaded" in answer["message"] and "; there is a, b" in answer["message"], answer
    status, answer = completion(server, "tiny", lora_path="none")
    assert status == 400 and "no adapter 'none'" in answer["message"], answer


def check_loading(server, folder, alone):
    path = write_adapter(os.path.join(folder, "c"), 2)  # the weights of b
    body = {"lora_name": "c", "lora_path": path}
    assert post(server, "/load_lora_adapter", body, "user")[0] == 403
    status, answer = post(server, "/load_lora_adapter", body, "admin")
    assert status == 200 and answer["success"] and answer["loaded_adapters"]["c"] == path, answer
    assert ids(server, "c") == alone[2]
    for lora, message in ((body, "an adapter 'c' is loaded"),
                          ({"lora_name": "d", "lora_path": "/none"}, "/none/adapter_config.json")):
        status, answer = post(server, "/load_lora_adapter", lora, "admin")
        assert status == 400 and not answer["success"] and message in answer["error_message"], answer
    for name, more, message in (
            ("dora", {"config": {"use_dora": True}}, "'use_dora' is true"),
            ("large", {"rank": 17}, "the rank 17 is above the 16 of --max-lora-rank"),
            ("lost", {"module": "model.layers.7.self_attn.q_proj"}, "which is no adapted matrix of this model")):
        path = write_adapter(os.path.join(folder, name), 1, **more)
        status, answer = post(server, "/load_lora_adapter", {"lora_name": name, "lora_path": path}, "admin")
        assert status == 400 and message in answer["error_message"], answer
    # Requests that run keep their adapter; new ones do not find it.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ids, server, "c") for _ in range(4)]
        status, answer = post(server, "/unload_lora_adapter", {"lora_name": "c"}, "admin")
        assert status == 200 and sorted(answer["loaded_adapters"]) == ["a", "b"], answer
        for each in running:
            try:
                assert each.result() == alone[2]
            except AssertionError as refused:  # it came too late
                assert "no adapter 'c' is loaded" in str(refused), refused
    status, answer = post(server, "/unload_lora_adapter", {"lora_name": "c"}, "admin")
    assert status == 400 and "no adapter 'c' is loaded" in answer["error_message"], answer


def main():
    with tempfile.TemporaryDirectory() as folder:
        a = write_adapter(os.path.join(folder, "a"), 1)
        b = write_adapter(os.path.join(folder, "b"), 2)
        common = ["--model-path", MODEL, "--skip-tokenizer-init", "--device", "cpu", "--dtype", "float32"]
        refused = run("serve", "--port", "0", *common, "--lora-paths", f"a={a}", "--max-lora-rank", "2")
        assert refused.returncode != 0 and "above the 2 of --max-lora-rank" in refused.stderr, refused.stderr
        with Server(*common, "--lora-paths", f"a={a}", f"b={b}", "--served-model-name", "tiny",
                    "--max-lora-rank", "16", "--max-loras-per-batch", "2",
                    "--api-key", "user", "--admin-api-key", "admin") as server:
            alone = check_answers(server)
            check_names(server)
            check_loading(server, folder, alone)
            assert check_answers(server) == alone
            def server_info():
                return json.loads(server.request("GET", "/server_info",
                                                 headers={"Authorization": "Bearer admin"})[2])

            # An answer may reach its client before its request gives its adapter back.
            wait_until(lambda: all(x["num_requests"] == 0 for x in server_info()["lora_adapters"]),
                       "adapters without requests")
            info = server_info()
            assert info["enable_lora"] and [x["lora_name"] for x in info["lora_adapters"]] == ["a", "b"], info
            assert all(x["size_bytes"] > 0 for x in info["lora_adapters"])
            _, _, text = server.request("GET", "/metrics")
            bytes_held = sum(x["size_bytes"] for x in info["lora_adapters"])
            for name, value in (("", bytes_held), ("_limit", info["max_lora_bytes"])):
                line = re.search(rf"^espalier:lora_adapter_bytes{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
                assert line and float(line[1]) == value, text
            assert server.stop() == 0
        with Server(*common, "--served-model-name", "tiny", "--api-key", "user") as server:
            status, answer = completion(server, "tiny", lora_path="a")
            assert status == 400 and "set --enable-lora" in answer["message"], answer
            assert server.stop() == 0
    print("three kinds of requests beside each other, each with its own answer")


main()
