"""`espalier route` before real servers of the shipped model: streams equal to direct ones, hits of
cache_aware beside round_robin, workers that die, stall, come and go."""
import http.server
import json
import os
import queue
import re
import signal
import tempfile
import threading
import time
import unittest

import harness


class PodsApi(http.server.BaseHTTPRequestHandler):
    """Lists one pod, and its events as `events` gets them, as the API of a cluster does."""
    protocol_version = "HTTP/1.1"
    events, asked = queue.Queue(), []

    @staticmethod
    def pod(version):
        return {"kind": "Pod", "metadata": {"uid": "u1", "name": "worker-0", "resourceVersion": str(version)},
                "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}}

    def do_GET(self):
        self.asked.append((self.path, self.headers["Authorization"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if "watch=true" not in self.path:
            body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": []}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Connection", "close")
        self.end_headers()
        while (event := self.events.get()) is not None:
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_):
        pass


# Fast checks, so that the tests need not wait; a worker that computes answers them all the same.
CHECKS = ["--health-check-interval-secs", "0.2", "--health-check-timeout-secs", "1", "--slow-start", "0"]
WORKER = ["--max-total-tokens", "16384", "--num-threads", "1"]
MODEL = os.path.join(harness.ROOT, "share", "default_model")
GREEDY = {"temperature": 0, "max_tokens": 24}


class Router(harness.Server):
    COMMAND = "route"

    def __init__(self, workers, *args):
        urls = [f"http://127.0.0.1:{w.port}" for w in workers]
        super().__init__(*(["--worker", *urls] if urls else []), *CHECKS, *args)
        harness.wait_until(lambda: self.healthy() >= len(urls), "the workers are healthy")

    def workers(self):
        return json.loads(self.get("/workers")[2])["workers"]

    def healthy(self):
        return sum(w["state"] == "healthy" for w in self.workers())


def url(worker):
    return f"http://127.0.0.1:{worker.port}"


def chat(server, messages, **fields):
    return server.post("/v1/chat/completions", {"messages": messages, **GREEDY, **fields})


def user(text):
    return {"role": "user", "content": text}


def cached_tokens(workers):
    return sum(w.metric("sglang:cached_tokens_total") for w in workers)


class RouterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = [harness.Server(*WORKER) for _ in range(3)]

    @classmethod
    def tearDownClass(cls):
        for worker in cls.fleet:
            worker.stop()
            worker.__exit__()

    def test_answers_are_those_of_a_worker(self):
        with Router(self.fleet) as router:
            body = {"messages": [user("Count to five.")], **GREEDY}

            def content(server):
                events = list(server.stream("/v1/chat/completions", body))
                self.assertIsNone(events[-1])
                return "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1] if e["choices"])

            direct = content(self.fleet[0])
            self.assertTrue(direct)
            self.assertEqual(content(router), direct)
            self.assertEqual(chat(router, body["messages"])["choices"][0]["message"]["content"], direct)
            native = {"text": "One two three", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
            self.assertEqual(router.post("/generate", native)["text"], self.fleet[0].post("/generate", native)["text"])
            message = router.post("/v1/messages", {"model": "m", "max_tokens": 8, "messages": [user("Hi")]})
            self.assertEqual(message["type"], "message")
            ollama = router.post("/api/chat", {"model": "m", "stream": False, "messages": [user("Hi")]})
            self.assertTrue(ollama["done"])
            models = json.loads(router.get("/v1/models")[2])["data"]
            self.assertEqual(len(models), 1, "one model, however many workers serve it")
            status, _, text = router.request("POST", "/v1/chat/completions", {"messages": 7})
            self.assertEqual(status, 400, text)
            self.assertEqual(router.get("/no/such/route")[0], 404)

    def test_prompts_go_out_as_ids(self):
        """Answers to text that the router made ids of are those of a worker that got the text."""
        sampling = {"sampling_params": {"temperature": 0, "max_new_tokens": 8}}
        greedy = {"temperature": 0, "max_tokens": 8}
        texts = ["Once upon a time", " \u00e4\u4e16\U0001f333  two  spaces\n\n", "a</s><|im_end|>b", "x" * 3000]
        as_ids = [("/generate", {"text": text, **sampling}) for text in texts]
        as_ids += [
            ("/generate", {"text": "One two", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, **sampling}),
            ("/generate", {"sampling_params": {"temperature": 0, "max_new_tokens": 6, "regex": "[0-9]+"}, "text": "Count:"}),
            ("/generate", {"text": "Once upon a ti", "sampling_params": {
                "temperature": 0, "max_new_tokens": 6, "token_healing": True}}),
            ("/generate", {"text": "A batch of", "sampling_params": {"temperature": 0, "max_new_tokens": 4, "n": 2}}),
            ("/generate", {"text": "x", "sampling_params": {"temperature": 0, "max_new_tokens": -1}}),
            ("/v1/completions", {"prompt": "The sea", "logprobs": 2, **greedy}),
            ("/v1/completions", {"prompt": "The sea", "echo": False, "n": 2, **greedy})]
        talk = [{"role": "system", "content": "Be brief."}, user("Hi"), {"role": "assistant", "content": "Hello!"},
                {"role": "user", "content": [{"type": "text", "text": "Add 2"}, {"type": "text", "text": "and 3."}]}]
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
            "a": {"type": "integer"}}}}}]
        as_ids += [("/v1/chat/completions", {"messages": talk, **fields, **greedy}) for fields in (
            {}, {"tools": tools}, {"tools": tools, "tool_choice": "none"}, {"tools": tools, "tool_choice": "required"},
            {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "high"}, {"logprobs": True},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}},
            {"continue_final_message": True, "messages": talk[:3]})]
        as_text = [
            ("/v1/completions", {"prompt": "The sea ", "echo": True, "logprobs": 1, **greedy}),
            ("/v1/completions", {"prompt": ["The sea", "The hill"], **greedy}),
            ("/v1/completions", {"prompt": "def f(", "suffix": ")", **greedy}),
            ("/generate", {"text": ["One", "Two"], **sampling}),
            ("/generate", {"text": "word " * 20000, **sampling}),
            ("/generate", {"text": "a", "input_ids": [5], **sampling}),
            ("/v1/chat/completions", {"messages": [user("Hi")], "describe_grammar": True, "regex": "[0-9]+", **greedy}),
            ("/v1/chat/completions", {"messages": [user("word " * 20000)], **greedy}),
            ("/v1/messages", {"model": "m", "messages": [user("Hi")], "max_tokens": 8, "temperature": 0})]

        def plain(value):
            """An answer without what differs between two equal ones."""
            if isinstance(value, list):
                return [plain(v) for v in value]
            if not isinstance(value, dict):
                return value
            return {k: plain(v) for k, v in value.items() if k not in (
                "id", "created", "e2e_latency", "cached_tokens", "queue_time", "prompt_tokens_details", "input_tokens",
                "cache_read_input_tokens") and "time" not in k}

        def ask(server, path, body):
            status, _, text = server.request("POST", path, body)
            return status, plain(json.loads(text))

        with Router(self.fleet[:2], "--policy", "round_robin", "--send-token-ids", "--tokenizer-path", MODEL) as router:
            harness.wait_until(lambda: all(w["takes_chat_token_ids"] for w in router.workers()), "the tokenizers are compared")
            for path, body in as_ids + as_text:
                before = router.metric("espalier:router_ids_sent_total")
                self.assertEqual(ask(router, path, body), ask(self.fleet[2], path, body), body)
                sent = router.metric("espalier:router_ids_sent_total") - before
                self.assertEqual(sent, 1 if (path, body) in as_ids else 0, body)
            body = {"text": "Once", "stream": True, **sampling}
            ends = [list(server.stream("/generate", dict(body)))[-2]["text"] for server in (router, self.fleet[2])]
            self.assertEqual(ends[0], ends[1])

    def test_cache_aware_finds_more_than_round_robin(self):
        def hits(policy, mark):
            """The part of multi-turn prompts' tokens that was cached."""
            before = cached_tokens(self.fleet)
            prompt_tokens = 0
            with Router(self.fleet, "--policy", policy) as router:
                talks = [[user(f"{mark} {i}: " + "tell me about rivers, hills and the sea. " * 6)] for i in range(7)]
                for _ in range(4):
                    for talk in talks:
                        answer = chat(router, talk, max_tokens=8)
                        prompt_tokens += answer["usage"]["prompt_tokens"]
                        talk += [answer["choices"][0]["message"], user("And then? " * 12)]
            return (cached_tokens(self.fleet) - before) / prompt_tokens

        turns, aware = hits("round_robin", "first"), hits("cache_aware", "second")
        print(f"multi-turn on 3 workers: hit rate {turns:.3f} by round_robin, {aware:.3f} by cache_aware")
        self.assertGreater(aware, 0.5)
        self.assertGreater(aware, 1.3 * turns)

    def test_killed_and_stalled_workers(self):
        for number, name in ((signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")):
            with self.subTest(name), harness.Server(*WORKER) as doomed, Router(
                    [doomed, self.fleet[1]], "--policy", "round_robin") as router:
                began, ended, streams = threading.Event(), [], []

                def stream_one(index, answers=ended, began=began):
                    body = {"text": f"Stream {index} of many: ", "sampling_params": {
                        "temperature": 0, "max_new_tokens": 2000, "ignore_eos": True}}
                    events = []
                    for event in router.stream("/generate", body):
                        events.append(event)
                        began.set()
                        if len(events) > 500 and event is not None:
                            break  # of the worker that lives: enough was seen
                    answers.append(events)

                for i in range(4):
                    streams.append(threading.Thread(target=stream_one, args=(i,)))
                    streams[-1].start()
                self.assertTrue(began.wait(harness.PATIENCE_S))
                harness.wait_until(lambda: all(w["load"] == 2 for w in router.workers()), "two streams each")
                time.sleep(0.3)
                doomed.process.send_signal(number)
                killed_at = time.monotonic()
                # What comes now is answered by the other worker, at once or after a retry.
                for i in range(4):
                    self.assertIn("text", router.post("/generate", {
                        "text": f"After {i}", "sampling_params": {"max_new_tokens": 2}}))
                recovered = time.monotonic() - killed_at
                for thread in streams:
                    thread.join(harness.PATIENCE_S)
                self.assertEqual(len(ended), 4)
                errors = [events for events in ended if any(e and "error" in e for e in events)]
                self.assertEqual(len(errors), 2, "the streams of the worker that is gone")
                for events in errors:
                    self.assertIsNone(events[-1], "[DONE] ends the stream")
                    self.assertIn("worker failed", events[-2]["error"]["message"])
                    self.assertNotIn("error", events[0])
                print(f"{name}: four requests were answered {recovered:.2f} s later")
                if number == signal.SIGSTOP:
                    doomed.process.send_signal(signal.SIGCONT)
                    harness.wait_until(lambda: router.healthy() == 2, "it is back")

    def test_workers_come_and_go(self):
        one, two = self.fleet[0], self.fleet[1]
        with Router([one]) as router, tempfile.TemporaryDirectory() as folder:
            self.assertEqual(router.request("POST", "/workers", {"url": url(two)})[0], 202)
            harness.wait_until(lambda: router.healthy() == 2, "the added worker is healthy")
            self.assertEqual(router.request("POST", f"/remove_worker?url={url(one)}")[0], 200)
            for i in range(3):
                router.post("/generate", {"text": f"only one is left {i}", "sampling_params": {"max_new_tokens": 1}})
            self.assertEqual([w["url"] for w in router.workers()], [url(two)])

            # A worker that drains answers what it has and gets nothing new.
            events = router.stream("/generate", {"text": "Long", "sampling_params": {
                "max_new_tokens": 60, "ignore_eos": True}})
            next(events)
            self.assertEqual(router.request("POST", "/drain", {"url": url(two)})[0], 200)
            status, headers, text = router.request("POST", "/generate", {"text": "new"})
            self.assertEqual(status, 503, text)
            self.assertIn("Retry-After", headers)
            self.assertIsNone(list(events)[-1])
            self.assertEqual(router.request("POST", "/resume", {"url": url(two)})[0], 200)
            harness.wait_until(lambda: router.healthy() == 1, "it is back")

            path = os.path.join(folder, "workers")
            with open(path, "w", encoding="utf-8") as f:
                f.write(f"{url(one)}\n")
            with Router([], "--worker-file", path) as other:
                harness.wait_until(lambda: other.healthy() == 1, "the file's worker")
                with open(path, "a", encoding="utf-8") as f:
                    f.write(f"{url(two)}\n")
                harness.wait_until(lambda: other.healthy() == 2, "the line that was added")

    def test_pods_of_a_cluster(self):
        api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), PodsApi)
        threading.Thread(target=api.serve_forever, daemon=True).start()
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "token"), "w", encoding="utf-8") as f:
                f.write("secret\n")
            with Router([], "--service-discovery", "--selector", "app=worker", "tier=gpu",
                        "--service-discovery-port", str(self.fleet[0].port), "--service-discovery-namespace", "llm",
                        "--service-discovery-api", f"http://127.0.0.1:{api.server_port}",
                        "--service-discovery-credentials", folder) as router:
                PodsApi.events.put({"type": "ADDED", "object": PodsApi.pod(8)})
                harness.wait_until(lambda: router.healthy() == 1, "the pod is a worker")
                router.post("/generate", {"text": "One", "sampling_params": {"max_new_tokens": 1}})
                PodsApi.events.put({"type": "DELETED", "object": PodsApi.pod(9)})
                harness.wait_until(lambda: not router.workers(), "the pod that was deleted is none")
                PodsApi.events.put(None)
                harness.wait_until(lambda: len(PodsApi.asked) > 2, "it watches again")
                PodsApi.events.put(None)
            api.shutdown()
            api.server_close()
        first, second, third = PodsApi.asked[:3]
        self.assertIn("/api/v1/namespaces/llm/pods?labelSelector=app%3Dworker%2Ctier%3Dgpu", first[0])
        self.assertIn("resourceVersion=7&", second[0])
        self.assertIn("resourceVersion=9&", third[0])
        self.assertEqual({token for _, token in PodsApi.asked}, {"Bearer secret"})

    def test_command_line(self):
        for args, said in ((["--policy", "best"], "cache_aware"),
                           (["--worker", "http://a:1/v1"], "without a path"),
                           (["--worker-file", "/no/such/file"], "/no/such/file"),
                           (["--cache-threshold", "2"], "cache-threshold"),
                           (["--service-discovery"], "--selector KEY=VALUE"),
                           (["--service-discovery", "--selector", "app"], "--selector app"),
                           (["--ext-proc", "0", "--prefill", "http://127.0.0.1:1"], "--prefill"),
                           (["--send-token-ids"], "--tokenizer-path"),
                           (["--polcy", "random"], "--policy")):
            ended = harness.run("route", "--port", "0", *args)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertRegex(ended.stderr, "(?m)^error: .*" + re.escape(said))

    def test_fleet_simulation(self):
        args = ("bench", "fleet", "--workers", "8", "--conversations", "500", "--failures", "60", "--json")
        first, again = (json.loads(harness.run(*args).stdout)["fleet"] for _ in range(2))
        for row in first + again:
            del row["seconds"]
        self.assertEqual(first, again, "the same seed gives the same result")
        aware, turns = first
        self.assertGreater(aware["of_ideal"], turns["of_ideal"])
        self.assertEqual(aware["lost"], 0)


if __name__ == "__main__":
    unittest.main()
