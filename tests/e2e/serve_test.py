#!/usr/bin/env python3
"""The server with the model that ships, from outside: answers, streams, faults, signals."""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from harness import BINARY, PATIENCE_S, ROOT, Server, clean_environment, run, wait_until

GREEDY = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
# Runs until the context is full.
LONG = {"temperature": 0, "max_new_tokens": None, "ignore_eos": True}


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--enable-metrics")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_it_says_what_it_plans_and_when_it_is_ready(self):
        output = self.server.output()
        for words in ("plan ", "kv_tokens=", "threads=", "ready url=http://127.0.0.1:"):
            self.assertIn(words, output)

    def test_it_tells_every_setting_but_keys(self):
        with open(os.path.join(ROOT, "docs", "flags.md"), encoding="utf-8") as f:
            flags = re.findall(r"^\| `--([a-z0-9-]+)`", f.read(), re.MULTILINE)
        told = json.loads(self.server.get("/server_info")[2])
        names = {"control-vector": "control_vectors"}  # given one by one, told together
        self.assertEqual([flag for flag in flags if names.get(flag, flag.replace("-", "_")) not in told],
                         ["api-key", "admin-api-key", "router-api-key"])
        self.assertEqual(told["vocab_size"], 4096)

    def test_health(self):
        for path in ("/health", "/health_generate"):
            self.assertEqual(self.server.get(path)[0], 200, path)

    def test_generate_streams_what_it_answers(self):
        body = {"text": "The sun", "sampling_params": GREEDY}
        whole = self.server.post("/generate", body)
        self.assertEqual(whole["meta_info"]["completion_tokens"], 16)
        self.assertEqual(whole["meta_info"]["finish_reason"]["type"], "length")
        events = list(self.server.stream("/generate", body))
        self.assertIsNone(events[-1])
        self.assertEqual(events[-2]["text"], whole["text"])
        self.assertEqual(events[-2]["meta_info"]["completion_tokens"], 16)
        self.assertGreater(len(events), 3)
        for before, after in zip(events, events[1:-1]):
            self.assertTrue(after["text"].startswith(before["text"]), (before, after))

    def test_a_batch_answers_each_as_if_alone(self):
        texts = ["The sun", "One day a", "Two and two"]
        together = self.server.post("/generate", {"text": texts, "sampling_params": GREEDY})
        alone = [self.server.post("/generate", {"text": t, "sampling_params": GREEDY}) for t in texts]
        self.assertEqual([a["text"] for a in together], [a["text"] for a in alone])

    def test_a_second_request_finds_its_prefix(self):
        text = "A long beginning that two requests share, word for word, number 4711. "
        params = {**GREEDY, "max_new_tokens": 1}
        self.server.post("/generate", {"text": text + "First", "sampling_params": params})
        meta = self.server.post("/generate", {"text": text + "Second", "sampling_params": params})
        meta = meta["meta_info"]
        self.assertGreater(meta["cached_tokens"], meta["prompt_tokens"] // 2)

    def test_chat_and_its_stream_agree(self):
        body = {"model": "default", "messages": [{"role": "user", "content": "Say something."}],
                "temperature": 0, "max_tokens": 12}
        whole = self.server.post("/v1/chat/completions", body)
        text = whole["choices"][0]["message"]["content"]
        events = list(self.server.stream("/v1/chat/completions", body))
        self.assertIsNone(events[-1])
        streamed = "".join((e["choices"][0]["delta"].get("content") or "")
                           for e in events[:-1] if e["choices"])
        self.assertEqual(streamed, text)
        self.assertIn(whole["choices"][0]["finish_reason"], ("stop", "length"))

    def test_a_schema_is_kept(self):
        schema = {"type": "object", "required": ["colour", "count"], "additionalProperties": False,
                  "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer"}}}
        answer = self.server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Tell me a story about a dog."}],
            "temperature": 1, "seed": 3, "max_tokens": 200,
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "thing", "schema": schema}}})
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            fields = json.loads(choice["message"]["content"])
            self.assertIn(fields["colour"], ("red", "green"))
            self.assertIsInstance(fields["count"], int)
        answer = self.server.post("/generate", {
            "text": "Is water wet? Answer:", "sampling_params": {"regex": " (yes|no|maybe)",
                                                                 "max_new_tokens": 16}})
        self.assertIn(answer["text"], (" yes", " no", " maybe"))

    def test_tokenize_and_detokenize_are_inverse(self):
        tokens = self.server.post("/tokenize", {"prompt": "Grüße, 世界! 12"})["tokens"]
        self.assertIn("Grüße, 世界! 12",
                      self.server.post("/detokenize", {"tokens": tokens})["text"])

    def test_bad_input_is_told_and_nothing_else_is_disturbed(self):
        for path, body in (("/generate", "{"), ("/generate", {}),
                           ("/generate", {"text": "x", "sampling_params": {"top_p": 7}}),
                           ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": -1}}),
                           ("/generate", {"text": "x " * 200000}),
                           ("/generate", {"input_ids": [-5]}),
                           ("/v1/chat/completions", {"messages": 3}),
                           ("/v1/completions", {"prompt": "x", "n": "many"})):
            status, _, text = self.server.request("POST", path, body)
            self.assertEqual(status, 400, (path, text))
            self.assertIn("message", text)
        self.assertEqual(self.server.get("/no/such/route")[0], 404)
        self.assertEqual(self.server.get("/generate")[0], 405)
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_a_client_that_goes_away_frees_its_place(self):
        body = json.dumps({"text": "On and on", "sampling_params": LONG,
                           "stream": True})
        with socket.create_connection(("127.0.0.1", self.server.port)) as client:
            client.sendall(f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
                           f"\r\n{body}".encode())
            self.assertIn(b"200", client.recv(200))
            # Closed with a reset, as a killed client's socket is.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: self.running() == 0, "the request of the client that left is gone")

    def running(self):
        state = json.loads(self.server.get("/server_info")[2])["internal_states"][0]
        return state["num_running_reqs"] + state["num_waiting_reqs"]

    def test_abort_ends_a_request(self):
        events = self.server.stream("/generate", {"text": "On and on", "rid": "to-abort",
                                                  "sampling_params": LONG})
        next(events)
        self.assertEqual(self.server.request("POST", "/abort_request", {"rid": "to-abort"})[0], 200)
        *_, last, end = events
        self.assertIsNone(end)
        self.assertIn("abort", json.dumps(last))

    def test_flush_cache_empties_it(self):
        body = {"text": "Something that is cached for a while, until it is not.",
                "sampling_params": {**GREEDY, "max_new_tokens": 1}}
        self.server.post("/generate", body)
        wait_until(lambda: self.running() == 0, "nothing runs")
        self.assertEqual(self.server.request("POST", "/flush_cache")[0], 200)
        self.assertEqual(self.server.post("/generate", body)["meta_info"]["cached_tokens"], 0)


