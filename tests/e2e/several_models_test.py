#!/usr/bin/env python3
"""Several models behind one address, at the built binary: requests to all of them at once, models that stop when idle
and come back, memory that returns to the system, files that are wrong, loads that fail."""
import json
import os
import shutil
import tempfile
import threading
import unittest

from harness import ROOT, Server, run, wait_until

GOLDENS = os.path.join(ROOT, "tests", "golden", "models")
SHIPPED = os.path.join(ROOT, "share", "default_model")
GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
IDS = {"input_ids": [5, 6, 7, 8], "sampling_params": GREEDY}
MIB = 1 << 20


def entry(name, path, **members):
    lines = ["[[model]]", f'name = "{name}"', f"model_path = {json.dumps(path)}"]
    return "\n".join(lines + [f"{key} = {json.dumps(value)}" for key, value in members.items()]) + "\n"


def golden(name, **members):
    return entry(name, os.path.join(GOLDENS, name), skip_tokenizer_init=True, **members)


def large_model(folder, layers=12):
    """Weights that are drawn, of about 280 MiB."""
    with open(os.path.join(GOLDENS, "llama_tied_llama3", "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.update(hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers, num_attention_heads=8,
                  num_key_value_heads=4, head_dim=128, torch_dtype="bfloat16", dtype="bfloat16")
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder


class SeveralModelsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def file(self, text):
        with open(self.path("models.toml"), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path("models.toml")

    def serve(self, text, *flags):
        server = Server("--served-models", self.file(text), "--device", "cpu", *flags)
        self.addCleanup(server.__exit__)
        return server

    @staticmethod
    def states(server):
        return {each["id"]: each["state"] for each in json.loads(server.get("/v1/models")[2])["data"]}

    def alone(self, name):
        """What a server of this model alone answers."""
        with Server("--model-path", os.path.join(GOLDENS, name), "--skip-tokenizer-init", "--device", "cpu") as one:
            return one.post("/generate", IDS)["output_ids"]

    def test_both_serve_at_once_as_they_do_alone(self):
        names = ["llama_tied_llama3", "qwen3_head_dim"]
        expected = {name: self.alone(name) for name in names}
        self.assertNotEqual(*expected.values())
        server = self.serve("".join(golden(name) for name in names))
        wrong = []

        def client(name):
            for _ in range(10):
                answer = server.post("/generate", {**IDS, "model": name})["output_ids"]
                if answer != expected[name]:
                    wrong.append((name, answer))

        clients = [threading.Thread(target=client, args=(name,)) for name in names * 3]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        self.assertEqual(wrong, [])
        self.assertEqual(self.states(server), {name: "ready" for name in names})
        self.assertEqual(server.post("/generate", IDS)["output_ids"], expected[names[0]])
        self.assertEqual(server.metric("espalier:model_loads_total"), 2)

    def test_a_model_with_text_and_one_without_have_what_is_theirs(self):
        server = self.serve(entry("shipped", SHIPPED, aliases=["default"]) + golden("qwen3_head_dim"))
        chat = server.post("/v1/chat/completions", {"model": "default", "max_tokens": 4, "messages": [
            {"role": "user", "content": "Hello"}]})
        self.assertEqual(chat["usage"]["completion_tokens"], 4)
        self.assertGreater(server.post("/tokenize", {"model": "shipped", "prompt": "Hello"})["count"], 0)
        status, _, text = server.request("POST", "/tokenize", {"model": "qwen3_head_dim", "prompt": "Hello"})
        self.assertEqual(status, 400, text)
        status, _, text = server.request("POST", "/v1/completions", {"model": "third", "prompt": "Hello"})
        self.assertEqual((status, json.loads(text)["error"]["code"]), (404, "model_not_found"))
        lines = list(server.stream("/v1/completions", {"model": "shipped", "prompt": "Hello", "max_tokens": 3}))
        self.assertIsNone(lines[-1])

    def test_an_idle_model_stops_and_comes_back(self):
        server = self.serve(golden("qwen3_head_dim", keep_alive=1) +
                            golden("llama_tied_llama3", keep_alive=1, on_idle="sleep", preload=True))
        self.assertEqual(self.states(server), {"qwen3_head_dim": "unloaded", "llama_tied_llama3": "ready"})
        first = {name: server.post("/generate", {**IDS, "model": name})["output_ids"] for name in self.states(server)}
        wait_until(lambda: self.states(server) == {"qwen3_head_dim": "unloaded", "llama_tied_llama3": "asleep"},
                   "both are idle")
        again = {name: server.post("/generate", {**IDS, "model": name})["output_ids"] for name in first}
        self.assertEqual(first, again)
        self.assertEqual(server.metric("espalier:model_loads_total"), 4)

    def test_an_open_session_keeps_its_model(self):
        server = self.serve(golden("qwen3_head_dim", keep_alive=0))
        session = server.post("/open_session", {"capacity_of_str_len": 1000})
        server.post("/generate", {**IDS, "session_params": {"id": session}})
        self.assertEqual(self.states(server), {"qwen3_head_dim": "ready"})
        server.request("POST", "/close_session", {"session_id": session})
        wait_until(lambda: self.states(server) == {"qwen3_head_dim": "unloaded"}, "the session is closed")

    def test_unloading_gives_the_memory_back(self):
        def resident():
            with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
                return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

        server = self.serve(entry("large", large_model(self.path("large")), skip_tokenizer_init=True,
                                  load_format="dummy", memory="32MiB", keep_alive=1))
        before = resident()
        server.post("/generate", IDS)
        loaded = resident()
        self.assertGreater(loaded - before, 100 * MIB)
        wait_until(lambda: self.states(server) == {"large": "unloaded"}, "the model is idle")
        self.assertLess(resident() - before, (loaded - before) / 4)

    def test_memory_that_does_not_suffice_is_taken_from_the_idle(self):
        models = [large_model(self.path(name)) for name in ("a", "b", "c")]
        server = self.serve('memory_limit = "700MiB"\n' + "".join(
            entry(os.path.basename(path), path, skip_tokenizer_init=True, load_format="dummy", memory="16MiB",
                  keep_alive=-1) for path in models))
        for name in "abab":
            server.post("/generate", {**IDS, "model": name})
        self.assertEqual(self.states(server), {"a": "ready", "b": "ready", "c": "unloaded"})
        server.post("/generate", {**IDS, "model": "c"})
        self.assertEqual(self.states(server), {"a": "unloaded", "b": "ready", "c": "ready"})
        self.assertEqual(server.metric("espalier:model_loads_total"), 3)

    def test_a_load_that_fails_is_answered_and_tried_again(self):
        broken = self.path("broken")
        shutil.copytree(os.path.join(GOLDENS, "qwen3_head_dim"), broken)
        os.rename(os.path.join(broken, "model.safetensors"), self.path("kept"))
        server = self.serve(golden("llama_tied_llama3") + entry("broken", broken, skip_tokenizer_init=True))
        for _ in range(2):
            status, _, text = server.request("POST", "/generate", {**IDS, "model": "broken"})
            self.assertEqual(status, 503, text)
            self.assertIn("'broken'", json.loads(text)["message"])
        server.post("/generate", IDS)
        os.rename(self.path("kept"), os.path.join(broken, "model.safetensors"))
        self.assertEqual(len(server.post("/generate", {**IDS, "model": "broken"})["output_ids"]), 8)

    def test_an_abort_reaches_every_model(self):
        server = self.serve(golden("llama_tied_llama3") + golden("qwen3_head_dim"))
        long = {**IDS, "sampling_params": {**GREEDY, "max_new_tokens": 100}, "model": "qwen3_head_dim", "rid": "mine"}
        self.assertEqual(server.post("/pause_generation", {"model": "qwen3_head_dim", "mode": "in_place"})["status"], "ok")
        answers = []
        client = threading.Thread(target=lambda: answers.append(server.post("/generate", long)))
        client.start()
        wait_until(lambda: any(each["num_requests"] for each in json.loads(server.get("/v1/models")[2])["data"]),
                   "the request is there")
        server.post("/generate", {**IDS, "model": "llama_tied_llama3"})  # which is not paused
        server.request("POST", "/abort_request", {"rid": "mine"})
        server.post("/continue_generation", {"model": "qwen3_head_dim"})
        client.join()
        self.assertEqual(answers[0]["meta_info"]["finish_reason"]["type"], "abort")

    def test_batches_reach_the_models_that_their_lines_name(self):
        server = self.serve(golden("llama_tied_llama3") + golden("qwen3_head_dim"), "--storage-path", self.path("store"))
        lines = "".join(json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {
            "model": name, "prompt": [5, 6, 7, 8], "max_tokens": 2, "ignore_eos": True}}) + "\n"
            for name in ("llama_tied_llama3", "qwen3_head_dim"))
        form = ('--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: '
                f'form-data; name="file"; filename="a.jsonl"\r\n\r\n{lines}\r\n--b--\r\n')
        status, _, text = server.request("POST", "/v1/files", form,
                                         {"Content-Type": "multipart/form-data; boundary=b"})
        self.assertEqual(status, 200, text)
        batch = server.post("/v1/batches", {"input_file_id": json.loads(text)["id"], "endpoint": "/v1/completions",
                                            "completion_window": "24h"})
        wait_until(lambda: json.loads(server.get(f"/v1/batches/{batch['id']}")[2])["status"] == "completed",
                   "the batch is done")
        done = json.loads(server.get(f"/v1/batches/{batch['id']}")[2])
        self.assertEqual(done["request_counts"], {"total": 2, "completed": 2, "failed": 0})
        self.assertEqual(set(self.states(server).values()), {"ready"})

    def test_files_that_are_wrong_are_refused_with_line_and_member(self):
        for text, words in (
                (golden("qwen3_head_dim") + "memroy = 3\n", ["line 5", "memroy"]),
                (golden("qwen3_head_dim") + 'keep_alive = "long"\n', ["line 5", "keep_alive"]),
                (golden("qwen3_head_dim") + golden("qwen3_head_dim"), ["line 5", "'qwen3_head_dim' names two models"]),
                ("[[model]\n", ["line 1"]),
                ("", ["no model"])):
            ended = run("serve", "--served-models", self.file(text), "--port", "0")
            self.assertEqual(ended.returncode, 2, ended.stderr)
            for word in words:
                self.assertIn(word, ended.stderr)
        ended = run("serve", "--served-models", self.file(golden("qwen3_head_dim")), "--port", "0", "--served-model-name", "x")
        self.assertIn("--served-model-name is a setting of one model", ended.stderr)

    def test_the_server_ends_while_requests_run_and_wait(self):
        server = self.serve(golden("llama_tied_llama3") + golden("qwen3_head_dim"), "--drain-timeout", "1")
        server.post("/pause_generation", {"mode": "in_place"})
        client = threading.Thread(target=lambda: server.request("POST", "/generate", IDS))
        client.start()
        wait_until(lambda: json.loads(server.get("/v1/models")[2])["data"][0]["num_requests"] == 1, "it runs")
        self.assertEqual(server.stop(), 0)
        client.join()


if __name__ == "__main__":
    unittest.main()
