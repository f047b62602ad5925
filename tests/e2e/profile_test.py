#!/usr/bin/env python3
"""Profiles of a running server as traces that a viewer reads, and the watchdog's report of a step that takes long."""
import json
import os
import re
import signal
import stat
import tempfile
import threading
import unittest

import harness
from harness import Server, wait_until


def load(path):
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    return trace, [e for e in trace["traceEvents"] if e["ph"] != "M"]


def slices(events, name=None, track=None):
    return [e for e in events if e["ph"] == "X" and (name is None or e["name"] == name) and (track is None or e["tid"] == track)]


def nanoseconds(event, end=False):
    """Exact: times have three decimals."""
    return round(event["ts"] * 1000) + (round(event["dur"] * 1000) if end else 0)


class Profile(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = os.path.realpath(self.folder.name)

    def traces(self, under=""):
        folder = os.path.join(self.root, under)
        return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".trace.json"))

    def check_nesting(self, events):
        """Turns follow each other, and the phases of each fill it."""
        last, open_turn = 0, None
        for event in slices(events, track=1):
            begin, end = nanoseconds(event), nanoseconds(event, end=True)
            if event["name"] == "turn":
                if open_turn is not None:
                    self.assertEqual(last, nanoseconds(open_turn, end=True), "phases fill their turn")
                self.assertGreaterEqual(begin, last)
                open_turn, last = event, begin
            else:
                self.assertIsNotNone(open_turn)
                self.assertEqual(begin, last)
                self.assertLessEqual(end, nanoseconds(open_turn, end=True))
                last = end
        last = 0
        for event in slices(events, track=2):
            self.assertGreaterEqual(nanoseconds(event), last, "one step runs at a time")
            last = nanoseconds(event, end=True)

    def check_requests(self, events):
        """The slices of each request nest: as many ends as begins, in the order of a stack. The number of requests."""
        stacks, requests = {}, 0
        for event in (e for e in events if e["ph"] in "be"):
            stack = stacks.setdefault(event["id"], [])
            if event["ph"] == "b":
                requests += event["name"] == "request"
                self.assertEqual(bool(stack), event["name"] != "request")
                stack.append(event["name"])
            else:
                self.assertEqual(stack.pop(), event["name"])
        self.assertEqual([s for s in stacks.values() if s], [])
        return requests

    def test_a_profile_of_stated_steps(self):
        with Server("--profile-dir", self.root) as server:
            answer = server.request("POST", "/start_profile",
                                    {"num_steps": 12, "profile_prefix": "first", "profile_id": "1", "output_dir": "a/b"})
            self.assertEqual(answer[::2], (200, "Start profiling.\n"))
            body = {"text": "The weather", "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}}
            server.post("/generate", body)
            path = os.path.join(self.root, "a/b", "first-1-TP-0.trace.json")
            wait_until(lambda: os.path.exists(path), "the trace is written")
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            trace, events = load(path)
            self.assertEqual(trace["otherData"]["steps"], 12)
            self.assertEqual(trace["otherData"]["dropped"], 0)
            steps = slices(events, "step")
            first = steps[0]["args"]["step"]
            self.assertEqual([s["args"]["step"] for s in steps], list(range(first, first + 12)))
            for phase in ("schedule", "launch", "wait", "commit", "publish", "emit"):
                self.assertGreaterEqual(len(slices(events, phase)), 12, phase)
            self.check_nesting(events)
            self.assertEqual(self.check_requests(events), 1)
            # It has ended by itself, and a file is not written twice.
            wait_until(lambda: server.request("POST", "/stop_profile")[0] == 400, "the profile has ended")
            answer = server.request("POST", "/start_profile", {"profile_prefix": "first", "profile_id": "1", "output_dir": "a/b"})
            self.assertEqual(answer[0], 400)
            self.assertIn("give another profile_id", answer[2])

    def test_requests_of_a_profile_that_is_stopped(self):
        with Server("--profile-dir", self.root) as server:
            self.assertEqual(server.request("POST", "/start_profile")[0], 200)
            self.assertEqual(server.request("POST", "/start_profile")[0], 400)

            def generate(tokens):
                server.post("/generate", {"text": "A long story", "rid": f"r{tokens}",
                                          "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}})
            threads = [threading.Thread(target=generate, args=(n,)) for n in (3, 9, 17)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            status, _, text = server.request("POST", "/stop_profile")
            self.assertEqual(status, 200)
            path = self.traces()[0]
            self.assertIn(path, text)
            trace, events = load(path)
            self.check_nesting(events)
            self.assertEqual(self.check_requests(events), 3)
            requests = {e["args"]["rid"]: e["args"] for e in events if e["name"] == "request" and e["ph"] == "b"}
            self.assertEqual({rid: a["completion_tokens"] for rid, a in requests.items()}, {"r3": 3, "r9": 9, "r17": 17})
            self.assertTrue(all(a["ended"] for a in requests.values()))
            names = [e["name"] for e in events if e["ph"] == "b"]
            self.assertEqual({n: names.count(n) for n in set(names)}, {"request": 3, "queue": 3, "prefill": 3, "decode": 3})
            # Tokens of all steps: those of the prompts that were not cached, and one for each further token.
            computed = sum(a["prompt_tokens"] - a["cached_tokens"] + a["completion_tokens"] - 1 for a in requests.values())
            self.assertGreaterEqual(sum(s["args"]["tokens"] for s in slices(events, "step")), computed)
            self.assertEqual(len(slices(events, "step")), trace["otherData"]["steps"])
            # Another one, of an idle server, ends at once.
            self.assertEqual(server.request("POST", "/start_profile", {"profile_id": "idle"})[0], 200)
            self.assertEqual(server.request("POST", "/stop_profile")[0], 200)
            self.assertEqual(load(os.path.join(self.root, "idle-TP-0.trace.json"))[1], [])

    def test_where_a_profile_may_be_written(self):
        with Server("--profile-dir", self.root, "--admin-api-key", "boss") as server:
            key = {"Authorization": "Bearer boss"}
            self.assertEqual(server.get("/start_profile")[0], 401)
            status, _, text = server.request("POST", "/start_profile", {"output_dir": "/tmp"}, key)
            self.assertEqual(status, 400)
            self.assertIn("inside --profile-dir alone", text)
            self.assertEqual(server.get("/start_profile", key)[0], 200)
            self.assertEqual(server.get("/stop_profile", key)[0], 200)
            self.assertEqual(len(self.traces()), 1)
            self.assertEqual(json.loads(server.get("/server_info", key)[2])["profile_dir"], self.root)
        with Server() as server:
            status, _, text = server.request("POST", "/start_profile")
            self.assertEqual(status, 501)
            self.assertIn("--profile-dir", text)
            self.assertEqual(server.get("/start_profile")[0], 403)


class Watchdog(unittest.TestCase):
    def test_a_step_that_takes_long_is_reported_and_goes_on(self):
        # A step is reported where two readings, a millisecond apart, find it at work: a long prompt that is not cached.
        with Server("--soft-watchdog-timeout", "0.000001", "--watchdog-timeout", "0.000002") as server:
            count = 0

            def reported():
                nonlocal count
                count += 1
                server.post("/generate", {"text": f"{count} and " * 150, "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}})
                return server.metric("espalier:very_slow_steps_total") >= 1
            wait_until(reported, "a step is reported")
            log = server.output()
            self.assertRegex(log, r"a step takes long limit=--(soft-)?watchdog-timeout .* phase=\w+ .*entries=\d+")
            self.assertRegex(log, r"watchdog: thread name=\"scheduler\" tid=\d+ state=\w frames=\"")
            self.assertEqual(server.get("/health")[0], 200)
            settings = json.loads(server.get("/server_info")[2])
            self.assertEqual((settings["watchdog_timeout"], settings["soft_watchdog_timeout"]), (0.000002, 0.000001))
            self.assertEqual(server.stop(signal.SIGTERM), 0)

    def test_a_quick_server_has_no_report(self):
        with Server() as server:
            server.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 4}})
            self.assertEqual(server.metric("espalier:slow_steps_total"), 0)
            self.assertEqual(server.metric("espalier:very_slow_steps_total"), 0)
            self.assertIsNone(re.search("watchdog:", server.output()))


if __name__ == "__main__":
    unittest.main()
