"""Prefill and decode servers as processes, with and without the router before them: answers are those of
one server, cached prefixes are not sent, and what is killed or misconfigured ends requests with a reason."""
import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
import unittest

import harness

COMMON = ["--max-total-tokens", "16384", "--num-threads", "1", "--page-size", "16"]
PREFILL, DECODE = [], []
KILL_WITHIN_S = 0.3  # while long prompts are computed and sent
if os.environ.get("ESPALIER_TEST_GPUS"):  # two GPUs, the prefill servers on the first
    COMMON += ["--device", "cuda", "--enable-deterministic-inference"]
    PREFILL, DECODE = ["--base-gpu-id", "0"], ["--base-gpu-id", "1"]
    KILL_WITHIN_S = 0.03
TOKEN = ["--disaggregation-token", "a secret"]
GREEDY = {"temperature": 0, "max_tokens": 24}
STORY = "The river begins in the hills and goes through many towns before it comes to the sea. "


# A model whose prompts of 8,192 tokens (1 GB of pages) are computed, group of layers by group, for 0.2 s on a GPU.
LARGE = ["--model-path", os.path.join(harness.ROOT, "bench", "configs", "llama_8b"), "--load-format", "dummy",
         "--random-seed", "1", "--skip-tokenizer-init", "--max-total-tokens", "65536", "--page-size", "16", "--device",
         "cuda", "--enable-deterministic-inference"]
LARGE_PROMPT = 8192


def prefill_server(*args, common=COMMON):
    server = harness.Server(*common, *PREFILL, *(TOKEN if "--disaggregation-token" not in args else []),
                            "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0", *args)
    server.bootstrap_port = json.loads(server.get("/server_info")[2])["disaggregation_bootstrap_port"]
    return server


def decode_server(*args, common=COMMON):
    return harness.Server(*common, *DECODE, *TOKEN, "--disaggregation-mode", "decode", *args)


class Pair:
    """A prefill and a decode server without a router: requests go to both with a room of their own."""

    def __init__(self, prefill, decode):
        self.prefill, self.decode = prefill, decode

    def fields(self):
        return {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.prefill.bootstrap_port,
                "bootstrap_room": random.getrandbits(63)}

    def request(self, path, body):
        """The decode server's answer: (status, text)."""
        body = {**body, **self.fields()}
        other = threading.Thread(target=self.prefill.request, args=("POST", path, body))
        other.start()
        status, _, text = self.decode.request("POST", path, body)
        other.join()
        return status, text

    def post(self, path, body):
        status, text = self.request(path, body)
        if status != 200:
            raise AssertionError(f"POST {path}: HTTP {status}: {text}")
        return json.loads(text)

    def stream(self, path, body):
        body = {**body, **self.fields()}
        other = threading.Thread(target=self.prefill.request, args=("POST", path, body))
        other.start()
        yield from self.decode.stream(path, body)
        other.join()


class Router(harness.Server):
    COMMAND = "route"

    def __init__(self, prefills, decodes, *args):
        halves = []
        for server in prefills:
            halves += ["--prefill", f"http://127.0.0.1:{server.port}", str(server.bootstrap_port)]
        for server in decodes:
            halves += ["--decode", f"http://127.0.0.1:{server.port}"]
        super().__init__("--pd-disaggregation", *halves, "--health-check-interval-secs", "0.2",
                         "--health-check-timeout-secs", "1", "--slow-start", "0", *args)
        count = len(prefills) + len(decodes)
        harness.wait_until(lambda: self.healthy() >= count, "the servers are healthy")

    def healthy(self):
        return sum(w["state"] == "healthy" for w in json.loads(self.get("/workers")[2])["workers"])


def without_ids(value):
    """The answer but for what differs from call to call."""
    if isinstance(value, list):
        return [without_ids(v) for v in value]
    if not isinstance(value, dict):
        return value
    skipped = {"id", "created", "e2e_latency", "cached_tokens", "prompt_tokens_details", "system_fingerprint",
               "queue_time", "decode_throughput", "request_received_ts", "response_sent_to_client_ts",
               "forward_entry_time", "prefill_launch_latency", "prefill_finished_ts", "inference_time",
               "cached_tokens_details", "time_to_first_token", "timings"}
    return {k: without_ids(v) for k, v in value.items() if k not in skipped}


