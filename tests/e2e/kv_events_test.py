"""`espalier route --kv-events` before real servers: what their caches hold decides, also after they
have evicted what they were sent, and also where another router sent it."""
import ctypes.util
import json
import os
import random
import signal
import unittest

import harness

MODEL = os.path.join(harness.ROOT, "share", "default_model")
PUBLISH = json.dumps({"publisher": "zmq", "endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"})
WORKER = ["--max-total-tokens", "4096", "--num-threads", "1", "--page-size", "16", "--kv-events-config", PUBLISH]
ROUTE = ["--health-check-interval-secs", "0.2", "--health-check-timeout-secs", "1", "--slow-start", "0"]
EXACT = ["--kv-events", "--tokenizer-path", MODEL]


class Router(harness.Server):
    COMMAND = "route"

    def __init__(self, workers, *args):
        super().__init__("--worker", *(f"http://127.0.0.1:{w.port}" for w in workers), *ROUTE, *args)
        harness.wait_until(lambda: self.healthy() == len(workers), "the workers are healthy")
        if "--kv-events" in args:
            harness.wait_until(lambda: self.metric("espalier:router_kv_event_workers") == len(workers),
                               "the workers' events are read")

    def healthy(self):
        return sum(w["state"] == "healthy" for w in json.loads(self.get("/workers")[2])["workers"])

    def cached_blocks(self):
        return self.metric("espalier:router_cached_blocks")


def cached_of(answer):
    return answer["meta_info"]["cached_tokens"]


def generate(server, text, tokens=4):
    return server.post("/generate", {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}})


def prompt(index):
    return f"Prompt number {index}. " + f"The {index}th river runs to the sea, past hills and towns. " * 8


@unittest.skipUnless(ctypes.util.find_library("zmq"), "libzmq is not installed")
class KvEventsTest(unittest.TestCase):
    def setUp(self):
        self.fleet = [harness.Server(*WORKER) for _ in range(3)]

    def tearDown(self):
        for worker in self.fleet:
            worker.stop()
            worker.__exit__()

    def settle(self, router):
        """Until what the workers have published so far has arrived: nothing new comes any more."""
        last, same = -1, 0
        def quiet():
            nonlocal last, same
            now = router.metric("espalier:router_kv_event_batches_total")
            same, last = (same + 1, last) if now == last else (0, now)
            return same > 10
        harness.wait_until(quiet, "the events have been read")

    def test_what_was_evicted_does_not_count(self):
        """Prompts go through the router to workers A, and these then lose them; another worker gets them from
        elsewhere. Only events tell of both."""
        hits = {}
        for name, args in (("approximate", []), ("exact", EXACT)):
            with Router(self.fleet, *args) as router:
                tokens = cached = 0
                for i in range(6):
                    generate(router, prompt(i))
                for worker in self.fleet:
                    worker.request("POST", "/flush_cache")
                # In another order than the router's turns.
                for i in range(6):
                    generate(self.fleet[(i * 2 + i // 3 + 1) % 3], prompt(i))
                if args:
                    self.settle(router)
                    self.assertGreater(router.cached_blocks(), 0)
                for i in range(6):
                    answer = generate(router, prompt(i))
                    cached += cached_of(answer)
                    tokens += answer["meta_info"]["prompt_tokens"]
                hits[name] = cached / tokens
                for worker in self.fleet:
                    worker.request("POST", "/flush_cache")
        print(f"hit rate after evictions: {hits['approximate']:.3f} by what was sent, {hits['exact']:.3f} by events")
        self.assertGreater(hits["exact"], 0.9)
        self.assertGreater(hits["exact"], hits["approximate"] + 0.1)

    def test_routers_share_events_alone(self):
        """The turns of conversations go through two routers in turn, and caches are too small for all of them."""
        hits = {}
        for name, args in (("approximate", []), ("exact", EXACT)):
            before = sum(w.metric("sglang:cached_tokens_total") for w in self.fleet)
            prompt_tokens = 0
            with Router(self.fleet, *args) as one, Router(self.fleet, *args) as two:
                talks = [[{"role": "user", "content": f"{name} {i}: " + prompt(i)}] for i in range(10)]
                draw = random.Random(24)  # routers that take turns in one order would agree by chance
                for turn in range(4):
                    draw.shuffle(talks)
                    for talk in talks:
                        answer = (one, two)[turn % 2].post("/v1/chat/completions", {
                            "messages": talk, "temperature": 0, "max_tokens": 8})
                        prompt_tokens += answer["usage"]["prompt_tokens"]
                        talk += [answer["choices"][0]["message"], {"role": "user", "content": "And then? " * 12}]
                    if args:
                        self.settle(one)
                        self.settle(two)
                if args:
                    self.assertEqual(one.cached_blocks(), two.cached_blocks())
                    self.assertEqual(one.metric("espalier:router_kv_event_malformed_total"), 0)
            hits[name] = (sum(w.metric("sglang:cached_tokens_total") for w in self.fleet) - before) / prompt_tokens
            for worker in self.fleet:
                worker.request("POST", "/flush_cache")
        print(f"two routers: hit rate {hits['approximate']:.3f} by what was sent, {hits['exact']:.3f} by events")
        self.assertGreater(hits["exact"], hits["approximate"] + 0.1)

    def test_copies_in_host_memory_count(self):
        """One of two workers has prompts in host memory alone, which no router sent there: only the events of its
        copies tell of them."""
        tiers = ["--enable-hierarchical-cache", "--hicache-size", "0.2", "--max-total-tokens", "1024"]
        fleet = [harness.Server(*WORKER[2:], *tiers) for _ in range(2)]
        try:
            with Router(fleet, *EXACT) as router:
                for i in range(16):
                    generate(fleet[0], prompt(i))
                self.settle(router)
                for i in range(6):
                    answer = generate(router, prompt(i))
                    self.assertGreater(cached_of(answer), 100, i)
                    self.settle(router)
            self.assertEqual(fleet[1].metric("sglang:prompt_tokens_total"), 0)
            self.assertGreater(fleet[0].metric("espalier:tier_cached_tokens_host_total"), 600)
        finally:
            for worker in fleet:
                worker.stop()
                worker.__exit__()

    def test_a_worker_that_comes_back_is_read_anew(self):
        with Router(self.fleet[:1], *EXACT) as router:
            generate(router, prompt(1))
            harness.wait_until(lambda: router.cached_blocks() > 0, "its blocks are known")
            self.settle(router)
            known = router.cached_blocks()
            self.fleet[0].process.send_signal(signal.SIGSTOP)
            harness.wait_until(lambda: router.healthy() == 0 and router.cached_blocks() == 0, "it is forgotten")
            self.fleet[0].process.send_signal(signal.SIGCONT)
            harness.wait_until(lambda: router.cached_blocks() == known, "a replay has told of its blocks")

    def test_command_line(self):
        for args, said in ((["--tokenizer-path", "/no/such/model", "--kv-events"], "--tokenizer-path"),
                           (["--kv-events", "--policy", "random"], "needs --policy cache_aware"),
                           (["--kv-events-port", "70000"], "kv-events-port")):
            ended = harness.run("route", "--port", "0", *args)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(said, ended.stderr)
        ended = harness.run("serve", "--port", "0", "--kv-events-config",
                            json.dumps({"publisher": "zmq", "endpoint": "carrier://*"}))
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("carrier://*", ended.stderr)


if __name__ == "__main__":
    unittest.main()
