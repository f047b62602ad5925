"""One model computed by two processes, as on two nodes: every token and log-probability of one process, refusals,
and what is left when a node is killed, stopped or started wrongly. ESPALIER_KILLS: how many are killed.
ESPALIER_TEST_GPUS=1: also by two processes with a GPU each."""
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import harness

GOLDENS = os.path.join(harness.ROOT, "tests", "golden", "models")
COMMON = ["--device", "cpu", "--num-threads", "2", "--max-total-tokens", "8192"]
PROMPTS = ["The river begins in the hills", "1 2 3 4 5 6", "Q: What is", "The capital of France is"]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
CANNOT_GO_ON = 70
GPUS = ["--device", "cuda", "--max-total-tokens", "8192", "--random-seed", "1"]
needs_gpus = unittest.skipUnless(os.environ.get("ESPALIER_TEST_GPUS"), "needs two GPUs: ESPALIER_TEST_GPUS=1")


PORTS = random.Random(os.getpid())


def free_port():
    """Below those that the system gives to clients, so that no connection of another test takes it in between."""
    while True:
        port = PORTS.randrange(10000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class Follower:
    """`espalier serve --node-rank R` with R above 0, which serves nothing."""

    def __init__(self, *args, env=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([harness.BINARY, "serve", *args], env=harness.clean_environment(env),
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def output(self):
        with open(f"/proc/self/fd/{self.log.fileno()}", encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait(self):
        return self.process.wait(timeout=harness.PATIENCE_S)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


@contextlib.contextmanager
def two_nodes(*args, follower_args=None, follower_env=None):
    """(leader, follower). follower_args: where they differ from the leader's."""
    nodes = ["--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}"]
    follower = Follower(*(args if follower_args is None else follower_args), *nodes, "--node-rank", "1", env=follower_env)
    try:
        with harness.Server(*args, *nodes) as leader:
            yield leader, follower
    finally:
        follower.close()


def failed_start(*args, **different):
    """(leader's, follower's) output where neither becomes ready."""
    follower = None
    nodes = ["--nnodes", "2", "--dist-init-addr", f"127.0.0.1:{free_port()}"]
    try:
        follower = Follower(*different.get("follower_args", args), *nodes, "--node-rank", "1",
                            *different.get("follower_more", ()))
        leader = harness.run("serve", "--port", "0", *args, *nodes)
        assert leader.returncode != 0, leader.stderr
        assert follower.wait() != 0, follower.output()
        return leader.stderr, follower.output()
    finally:
        if follower is not None:
            follower.close()


def answers(server, model_has_text=True):
    """Of requests of many kinds, alone and in a crowd; without what differs from run to run."""
    out = []

    def ask(body, path="/generate"):
        got = server.post(path, body)
        for each in got if isinstance(got, list) else [got]:
            info = each.get("meta_info", {})
            out.append([each.get("text"), each.get("output_ids"), info.get("output_token_logprobs"),
                        info.get("input_token_logprobs"), info.get("output_top_logprobs")])

    prompts = [{"text": p} for p in PROMPTS] if model_has_text else [{"input_ids": [5, 6, 7, i]} for i in range(8, 12)]
    greedy = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    for prompt in prompts:
        ask({**prompt, "sampling_params": greedy, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3})
        ask({**prompt, "sampling_params": {**greedy, "temperature": 1, "sampling_seed": 7, "top_p": 0.9,
                                           "frequency_penalty": 0.5, "n": 3}})
    if model_has_text:
        ask({"text": PROMPTS[0] * 20, "sampling_params": greedy, "return_logprob": True, "logprob_start_len": 3})
        ask({"text": "Data: ", "sampling_params": {"temperature": 0, "max_new_tokens": 40, "json_schema": json.dumps(SCHEMA)}})
    crowd = [None] * 12

    def one(i):
        crowd[i] = server.post("/generate", {**prompts[i % 4], "sampling_params": {
            "temperature": 0.8, "sampling_seed": i, "max_new_tokens": 20 + i, "ignore_eos": True}})["output_ids"]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(crowd))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out + [crowd]


class TheSameAnswers(unittest.TestCase):
    def compare(self, *args, text=True):
        with harness.Server(*COMMON, *args) as server:
            want = answers(server, text)
        with two_nodes(*COMMON, *args) as (leader, follower):
            self.assertEqual(answers(leader, text), want)
            self.assertEqual(leader.stop(), 0, leader.output())
            self.assertEqual(follower.wait(), 0, follower.output())
            self.assertIn("stopped node_rank=1", follower.output())

    def test_of_the_model_that_ships(self):
        self.compare("--tp-size", "2")

    def test_of_two_ranks_on_each_node_with_pages_chunks_and_drafts(self):
        # What two ranks of a node share (heads, latents) is written by one of them, on each node.
        for model, more in (("llama_untied_bias", ()), ("deepseek_v2", ()), ("qwen3_moe", ("--ep-size", "2"))):
            with self.subTest(model):
                self.compare("--model-path", os.path.join(GOLDENS, model), "--tp-size", "4", "--page-size", "16",
                             "--chunked-prefill-size", "32", "--speculative-algorithm", "NGRAM",
                             "--skip-tokenizer-init", *more, text=False)

    def test_of_golden_models(self):
        # Shared heads, windows with pages of their own, latents, experts in two groups; float32's cache too.
        for model, more in (("llama_untied_bias", ()), ("gemma3", ()), ("deepseek_v2", ()),
                            ("qwen3_moe", ("--ep-size", "2"))):
            with self.subTest(model):
                self.compare("--model-path", os.path.join(GOLDENS, model), "--dtype", "float32", "--tp-size", "2",
                             "--skip-tokenizer-init", *more, text=False)

    def test_of_embeddings(self):
        path = os.path.join(GOLDENS, "qwen3_moe")
        args = [*COMMON, "--model-path", path, "--is-embedding", "--skip-tokenizer-init", "--tp-size", "2"]
        body = {"input": [[5, 6, 7], [8, 9, 10, 11]]}
        with harness.Server(*args) as server:
            want = server.post("/v1/embeddings", body)["data"]
        with two_nodes(*args) as (leader, _):
            self.assertEqual(leader.post("/v1/embeddings", body)["data"], want)


@needs_gpus
class TheSameAnswersOfGpus(unittest.TestCase):
    def compare(self, *args, text=True):
        args = [*GPUS, "--dtype", "float32", "--enable-deterministic-inference", "--tp-size", "2", *args]
        with harness.Server(*args) as server:
            want = answers(server, text)
        with two_nodes(*args, follower_args=[*args, "--base-gpu-id", "1"]) as (leader, follower):
            self.assertIn('collectives="NCCL"', leader.output())
            self.assertEqual(answers(leader, text), want)
            self.assertEqual(leader.stop(), 0, leader.output())
            self.assertEqual(follower.wait(), 0, follower.output())

    def test_of_the_model_that_ships(self):
        self.compare()
        self.compare("--disable-cuda-graph")

    def test_of_golden_models(self):
        for model, more in (("llama_untied_bias", ("--speculative-algorithm", "NGRAM")),
                            ("qwen3_moe", ("--ep-size", "2", "--page-size", "16", "--chunked-prefill-size", "32"))):
            with self.subTest(model):
                self.compare("--model-path", os.path.join(GOLDENS, model), "--skip-tokenizer-init", *more, text=False)


class Operations(unittest.TestCase):
    def test_work_or_are_refused_by_name(self):
        with two_nodes(*COMMON, "--tp-size", "2") as (leader, _):
            greedy = {"text": PROMPTS[0], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
            want = leader.post("/generate", greedy)["text"]
            self.assertEqual(leader.request("POST", "/flush_cache")[0], 200)
            self.assertEqual(leader.post("/generate", greedy)["text"], want)
            stream = leader.stream("/generate", {"rid": "long", "text": "Once", "sampling_params": {
                "temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}})
            next(stream)
            self.assertEqual(leader.request("POST", "/abort_request", {"rid": "long"})[0], 200)
            self.assertEqual([e for e in stream if e][-1]["meta_info"]["finish_reason"]["type"], "abort")
            self.assertEqual(leader.request("POST", "/pause_generation", {"mode": "retract"})[0], 200)
            self.assertEqual(leader.request("POST", "/continue_generation", {})[0], 200)
            self.assertEqual(leader.post("/generate", greedy)["text"], want)
            status, _, body = leader.request("POST", "/update_weights_from_disk",
                                             {"model_path": os.path.join(harness.ROOT, "share", "default_model")})
            self.assertNotEqual(status, 200, body)
            self.assertIn("not replaced", body)
            info = json.loads(leader.get("/server_info")[2])
            self.assertEqual((info["nnodes"], info["node_rank"], info["tp_size"]), ("2", "0", 2))
            self.assertIsNone(info["dist_token"])

    def test_of_settings_that_are_not_divided(self):
        nodes = ["--nnodes", "2", "--device", "cpu"]
        for flags, message in (
                (("--tp-size", "3"), "tp_size is 3, but counts the ranks of all nodes"),
                (("--tp-size", "2", "--node-rank", "2"), "node_rank is 2"),
                (("--tp-size", "2", "--pp-size", "2"), "--pp-size does not go over several nodes"),
                (("--tp-size", "2", "--dp-size", "2"), "--dp-size does not go over several nodes"),
                (("--tp-size", "2", "--enable-lora"), "--enable-lora does not go over several nodes"),
                (("--tp-size", "2", "--speculative-algorithm", "NEXTN"), "--speculative-algorithm NEXTN does not go over several nodes"),
                (("--tp-size", "2", "--enable-hierarchical-cache", "--hicache-size", "1"), "--enable-hierarchical-cache"),
                (("--tp-size", "2", "--dist-init-addr", "10.0.0.1:1"), "--dist-token"),
                (("--tp-size", "2", "--dist-init-addr", "nowhere"), "must be HOST:PORT")):
            address = () if "--dist-init-addr" in flags else ("--dist-init-addr", "127.0.0.1:1")
            refused = harness.run("serve", "--port", "0", *nodes, *address, *flags)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(message, refused.stderr)
        alone = harness.run("serve", "--port", "0", "--dist-token", "t")
        self.assertIn("needs --nnodes above 1", alone.stderr)


class StartedWrongly(unittest.TestCase):
    def test_another_token(self):
        args = [*COMMON, "--tp-size", "2", "--dist-timeout", "2"]
        leader, follower = failed_start(*args, "--dist-token", "one", follower_args=[*args, "--dist-token", "other"])
        self.assertIn("start all nodes with the same --dist-token", follower)
        self.assertIn("the token of the node is another one", leader)

    def test_the_same_token_from_the_environment(self):
        args = [*COMMON, "--tp-size", "2"]
        with two_nodes(*args, "--dist-token", "one", follower_args=args,
                       follower_env={"ESPALIER_DIST_TOKEN": "one"}) as (leader, _):
            self.assertEqual(leader.request("GET", "/health")[0], 200)

    def test_another_model_and_other_settings(self):
        args = [*COMMON, "--tp-size", "2"]
        other = [*args, "--model-path", os.path.join(GOLDENS, "llama_untied_bias"), "--skip-tokenizer-init"]
        for output in failed_start(*args, follower_args=other):
            self.assertIn("the model (fingerprint of weights", output)
        for output in failed_start(*args, follower_args=[*args, "--page-size", "16"]):
            self.assertIn('--page-size of node 1 is "16", the leader\'s is "1"', output)

    def test_a_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            refused = harness.run("serve", "--port", "0", *COMMON, "--tp-size", "2", "--nnodes", "2",
                                  "--dist-init-addr", f"127.0.0.1:{taken.getsockname()[1]}")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("in use by another program", refused.stderr)

    def test_a_node_that_does_not_come(self):
        for rank in ("0", "1"):
            refused = harness.run("serve", "--port", "0", *COMMON, "--tp-size", "2", "--nnodes", "2", "--node-rank", rank,
                                  "--dist-timeout", "0.3", "--dist-init-addr", f"127.0.0.1:{free_port()}")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("--dist-timeout", refused.stderr)


class Requests:
    """Streams that run until something ends them: what each one's end was."""

    def __init__(self, leader, count):
        self.tokens, self.ends = 0, []
        self.threads = [threading.Thread(target=self.run, args=(leader, i)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, leader, i):
        try:
            for event in leader.stream("/generate", {"text": PROMPTS[i % 4], "sampling_params": {
                    "temperature": 0, "max_new_tokens": 1900, "ignore_eos": True}}):
                self.tokens += 1
                if event and "error" in event:
                    self.ends.append(json.dumps(event))
                    return
            self.ends.append("complete")
        except AssertionError as e:  # an error status
            self.ends.append(str(e))
        except (OSError, http.client.HTTPException):
            self.ends.append("closed")

    def join(self):
        for thread in self.threads:
            thread.join(harness.PATIENCE_S)
        return self.ends


class NodesThatEnd(unittest.TestCase):
    SEED = int(os.environ.get("ESPALIER_SEED", "1"))

    def setUp(self):
        self.seconds_max, self.num_requests, self.num_lost = 0.0, 0, 0

    def tearDown(self):
        # Ten seconds on a computer that has them; a loaded one waits for the state alone.
        print(f"longest end {self.seconds_max:.2f} s, {self.num_requests} requests of which {self.num_lost} had no end")

    def end_of(self, process):
        started = time.monotonic()
        code = process.wait(timeout=harness.PATIENCE_S)
        self.seconds_max = max(self.seconds_max, time.monotonic() - started)
        return code

    COMMON, OF_FOLLOWER = COMMON, []

    def lose(self, victim, tokens, signal_number):
        args = [*self.COMMON, "--tp-size", "2", "--dist-heartbeat-timeout", "1" if signal_number == signal.SIGSTOP else "5"]
        with two_nodes(*args, follower_args=[*args, *self.OF_FOLLOWER]) as (leader, follower):
            requests = Requests(leader, 3)
            harness.wait_until(lambda: requests.tokens >= tokens or len(requests.ends) == 3, "tokens")
            lost, left = (leader, follower) if victim == "leader" else (follower, leader)
            lost.process.send_signal(signal_number)
            code = self.end_of(left.process)
            ends = []
            if victim == "follower" or signal_number != signal.SIGSTOP:
                ends = requests.join()
                self.num_requests += 3
                self.num_lost += 3 - len(ends)
                self.assertEqual(len(ends), 3)
            self.assertEqual(code, CANNOT_GO_ON, left.output())
            self.assertIn("node 0" if victim == "leader" else "node 1", left.output())
            if victim == "follower":
                for end in ends:
                    self.assertTrue("node 1" in end or end == "complete", end)
                self.assertNotEqual(set(ends), {"complete"})

    def test_killed_at_seeded_points(self):
        rng = random.Random(self.SEED)
        for i in range(int(os.environ.get("ESPALIER_KILLS", "12"))):
            victim, tokens = ("leader", "follower")[i % 2], rng.randrange(0, 400)
            with self.subTest(i=i, victim=victim, tokens=tokens):
                self.lose(victim, tokens, signal.SIGKILL)

    def test_that_fall_silent(self):
        self.lose("follower", 30, signal.SIGSTOP)
        self.lose("leader", 30, signal.SIGSTOP)

    def test_that_are_stopped(self):
        self.lose("follower", 30, signal.SIGTERM)
        args = [*self.COMMON, "--tp-size", "2"]
        with two_nodes(*args, follower_args=[*args, *self.OF_FOLLOWER]) as (leader, follower):
            self.assertEqual(leader.stop(), 0)
            self.assertEqual(follower.wait(), 0, follower.output())

    def test_idle_ones_too(self):
        args = [*self.COMMON, "--tp-size", "2"]
        with two_nodes(*args, follower_args=[*args, *self.OF_FOLLOWER]) as (leader, follower):
            follower.process.kill()
            self.assertEqual(self.end_of(leader.process), CANNOT_GO_ON)


@needs_gpus
class NodesOnGpusThatEnd(NodesThatEnd):
    COMMON, OF_FOLLOWER = GPUS, ["--base-gpu-id", "1"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
