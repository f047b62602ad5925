#!/usr/bin/env python3
"""The work that peers are measured under, and the whole comparison with Espalier's engine on the CPU."""
import argparse
import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import compare  # noqa: E402
import measure  # noqa: E402

MODEL = os.path.join(compare.ROOT, "share", "default_model")
BENCH = os.environ.get("ESPALIER_BENCH_BINARY")
# The caller's ESPALIER_* variables do not change what the tests measure.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ESPALIER_")}
ROWS = {row.name: row for row in measure.ROWS}


class FakeEngine:
    """Takes a second for a thousand prompt tokens and a second for a hundred steps."""

    def __init__(self, lost=0):
        self.batches, self.flushes, self.lost = [], 0, lost
        self.started = 0.0

    def generate(self, prompts, max_new_tokens):
        self.batches.append((prompts, max_new_tokens))
        seconds = sum(map(len, prompts)) / 1000 + max_new_tokens / 100
        return seconds, len(prompts) * max_new_tokens - self.lost

    def flush(self):
        self.flushes += 1


class WorkTest(unittest.TestCase):
    def test_prompts_are_drawn_once(self):
        rng = random.Random(1)
        prompts = measure.prompts_of(ROWS["16 requests"], 1000, rng)
        self.assertEqual([len(prompt) for prompt in prompts], [1024] * 16)
        self.assertEqual(len({tuple(prompt) for prompt in prompts}), 16)
        self.assertTrue(all(125 <= id < 1000 for prompt in prompts for id in prompt))
        self.assertNotEqual(prompts, measure.prompts_of(ROWS["16 requests"], 1000, rng))

    def test_groups_share_a_prefix_and_nothing_else(self):
        prompts = measure.prompts_of(ROWS["shared prefix 64 x 16"], 30000, random.Random(1))
        self.assertEqual(len(prompts), 1024)
        self.assertTrue(all(len(prompt) == 2176 for prompt in prompts))
        prefixes = [tuple(prompt[:2048]) for prompt in prompts]
        self.assertEqual(len(set(prefixes)), 64)
        self.assertEqual(prefixes[0], prefixes[15])
        self.assertEqual(len({tuple(prompt) for prompt in prompts}), 1024)

    def test_decode_leaves_the_prompt_out(self):
        engine = FakeEngine()
        row = measure.Bench(engine, 1000).measure(ROWS["one request"])
        self.assertAlmostEqual(row["value"], 100)  # steps a second of the fake
        self.assertEqual(len(row["seconds"]), 3)
        self.assertEqual(engine.flushes, 3)

    def test_prefill_counts_prompt_tokens(self):
        row = measure.Bench(FakeEngine(), 1000).measure(ROWS["prefill 1 x 8192"])
        self.assertAlmostEqual(row["value"], 8192 / (8.192 + 0.01))
        self.assertEqual(row["unit"], "input tok/s")

    def test_a_wrong_number_of_tokens_is_an_error_of_its_row_alone(self):
        engine, rows = FakeEngine(), []

        def report(row):
            rows.append(row)
            engine.lost = 1

        measure.run(engine, 1000, [ROWS["one request"], ROWS["prefill 1 x 8192"]], report)
        self.assertEqual(rows[0]["name"], measure.COLD_START)
        self.assertIn("3 tokens were generated, not 4", rows[1]["error"])
        self.assertIn("3 tokens were generated, not 4", rows[2]["error"])

    def test_shrunk_rows_keep_their_kind(self):
        for row in measure.ROWS:
            small = row.shrunk(64)
            self.assertEqual(small.kind, row.kind)
            self.assertGreater(small.prompt, small.shared)
            self.assertEqual(small.output > 1, row.output > 1)
            self.assertLessEqual(small.requests * (small.prompt + small.output), 1024)
            self.assertIs(row.shrunk(1), row)


