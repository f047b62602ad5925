#!/usr/bin/env python3
"""A server's log of requests, and the same load sent again from it."""
import json
import os
import signal
import stat
import tempfile
import threading
import unittest

import harness
from harness import Server, run, wait_until

SECRET = "The password is swordfish"


def lines(path):
    """The lines that are whole."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def load(server):
    """Requests of several kinds, some at once; how many."""
    sampling = {"max_new_tokens": 12, "ignore_eos": True}
    server.post("/generate", {"text": SECRET + " one", "sampling_params": sampling})
    server.post("/generate", {"text": SECRET + " one", "sampling_params": sampling})
    list(server.stream("/generate", {"text": SECRET, "sampling_params": sampling}))
    threads = [threading.Thread(target=server.post, args=("/v1/completions", {
        "model": "m", "prompt": f"{SECRET} {i}", "max_tokens": 5 + i, "ignore_eos": True})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.post("/v1/completions", {"model": "m", "prompt": [SECRET, "two"], "max_tokens": 3, "ignore_eos": True})
    server.post("/generate", {"text": SECRET, "sampling_params": {"n": 2, **sampling}})
    return 9


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = os.path.join(self.folder.name, "requests.jsonl")

    def record(self, *flags):
        """A log of the load, whose server has ended."""
        with Server("--request-log", self.log, *flags) as server:
            count = load(server)
            wait_until(lambda: server.metric("espalier:request_log_written_total") == count, "all lines are written")
            self.assertEqual(server.metric("espalier:request_log_dropped_total"), 0)
            self.assertEqual(server.stop(signal.SIGTERM), 0)
        found = lines(self.log)
        self.assertEqual(len(found), count)
        return found

    def replay(self, server, *flags):
        out = os.path.join(self.folder.name, "report.json")
        result = run("replay", self.log, "--url", f"http://127.0.0.1:{server.port}", "--json", out, *flags)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        with open(out, encoding="utf-8") as file:
            return json.load(file)

    def test_a_redacted_log_gives_the_same_counts(self):
        found = self.record()
        self.assertEqual(stat.S_IMODE(os.stat(self.log).st_mode), 0o600)
        with open(self.log, encoding="utf-8") as file:
            self.assertNotIn("swordfish", file.read())
        for line in found:
            self.assertTrue(line["redacted"])
            self.assertEqual(line["status"], 200)
            self.assertLessEqual(line["ttft_s"], line["e2e_s"])
        prompt, output = (sum(line[name] for line in found) for name in ("prompt_tokens", "completion_tokens"))
        again = os.path.join(self.folder.name, "again.jsonl")
        with Server("--request-log", again) as server:
            report = self.replay(server, "--speed", "0")
            wait_until(lambda: len(lines(again)) == len(found), "all lines are written")
        self.assertEqual((report["completed"], report["failed"]), (len(found), 0))
        self.assertEqual(report["total_output_tokens"], output)
        self.assertEqual(report["output_tokens_differ"], "0")
        self.assertEqual(int(report["log_output_tokens"]), output)
        self.assertEqual(int(report["log_input_tokens"]), prompt)
        # Of requests with one prompt the tokens are those of the log; of others texts stand for them.
        self.assertLessEqual(int(report["prompt_tokens_differ"]), 1)
        single = [line for line in found if line["samples"] == 1]
        sent = [line for line in lines(again) if line["samples"] == 1]
        self.assertEqual(sorted((line["route"], line["prompt_tokens"], line["completion_tokens"]) for line in sent),
                         sorted((line["route"], line["prompt_tokens"], line["completion_tokens"]) for line in single))
        for name in ("median_ttft_ms", "p99_itl_ms", "output_throughput"):
            self.assertGreater(report[name], 0, name)

    def test_whole_prompts_give_the_same_cache_hits(self):
        found = self.record("--request-log-prompts")
        with open(self.log, encoding="utf-8") as file:
            self.assertIn("swordfish", file.read())
        with Server() as server:
            report = self.replay(server, "--concurrency", "1", "--speed", "50")
        self.assertEqual(report["completed"], len(found))
        self.assertEqual(report["prompt_tokens_differ"], "0")
        self.assertEqual(report["output_tokens_differ"], "0")
        self.assertGreater(report["total_cached_tokens"], 0)

    def test_arrivals_have_their_distances(self):
        with Server("--request-log", self.log) as server:
            server.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1}})
            wait_until(lambda: len(lines(self.log)) == 1, "the first line is written")
            first = lines(self.log)[0]
            pair = os.path.join(self.folder.name, "pair.jsonl")
            with open(pair, "w", encoding="utf-8") as file:
                for second in (3, 1):  # lines are in order of the ends
                    file.write(json.dumps(dict(first, time=f"2026-08-01T12:00:0{second}.500000000Z")) + "\n")
            self.log = pair
            report = self.replay(server, "--speed", "2")
            self.assertEqual(report["completed"], 2)
            self.assertGreaterEqual(report["duration"], 1)

    def test_wrong_calls_are_told(self):
        self.assertEqual(run("replay").returncode, 2)
        missing = run("replay", os.path.join(self.folder.name, "none"))
        self.assertEqual(missing.returncode, 1)
        self.assertIn("cannot be read", missing.stderr)
        with open(self.log, "w", encoding="utf-8") as file:
            file.write("no log\n")
        wrong = run("replay", self.log)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("line 1", wrong.stderr)
        refused = run("serve", "--port", "0", "--request-log", self.folder.name)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("no regular file", refused.stderr)


if __name__ == "__main__":
    unittest.main()