def requests():
    """(path, body) of many kinds."""
    chat = [{"role": "user", "content": "Tell me about rivers."}]
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                               "kind": {"enum": ["river", "hill"]}}, "required": ["name", "kind"]}
    native = {"temperature": 0, "max_new_tokens": 20}
    return [
        ("/v1/chat/completions", {"messages": chat, **GREEDY, "rid": "chat"}),
        ("/v1/chat/completions", {"messages": chat, "temperature": 0.9, "seed": 7, "n": 3, "max_tokens": 12,
                                  "logprobs": True, "top_logprobs": 2, "rid": "n"}),
        ("/v1/chat/completions", {"messages": chat, **GREEDY, "rid": "json", "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
        ("/v1/completions", {"prompt": [STORY * 3, STORY * 2 + "Then"], **GREEDY, "logprobs": 1, "rid": "batch"}),
        ("/generate", {"text": STORY * 5, "sampling_params": native, "rid": "native", "return_logprob": True,
                       "logprob_start_len": 3, "top_logprobs_num": 2}),
        ("/generate", {"text": "One", "rid": "one", "sampling_params": {**native, "max_new_tokens": 1}}),
        ("/generate", {"text": "Number: ", "rid": "regex", "sampling_params": {
            "max_new_tokens": 30, "temperature": 1.0, "sampling_seed": 3, "regex": "The number is [0-9]{3}, yes"}}),
        ("/generate", {"text": STORY, "rid": "penalty", "sampling_params": {
            **native, "frequency_penalty": 0.7, "repetition_penalty": 1.2, "stop": ["the"], "n": 2}}),
    ]


class DisaggregationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = cls.one, cls.prefill, cls.decode = harness.Server(*COMMON), prefill_server(), decode_server()
        cls.pair = Pair(cls.prefill, cls.decode)

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers:
            server.stop()
            server.__exit__()

    def test_answers_are_those_of_one_server(self):
        for path, body in requests():
            with self.subTest(path, rid=body["rid"]):
                wanted = without_ids(self.one.post(path, body))
                self.assertEqual(without_ids(self.pair.post(path, body)), wanted)
        body = {"messages": [{"role": "user", "content": "Count to five."}], **GREEDY}

        def content(source):
            events = list(source.stream("/v1/chat/completions", body))
            self.assertIsNone(events[-1])
            return "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1] if e["choices"])

        self.assertEqual(content(self.pair), content(self.one))
        self.assertEqual(self.decode.metric("espalier:disaggregation_failures_total"), 0)
        for server in (self.prefill, self.decode):
            self.assertGreater(server.metric("espalier:disaggregation_bytes_total"), 0)
            self.assertEqual(server.metric("espalier:disaggregation_staged_bytes_total"),
                             server.metric("espalier:disaggregation_bytes_total"), "memory of this host is mapped")

    def test_transport_of_other_hosts(self):
        with prefill_server("--disaggregation-transfer-backend", "tcp") as prefill:
            body = {"text": STORY * 9, "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
            wanted = self.one.post("/generate", body)["text"]
            self.assertEqual(Pair(prefill, self.decode).post("/generate", body)["text"], wanted)
            self.assertGreater(prefill.metric("espalier:disaggregation_bytes_total"), 0)
            self.assertEqual(prefill.metric("espalier:disaggregation_staged_bytes_total"), 0)

    def test_cached_prefixes_are_not_sent(self):
        def sent(text):
            before = self.decode.metric("espalier:disaggregation_bytes_total")
            self.pair.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 2}})
            return self.decode.metric("espalier:disaggregation_bytes_total") - before

        text = "A prompt of its own: " + STORY * 12
        first, second, longer = sent(text), sent(text), sent(text + STORY * 4)
        print(f"bytes sent: {first:.0f} at first, {second:.0f} again, {longer:.0f} for a third more")
        self.assertGreater(first, 0)
        self.assertLess(second, first / 8)
        self.assertLess(longer, first / 2)

    def test_killed_prefill_server(self):
        with prefill_server() as doomed:
            pair = Pair(doomed, self.decode)
            pair.post("/generate", {"text": "It lives.", "sampling_params": {"max_new_tokens": 2}})
            body = {"text": "It is stopped.", "sampling_params": {"max_new_tokens": 2}, **pair.fields()}
            answers = []
            before = self.decode.metric("espalier:disaggregation_failures_total")
            waits = threading.Thread(target=lambda: answers.append(self.decode.request("POST", "/generate", body)))
            waits.start()  # the room never comes to the prefill server
            harness.wait_until(lambda: self.decode.metric("espalier:disaggregation_waiting") > 0, "it waits")
            doomed.stop(signal.SIGKILL)
            waits.join()
            status, _, text = answers[0]
            self.assertEqual(status, 503, text)
            self.assertIn("again", text)
            self.assertEqual(self.decode.metric("espalier:disaggregation_failures_total"), before + 1)
        status, _, text = self.decode.request("POST", "/generate", body)
        self.assertEqual(status, 503, text)
        harness.wait_until(lambda: self.decode.metric("sglang:num_running_reqs") == 0, "nothing runs")
        self.assertEqual(self.decode.request("POST", "/flush_cache")[0], 200, "all pages are free")

    def test_killed_while_it_sends(self):
        """The prefill server is killed at drawn moments of long prompts: each request ends once, and the decode server
        goes on with all of its pages."""
        draw = random.Random(11)
        failures = 0
        for number in range(4):
            with prefill_server() as doomed:
                pair, answers = Pair(doomed, self.decode), []

                def ask(text, pair=pair, answers=answers):
                    body = {"text": text, "sampling_params": {"max_new_tokens": 4, "temperature": 0}, **pair.fields()}
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        other = threading.Thread(target=quiet, args=(body,))
                        other.start()
                        answers.append(self.decode.request("POST", "/generate", body))
                        other.join()

                def quiet(body, doomed=doomed):
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        doomed.request("POST", "/generate", body)

                asks = [threading.Thread(target=ask, args=(f"{number} {i} " + STORY * 40,)) for i in range(4)]
                for thread in asks:
                    thread.start()
                time.sleep(draw.random() * KILL_WITHIN_S)
                doomed.stop(signal.SIGKILL)
                for thread in asks:
                    thread.join()
                self.assertEqual(len(answers), 4)
                for status, _, text in answers:
                    self.assertIn(status, (200, 503), text)
                    failures += status == 503
            harness.wait_until(lambda: self.decode.metric("sglang:num_running_reqs") == 0, "nothing runs")
            self.assertEqual(self.decode.request("POST", "/flush_cache")[0], 200, "all pages are free")
            body = {"text": STORY, "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
            self.assertEqual(self.decode.post("/generate", body)["text"], self.one.post("/generate", body)["text"])
        self.assertGreater(failures, 0)

    @unittest.skipUnless(PREFILL, "needs two GPUs: ESPALIER_TEST_GPUS=1")
    def test_killed_while_gpus_copy(self):
        """The prefill server is killed at drawn moments in which the decode server copies layers out of its GPU: each
        request ends once, its pages are free, and the next one is answered as before. ESPALIER_KILLS: how many."""
        draw = random.Random(5)

        def body_of(number):
            ids = random.Random(number)
            return {"input_ids": [ids.randrange(5, 1000) for _ in range(LARGE_PROMPT)],
                    "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}

        def post(server, body, answers):
            with contextlib.suppress(OSError, http.client.HTTPException):
                answers.append(server.request("POST", "/generate", body))

        outcomes = []
        with decode_server(common=LARGE) as decode:
            wanted = decode.post("/generate", body_of(0))["output_ids"]
            self.assertEqual(decode.request("POST", "/flush_cache")[0], 200)
            free = decode.metric("sglang:kv_available_tokens")
            for kill in range(int(os.environ.get("ESPALIER_KILLS", "6"))):
                with prefill_server(common=LARGE) as doomed:
                    pair, answers, lost = Pair(doomed, decode), [], []
                    pair.post("/generate", body_of(10_000 + kill))  # maps its memory, loads its kernels
                    before = decode.metric("espalier:disaggregation_transfers_total")
                    bodies = [{**body_of(100 * kill + i), **pair.fields()} for i in range(1, 4)]
                    threads = [threading.Thread(target=post, args=(server, body, place)) for body in bodies
                               for server, place in ((doomed, lost), (decode, answers))]
                    for thread in threads:
                        thread.start()
                    time.sleep(0.05 + draw.random() * 0.4)
                    doomed.stop(signal.SIGKILL)
                    for thread in threads:
                        thread.join()
                self.assertEqual([status for status, _, _ in answers if status not in (200, 503)], [], answers)
                self.assertEqual(len(answers), len(bodies), "each request ends once")
                cut = [text for status, _, text in answers if status == 503]
                outcomes.append((len(cut), sum("the prompt's transfer failed" in text for text in cut)))
                whole = decode.metric("espalier:disaggregation_transfers_total") - before
                self.assertEqual(whole + len(cut), len(bodies))
                harness.wait_until(lambda: decode.metric("sglang:num_running_reqs") == 0, "nothing runs")
                self.assertEqual(decode.metric("espalier:disaggregation_waiting"), 0)
                self.assertEqual(decode.request("POST", "/flush_cache")[0], 200, "no page is held")
                self.assertEqual(decode.metric("sglang:kv_available_tokens"), free, "all pages are free")
                self.assertEqual(decode.post("/generate", body_of(0))["output_ids"], wanted)
                self.assertEqual(decode.request("POST", "/flush_cache")[0], 200)
            self.assertEqual(decode.metric("espalier:disaggregation_failures_total"), sum(n for n, _ in outcomes))
        print(f"of 3 requests (cut, of these in their transfer), by kill: {outcomes}")
        self.assertGreater(sum(sent for _, sent in outcomes), 0, "no transfer was cut: kill later or sooner")

    def test_killed_decode_server(self):
        with prefill_server("--disaggregation-timeout", "10") as prefill, decode_server() as doomed:
            body = {"text": "Nobody takes this.", "sampling_params": {"max_new_tokens": 2},
                    **Pair(prefill, doomed).fields()}

            def ask():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    doomed.request("POST", "/generate", body)

            waits = threading.Thread(target=ask)
            waits.start()
            harness.wait_until(lambda: doomed.metric("espalier:disaggregation_waiting") > 0, "it waits")
            doomed.stop(signal.SIGKILL)
            waits.join()
            self.assertEqual(prefill.request("POST", "/generate", body)[0], 200)
            harness.wait_until(lambda: prefill.metric("espalier:disaggregation_waiting") == 0, "the prompt is dropped")
            self.assertGreaterEqual(prefill.metric("espalier:disaggregation_failures_total"), 1)
            self.assertEqual(prefill.metric("espalier:disaggregation_waiting_bytes"), 0)
            self.assertEqual(prefill.request("POST", "/flush_cache")[0], 200)

    def test_router_takes_pairs(self):
        with prefill_server() as second, Router([self.prefill, second], [self.decode]) as router:
            before = self.decode.metric("espalier:disaggregation_transfers_total")
            for path, body in requests():
                with self.subTest(path, rid=body["rid"]):
                    self.assertEqual(without_ids(router.post(path, body)), without_ids(self.one.post(path, body)))
            sent = self.decode.metric("espalier:disaggregation_transfers_total") - before
            self.assertGreaterEqual(sent, len(requests()))
            roles = sorted(w["role"] for w in json.loads(router.get("/workers")[2])["workers"])
            self.assertEqual(roles, ["prefill", "prefill", "serving"])
            message = router.post("/v1/messages", {"model": "m", "max_tokens": 4,
                                                   "messages": [{"role": "user", "content": "Hi"}]})
            self.assertEqual(message["type"], "message", "a route without pairs is answered alone")
            body = {"messages": [{"role": "user", "content": "Count to five."}], **GREEDY}
            wanted = without_ids(self.one.post("/v1/chat/completions", body))
            second.stop(signal.SIGKILL)  # whichever requests it has, or gets, are tried with the other one
            for _ in range(4):
                self.assertEqual(without_ids(router.post("/v1/chat/completions", body)), wanted)
            self.assertEqual(router.request("POST", "/generate", {"text": 7})[0], 400)

    def test_servers_that_do_not_belong_together(self):
        with prefill_server("--disaggregation-token", "another") as other:
            status, text = Pair(other, self.decode).request(
                "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}})
            self.assertEqual(status, 503, text)
            self.assertIn("token", text)
        other_type = "fp8_e4m3" if PREFILL else "float32"
        with prefill_server("--kv-cache-dtype", other_type, "--context-length", "256") as other:
            status, text = Pair(other, self.decode).request(
                "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 2}})
            self.assertEqual(status, 503, text)
            self.assertIn("--kv-cache-dtype", text)
        status, _, text = self.one.request("POST", "/generate", {"text": "x", **self.pair.fields()})
        self.assertEqual(status, 400, text)
        self.assertIn("--disaggregation-mode", text)
        result = harness.run("serve", "--disaggregation-mode", "prefill", "--host", "0.0.0.0")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("--disaggregation-token", result.stderr)
        info = json.loads(self.prefill.get("/server_info")[2])
        self.assertEqual(info["disaggregation_mode"], "prefill")
        self.assertNotIn("a secret", json.dumps(info))


if __name__ == "__main__":
    unittest.main(verbosity=2)