class TableTest(unittest.TestCase):
    RESULTS = [
        {"engine": "espalier", "version": "1", "rows": [
            {"name": measure.COLD_START, "unit": "s", "value": 2.0},
            {"name": "one request", "unit": "output tok/s", "value": 240.0}]},
        {"engine": "espalier-http", "version": "1", "rows": [
            {"name": "one request", "unit": "output tok/s", "value": 230.0}]},
        {"engine": "vllm", "version": "2", "error": "ended with 1: out of memory", "rows": [
            {"name": measure.COLD_START, "unit": "s", "value": 60.0},
            {"name": "one request", "unit": "output tok/s", "value": 200.0},
            {"name": "16 requests", "unit": "output tok/s", "error": "x is short"}]},
        {"engine": "sglang", "version": "3", "rows": [
            {"name": "one request", "unit": "output tok/s", "value": 160.0}]},
    ]

    def test_ratios_are_to_the_best_peer(self):
        rows = {row[0]: row for row in compare.table_of(self.RESULTS)}
        self.assertEqual(rows["one request"][2], [240.0, 230.0, 200.0, 160.0])
        self.assertAlmostEqual(rows["one request"][3], 1.2)
        self.assertAlmostEqual(rows[measure.COLD_START][3], 30)  # a shorter time is better
        self.assertEqual(rows["16 requests"][2:], ([None] * 4, None))
        self.assertNotIn("64 requests", rows)

    def test_markdown_names_versions_and_failures(self):
        text = compare.markdown("llama", self.RESULTS, compare.table_of(self.RESULTS))
        self.assertIn("| row | unit | espalier 1 | espalier-http 1 | vllm 2 | sglang 3 |", text)
        self.assertIn("| one request | output tok/s | 240.0 | 230.0 | 200.0 | 160.0 | 1.20 |", text)
        self.assertIn("vllm: 16 requests: x is short", text)
        self.assertIn("vllm: ended with 1: out of memory", text)

    def test_what_an_engine_prints_is_no_row(self):
        program = ("print('INFO loading'); print('[1]'); print('{\"version\": \"9\"}');"
                   "print('{\"name\": \"one request\", \"unit\": \"output tok/s\", \"value\": 3}');"
                   "import sys; print('boom', file=sys.stderr); sys.exit(3)")
        with tempfile.TemporaryFile("w+") as log, contextlib.redirect_stdout(io.StringIO()):
            result = compare.run_engine("vllm", [sys.executable, "-c", program], log)
        self.assertEqual(result["version"], "9")
        self.assertEqual([row["value"] for row in result["rows"]], [3])
        self.assertEqual(result["error"], "ended with 3: boom")

    def test_arguments_are_checked(self):
        self.assertEqual(compare.peer(f"vllm={sys.executable}"), ("vllm", sys.executable))
        self.assertEqual(compare.peer_arguments('sglang={"a": 1}'), ("sglang", {"a": 1}))
        for parse, value in ((compare.peer, "vllm"), (compare.peer, "vllm=/no/python"),
                             (compare.peer, f"other={sys.executable}"), (compare.peer_arguments, "vllm={"),
                             (compare.peer_arguments, "vllm=3"), (compare.peer_arguments, "other={}")):
            with self.assertRaises(argparse.ArgumentTypeError):
                parse(value)


@unittest.skipUnless(BENCH, "ESPALIER_BENCH_BINARY names no espalier_bench")
class EngineTest(unittest.TestCase):
    """Espalier's engine on the CPU, in-process and over HTTP, under every row."""

    def test_every_row_has_a_figure(self):
        build = os.path.dirname(BENCH)
        with tempfile.TemporaryDirectory() as folder:
            files = {name: os.path.join(folder, "table." + name) for name in ("json", "markdown")}
            arguments = json.dumps({"context-length": 2048, "max-running-requests": 8})
            done = subprocess.run(
                [sys.executable, os.path.join(HERE, "compare.py"), "--config", MODEL, "--device", "cpu",
                 "--build", build, "--shrink", "64", "--http", "--peer-arguments", f"espalier={arguments}",
                 "--peer-arguments", f"espalier-http={arguments}", "--json", files["json"], "--markdown",
                 files["markdown"]], capture_output=True, text=True, env=ENVIRONMENT)
            self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)  # 1: a row without a figure
            with open(files["json"], encoding="utf-8") as file:
                document = json.load(file)
            with open(files["markdown"], encoding="utf-8") as file:
                self.assertIn("default_model on CPU", file.read())
        self.assertEqual([result["engine"] for result in document["engines"]], ["espalier", "espalier-http"])
        for result in document["engines"]:
            self.assertEqual([row["name"] for row in result["rows"]], [measure.COLD_START, *ROWS])
            self.assertNotIn("error", result)
            # On a loaded machine the difference of two short times may vanish; nothing else may fail.
            failed = [row["error"] for row in result["rows"] if "error" in row]
            self.assertEqual(set(failed) - {measure.NOISE}, set())
            self.assertTrue(all(row["value"] > 0 for row in result["rows"] if "error" not in row))
            self.assertRegex(result["version"], r"^\d")

    def test_bad_lines_are_answered(self):
        lines = ["no json", "{}", '{"input_ids": [[1, "x"]], "max_new_tokens": 1}',
                 '{"input_ids": [[1, 2], [3]], "max_new_tokens": 2}', '{"flush_cache": true}']
        done = subprocess.run(
            [BENCH, "batches", "--model-path", MODEL, "--device", "cpu"],
            input="\n".join(lines) + "\n", capture_output=True, text=True, env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertTrue(answers[0]["ready"])
        for answer in answers[1:4]:
            self.assertIn("error", answer)
        self.assertEqual(answers[4]["output_tokens"], 4)
        self.assertIn("flushed", answers[5])


if __name__ == "__main__":
    unittest.main()