class SpeculationTest(unittest.TestCase):
    """Answers with draft tokens are those without, and what was drafted is counted."""

    TEXT = "one two three four five six seven eight nine ten\n" * 3 + "one two three"

    def answers(self, server):
        found = []
        for parameters in ({"temperature": 0}, {"temperature": 0.8, "sampling_seed": 5},
                           {"temperature": 0.8, "sampling_seed": 6, "min_p": 0.05, "n": 2},
                           {"temperature": 0, "stop": ["seven"]},
                           {"temperature": 0, "repetition_penalty": 1.2},
                           {"temperature": 1, "sampling_seed": 7, "logit_bias": {"70": 2.0}}):
            parameters = {"max_new_tokens": 60, "ignore_eos": True, **parameters}
            for _ in range(2):
                found.append(server.post("/generate", {
                    "text": self.TEXT, "return_logprob": True, "sampling_params": parameters}))
        return found

    @staticmethod
    def flat(answers):
        flat = []
        for answer in answers:
            for one in answer if isinstance(answer, list) else [answer]:
                meta = one["meta_info"]
                flat.append((one["text"], one["output_ids"], meta["finish_reason"],
                             meta["output_token_logprobs"], meta["cached_tokens"]))
        return flat

    def verified(self, server):
        """The meta_info of an answer with draft tokens: how many are drafted depends on measured times."""
        repeated = {"text": self.TEXT, "sampling_params": {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}}
        found = []

        def verifies():
            found.append(server.post("/generate", repeated)["meta_info"])
            return found[-1].get("spec_verify_ct", 0) > 0

        wait_until(verifies, "draft tokens are verified")
        return found[-1]

    def test_answers_are_those_without_draft_tokens(self):
        with Server("--random-seed", "3") as plain:
            expected = self.answers(plain)
        for algorithm in ("NGRAM", "RADIX"):
            with Server("--random-seed", "3", "--speculative-algorithm", algorithm) as drafting:
                self.assertEqual(self.flat(self.answers(drafting)), self.flat(expected), algorithm)
        with Server("--random-seed", "3", "--speculative-algorithm", "COMBINED",
                    "--speculative-num-draft-tokens", "6", "--enable-metrics") as drafting:
            found = self.answers(drafting)
            self.assertEqual(self.flat(found), self.flat(expected))
            meta = self.verified(drafting)
            self.assertLessEqual(meta["spec_accept_rate"], 1)
            self.assertGreaterEqual(meta["spec_accept_length"], 1)
            self.assertEqual(sum(meta["spec_accept_histogram"]), meta["spec_verify_ct"])
            accepted = sum(n * count for n, count in enumerate(meta["spec_accept_histogram"]))
            self.assertEqual(accepted, meta["accepted_drafts"])
            self.assertGreater(drafting.metric("sglang:spec_verify_calls_total"), 0)
            state = json.loads(drafting.get("/server_info")[2])["internal_states"][0]
            self.assertGreaterEqual(state["avg_spec_accept_length"], 1)
            self.assertGreater(sum(d["spec_verify_ct"] for d in state["spec_drafters"].values()), 0)
            # How much is drafted depends on measured times, so an accepted token may take a while.
            repeated = {"text": self.TEXT, "sampling_params": {"temperature": 0, "max_new_tokens": 60}}

            def accepts():
                drafting.post("/generate", repeated)
                return drafting.metric("sglang:spec_accept_length") > 1

            wait_until(accepts, "draft tokens are accepted")

    def test_a_draft_head_changes_no_answer(self):
        with Server("--random-seed", "3") as plain:
            expected = self.answers(plain)
        with Server("--random-seed", "3", "--device", "cpu", "--speculative-algorithm", "EAGLE3",
                    "--speculative-num-steps", "4", "--enable-metrics") as drafting:
            found = self.answers(drafting)
            self.assertEqual(self.flat(found), self.flat(expected))
            self.assertGreater(self.verified(drafting)["spec_verify_ct"], 0)
            info = json.loads(drafting.get("/server_info")[2])
            self.assertEqual(info["speculative_num_steps"], 4)
            head = info["internal_states"][0]["spec_drafters"]["head"]
            self.assertGreater(head["spec_verify_ct"], 0)
            self.assertIn('drafter="head"', drafting.get("/metrics")[2])

    def test_what_is_not_known_is_refused(self):
        def refused(*args):
            done = run("serve", "--device", "cpu", *args)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr + done.stdout
        self.assertIn("NGRAM", refused("--speculative-algorithm", "EAGLE"))
        self.assertIn("set 1", refused("--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "4"))
        self.assertIn("draft heads are not divided", refused("--speculative-algorithm", "EAGLE3", "--pp-size", "2"))
        self.assertIn("set speculative_draft_model_path", refused("--speculative-algorithm", "STANDALONE"))
        self.assertIn("the draft head", refused("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/tmp"))
        self.assertIn("multi-token prediction", refused("--speculative-algorithm", "NEXTN"))


class SettingsTest(unittest.TestCase):
    def test_a_file_the_environment_and_flags_in_their_order(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "espalier.toml")
            with open(path, "w", encoding="utf-8") as f:
                f.write("served-model-name = 'from-file'\ncontext_length = 96\napi_key = 'key-1'\n")
            with Server("--config", path, "--api-key", "key-2",
                        env={"ESPALIER_SERVED_MODEL_NAME": "from-environment"}) as server:
                self.assertEqual(server.get("/v1/models")[0], 401)
                self.assertEqual(server.get("/v1/models", {"Authorization": "Bearer key-1"})[0], 401)
                status, _, text = server.get("/v1/models", {"Authorization": "Bearer key-2"})
                self.assertEqual(status, 200)
                model = json.loads(text)["data"][0]
                self.assertEqual(model["id"], "from-environment")
                self.assertEqual(model["max_model_len"], 96)
                self.assertNotIn("key-2", server.get("/server_info",
                                                     {"Authorization": "Bearer key-2"})[2])
                self.assertNotIn("key-2", server.output())


    def test_a_cache_smaller_than_the_context_is_served_with_a_warning(self):
        with Server("--context-length", "512", "--max-total-tokens", "192") as server:
            self.assertRegex(server.output(), " W .*context of 512 tokens.*KV cache of 192")
            status, _, text = server.request("POST", "/generate", {
                "input_ids": [5] * 200, "sampling_params": {"max_new_tokens": 1}})
            self.assertEqual(status, 400)
            self.assertIn("longer than the model's context length", text)
            self.assertIn("--max-total-tokens", text)
            # Together they would outgrow the cache.
            prompts = [[i] * 90 for i in range(5, 9)]
            answers = server.post("/generate", {"input_ids": prompts, "sampling_params": {
                "max_new_tokens": 60, "temperature": 0, "ignore_eos": True}})
            self.assertEqual([answer["meta_info"]["completion_tokens"] for answer in answers], [60] * 4)


class AddressTest(unittest.TestCase):
    def test_an_ipv6_address_is_served_and_named_as_a_url(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError as why:
            self.skipTest(f"no IPv6 here: {why}")
        with Server("--host", "::1") as server:
            url = f"http://[::1]:{server.port}"
            self.assertIn(f"ready url={url} ", server.output())
            with urllib.request.urlopen(f"{url}/v1/models", timeout=PATIENCE_S) as answer:
                self.assertEqual(answer.status, 200)


def blocks(pid, number):
    """Whether a process keeps a signal from its first thread, to take it in another."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        mask = next(line for line in f if line.startswith("SigBlk"))
    return int(mask.split()[1], 16) >> (number - 1) & 1 == 1


class SignalTest(unittest.TestCase):
    def test_each_stop_signal_drains_and_exits_with_0(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Server() as server:
                params = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
                events = server.stream("/generate", {"text": "x", "sampling_params": params})
                next(events)
                server.process.send_signal(number)
                rest = list(events)  # what runs is finished, not cut
                self.assertIsNone(rest[-1])
                self.assertEqual(rest[-2]["meta_info"]["completion_tokens"], 40)
                self.assertEqual(server.process.wait(60), 0)

    def test_a_signal_while_a_model_is_loaded_ends_at_once(self):
        model = json.loads(run("inspect", "--json").stdout)["model_path"]
        for number in (signal.SIGTERM, signal.SIGINT):
            # 570 million weights to draw, of which few are drawn.
            process = subprocess.Popen(
                [BINARY, "serve", "--port", "0", "--device", "cpu", "--model-path", model,
                 "--load-format", "dummy", "--json-model-override-args",
                 '{"num_hidden_layers": 400}'],
                env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
            with process:
                wait_until(lambda: blocks(process.pid, number), "the server takes signals")
                process.send_signal(number)
                output = process.communicate(timeout=PATIENCE_S)[0]
            self.assertEqual(process.returncode, 0, output)
            self.assertIn("while the model was loaded", output)
            self.assertNotIn("ready", output)

    def test_a_second_signal_ends_at_once(self):
        with Server() as server:
            events = server.stream("/generate", {"text": "x", "sampling_params": LONG})
            next(events)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping" in server.output(), "the first signal is seen")
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(10), 0)

    def test_the_drain_timeout_bounds_a_request_that_goes_on(self):
        with Server("--drain-timeout", "0.2") as server:
            events = server.stream("/generate", {"text": "x", "sampling_params": LONG})
            next(events)
            started = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - started, 10)


class CrowdTest(unittest.TestCase):
    def test_a_hundred_streams_at_once(self):
        counts = []
        with Server() as server:
            def one(number):
                params = {"temperature": 1, "max_new_tokens": 12, "ignore_eos": True}
                *_, last, end = server.stream("/generate", {"text": f"Number {number}",
                                                            "sampling_params": params})
                counts.append((end, last["meta_info"]["completion_tokens"]))
            threads = [threading.Thread(target=one, args=(i,)) for i in range(100)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(counts, [(None, 12)] * 100)


if __name__ == "__main__":
    unittest.main()
