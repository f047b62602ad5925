#!/usr/bin/env python3
"""The command line, as a user types it: help, mistakes, files, exit codes."""
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from harness import BINARY, Server, clean_environment, run, run_bench


class CommandTest(unittest.TestCase):
    def assert_usage_error(self, result, words):
        self.assertEqual(result.returncode, 2, result)
        self.assertIn(words, result.stderr)
        self.assertEqual(result.stdout, "")

    def test_help_and_version(self):
        for command in ("serve", "generate", "chat", "run", "inspect", "tokenize", "template", "bench serving",
                        "bench offline", "grammar check", "grammar mask",
                        "grammar explain", "grammar test", "grammar conformance"):
            result = run(*command.split(), "--help")
            self.assertEqual(result.returncode, 0, result)
            self.assertIn("--config", result.stdout)
        for command in ("grammar", "radix", "host", "workloads", "overhead"):
            result = run_bench(command, "--help")
            self.assertEqual(result.returncode, 0, result)
            self.assertIn("--config", result.stdout)
            moved = run("bench", command, "--help")
            self.assert_usage_error(moved, f"espalier_bench {command}")
            self.assertEqual(moved.stderr.count("\n"), 1)
        self.assertIn("serve", run("--help").stdout)
        self.assertEqual(run("help", "serve").stdout, run("serve", "--help").stdout)
        self.assert_usage_error(run("help", "sreve"), "did you mean serve?")
        offline = run("bench", "offline", "--help").stdout
        for words in (("help", "bench", "offline"), ("bench", "help", "offline"), ("--help", "bench", "offline")):
            self.assertEqual(run(*words).stdout, offline)
        self.assertEqual(run_bench("help", "radix").stdout, run_bench("radix", "--help").stdout)
        self.assert_usage_error(run_bench("radii"), "did you mean radix?")
        self.assertEqual(run("help", "help").stdout, run("--help").stdout)
        self.assertRegex(run("--version").stdout, r"^espalier \d+\.\d+\.\d+(\+\d+\.g[0-9a-f]{9,})?\n$")

    def test_a_compiled_program_runs(self):
        nodes = [{"kind": "ConstantText", "stream": 0, "text": "Once upon a time, "},
                 {"kind": "Argument", "stream": 0, "name": "hero"},
                 {"kind": "Fork", "stream": 0, "streams": [1, 2]},
                 {"kind": "GetForkItem", "stream": 1, "fork": 2, "index": 0},
                 {"kind": "Gen", "stream": 1, "name": "a", "options": {"max_tokens": 4}},
                 {"kind": "GetForkItem", "stream": 2, "fork": 2, "index": 1},
                 {"kind": "Gen", "stream": 2, "name": "a", "options": {"max_tokens": 4}},
                 {"kind": "Variable", "stream": 0, "source_stream": 1, "source_name": "a"},
                 {"kind": "Gen", "stream": 0, "name": "b", "options": {"max_tokens": 4}}]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "story.json")
            with open(path, "w") as f:
                json.dump({"name": "story", "parameters": ["hero"], "num_streams": 3, "nodes": nodes}, f)
            flags = ("--arg", "hero=a cat", "--temperature", "0")
            result = run("run", path, *flags, "--json", "--tree",
                         "--trace", os.path.join(folder, "trace.json"))
            self.assertEqual(result.returncode, 0, result)
            answer = json.loads(result.stdout)
            self.assertTrue(answer["text"].startswith("Once upon a time, a cat"))
            self.assertTrue(answer["text"].endswith(answer["variables"]["b"]))
            self.assertIn("gen b", result.stderr)
            with open(os.path.join(folder, "trace.json")) as f:
                names = {event["name"] for event in json.load(f)["traceEvents"]}
            self.assertLessEqual({"fork", "gen a", "gen b"}, names)
            optimised = run("run", path, *flags, "--json", "--optimize")
            self.assertEqual(json.loads(optimised.stdout)["text"], answer["text"])
            # The branch that nobody reads is gone.
            self.assertIn("3 calls in 2 stages", run("run", path, "--plan").stdout)
            self.assertIn("2 calls in 2 stages", run("run", path, "--plan", "--optimize").stdout)
            self.assert_usage_error(run("run", path), "not given its argument")
            self.assert_usage_error(run("run", path, "--arg", "hero"), "NAME=TEXT")
            self.assert_usage_error(run("run"), "name one program")
            self.assertEqual(run("run", os.path.join(folder, "none.json")).returncode, 1)
            with open(path, "w") as f:
                f.write('{"nodes": [{"kind": "Gen", "stream": 4}]}')
            self.assert_usage_error(run("run", path), "no fork before it makes")

    def test_a_wrong_command_or_flag_suggests_the_right_one(self):
        self.assert_usage_error(run("sreve"), "did you mean serve?")
        self.assert_usage_error(run("bench", "servign"), "did you mean serving?")
        self.assert_usage_error(run("serve", "--prot", "1"), "did you mean --port?")
        self.assert_usage_error(run("--port", "1"), "a command comes first")
        self.assert_usage_error(run("generate", "x", "--port", "1"), "--port is a flag of another command")
        self.assert_usage_error(run("generate", "--prompt", "x"), "stands without a flag: espalier generate PROMPT")
        for words in (("grammar", "test"), ("grammar", "conformance", "--schemas")):
            self.assertIn("cannot open /no/such: No such file", run(*words, "/no/such").stderr)
            self.assertIn("is a folder", run(*words, "/").stderr)
        self.assert_usage_error(run("serve", "--port", "x"), "not a whole number")
        self.assert_usage_error(run("serve", env={"ESPALIER_PROT": "1"}),
                                "did you mean ESPALIER_PORT?")
        self.assert_usage_error(run("serve", "--disable-radix-cache", "--schedule-policy", "lpm"),
                                "contradicts")
        self.assert_usage_error(run("serve", "--disable-radix-cache", "--radix-eviction-policy", "lfu"),
                                "--radix-eviction-policy contradicts --disable-radix-cache")
        self.assertEqual(run().returncode, 2)

    def test_a_wrong_file_says_where(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "c.toml")
            with open(path, "w", encoding="utf-8") as f:
                f.write("prot = 1\n")
            self.assert_usage_error(run("serve", "--config", path), "did you mean port?")

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for command in (["--version"], ["serve", "--help"], ["tokenize", "x"],
                            ["generate", "x", "--max-new-tokens", "2"]):
                result = subprocess.run([BINARY, *command], stdout=full, stderr=subprocess.PIPE,
                                        text=True, env=clean_environment(), check=False)
                self.assertEqual(result.returncode, 1, result)
                self.assertIn("standard output could not be written", result.stderr)
            # What is shown on standard error alone is no part of the work.
            result = subprocess.run([BINARY, "generate", "x", "--max-new-tokens", "2"], stderr=full,
                                    stdout=subprocess.PIPE, env=clean_environment(), check=False)
            self.assertEqual(result.returncode, 0, result)
            result = subprocess.run([BINARY, "serve", "--no-such-flag"], stderr=full,
                                    env=clean_environment(), check=False)
            self.assertEqual(result.returncode, 2, result)

    def test_an_unknown_model_and_a_corrupt_one_are_told(self):
        result = run("serve", "--model-path", "/no/such/model")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("/no/such/model", result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            result = run("generate", "x", "--model-path", folder)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("config.json", result.stderr)
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
                f.write('{"architectures": ["LlamaForCausalLM"], "hidden_size": ')
            result = run("serve", "--model-path", folder)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("config.json", result.stderr)
            self.assertTrue(result.stderr.startswith("error: "), result.stderr)

    def test_truncated_weights_are_told(self):
        model = json.loads(run("inspect", "--json").stdout)["model_path"]
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(model):
                source = os.path.join(model, name)
                if not os.path.isfile(source):
                    continue
                with open(source, "rb") as f:
                    content = f.read()
                if name.endswith(".safetensors"):
                    content = content[:len(content) // 2]
                with open(os.path.join(folder, name), "wb") as f:
                    f.write(content)
            result = run("serve", "--model-path", folder)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn(".safetensors", result.stderr)

    def test_grammars_are_checked_and_shown(self):
        result = run("grammar", "check", '{"type": "integer"}', "--json")
        self.assertTrue(json.loads(result.stdout)["accepted"], result)
        result = run("grammar", "check", "--kind", "regex", "(a", "--json")
        self.assertEqual(result.returncode, 1, result)
        self.assertIn("does not end", json.loads(result.stdout)["error"])
        self.assert_usage_error(run("grammar", "check"), "give the grammar")
        self.assert_usage_error(run("grammar", "chek"), "did you mean check?")
        result = json.loads(run("grammar", "mask", "--kind", "regex", "(yes|no)!", "--after", "ye",
                                "--json").stdout)
        self.assertEqual(result["forced"], "s!")
        self.assertEqual([t["token"] for t in result["tokens"]], ["s"])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.svg")
            run("grammar", "explain", "--kind", "regex", "(yes|no)!", "--svg", path)
            with open(path, encoding="utf-8") as f:
                self.assertIn("</svg>", f.read())

    def test_grammar_cases_are_judged(self):
        cases = [
            {"kind": "regex", "grammar": "a+", "input": "aa", "accept": True},
            {"kind": "regex", "grammar": "a+", "input": "b", "accept": True},
            {"kind": "json", "input": "[1]", "accept": True},
            {"kind": "ebnf", "grammar": "root ::= x", "input": "x", "accept": True},
        ]
        schema = {"name": "s", "schema": {"type": "integer"},
                  "tests": [{"valid": True, "data": 1}, {"valid": False, "data": "x"}]}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cases.jsonl")
            with open(path, "w", encoding="utf-8") as f:
                f.write("\n".join(map(json.dumps, cases)) + "\n")
            result = json.loads(run("grammar", "test", path, "--json").stdout)
            self.assertEqual((result["agreements"], result["disagreements"], result["refused"]),
                             (2, 1, 1), result)
            self.assertIn("disagreements", run("grammar", "test", path).stdout)
            with open(path, "w", encoding="utf-8") as f:
                f.write(json.dumps(schema) + "\n")
            result = json.loads(run("grammar", "conformance", "--schemas", path, "--json").stdout)
            self.assertEqual([result[k] for k in ("total", "right", "valid_rejected",
                                                  "invalid_accepted", "declined")],
                             [1, 1, 0, 0, 0])
            out = os.path.join(folder, "bench.json")
            run_bench("grammar", "--schemas", path, "--json", out)
            with open(out, encoding="utf-8") as f:
                self.assertEqual(json.load(f)["schemas"], 1)
            with open(path, "a", encoding="utf-8") as f:
                f.write("{}\n")
            result = run("grammar", "conformance", "--schemas", path)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("cases.jsonl:2", result.stderr)

    def test_what_needs_no_model_is_told_before_one_is_loaded(self):
        def told(*args):
            result = run("serve", *args)
            self.assertEqual(result.returncode, 1, result)
            # Nothing has been logged before it: no device chosen, no model loaded.
            self.assertRegex(result.stderr, "^error: [^\n]*\n$")
            return result.stderr
        with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.assertIn(f"port {port} of 127.0.0.1 is in use", told("--port", port))
            # Set aside for documentation: nobody has it.
            self.assertIn("192.0.2.1", told("--port", "0", "--host", "192.0.2.1"))
            self.assertIn("--host", told("--port", "0", "--host", "no.such.host.invalid"))
            path = os.path.join(folder, "chat.jinja")
            self.assertIn(path, told("--port", "0", "--chat-template", path))
            with open(path, "w", encoding="utf-8") as f:
                f.write("{% for message in messages %}")
            self.assertIn("--chat-template", told("--port", "0", "--chat-template", path))
            # Settings that the server alone checks.
            self.assertIn("max_body_bytes", told("--port", "0", "--max-body-bytes", "1"))

    def test_a_sampling_flag_out_of_range_is_told_before_a_model_is_loaded(self):
        for flag, value, told in (("top-p", "0", "above 0 and at most 1"),
                                  ("temperature", "-1", "between 0 and"),
                                  ("min-p", "1.5", "between 0 and 1"),
                                  ("repetition-penalty", "0", "above 0 and at most 2"),
                                  ("presence-penalty", "-3", "between -2 and 2")):
            result = run("generate", "x", "--model-path", "/no/such/model", f"--{flag}", value)
            self.assert_usage_error(result, f"--{flag}: ")
            self.assertIn(told, result.stderr)
        self.assert_usage_error(run("generate", ""), "the prompt is empty")

    def test_generate_takes_its_prompt_from_an_argument_or_from_standard_input(self):
        flags = ("--temperature", "0", "--max-new-tokens", "12", "--ignore-eos")
        by_argument = run("generate", "The sun", *flags)
        by_input = run("generate", *flags, stdin="The sun")
        self.assertEqual(by_argument.returncode, 0, by_argument)
        self.assertEqual(by_argument.stdout, by_input.stdout)
        self.assertGreater(len(by_argument.stdout.strip()), 0)
        self.assertIn("12 tokens", by_argument.stderr)
        self.assertEqual(run("generate", stdin="").returncode, 2)

    def test_a_seed_reproduces(self):
        flags = ("generate", "The", "--temperature", "1", "--max-new-tokens", "16", "--quiet",
                 "--sampling-seed")
        self.assertEqual(run(*flags, "7").stdout, run(*flags, "7").stdout)

    def test_chat_answers_each_line_of_a_pipe(self):
        result = run("chat", "--temperature", "0", "--max-new-tokens", "8",
                     stdin="Hello.\n/reset\n/nonsense\nHello.\n/exit\nnot read\n")
        self.assertEqual(result.returncode, 0, result)
        self.assertEqual(result.stderr.count(" tok/s"), 2, result.stderr)
        self.assertIn("no command /nonsense", result.stderr)

    def test_inspect_tells_the_plan(self):
        result = run("inspect")
        self.assertEqual(result.returncode, 0, result)
        for words in ("architecture", "parameters", "KV", "context"):
            self.assertIn(words, result.stdout)
        facts = json.loads(run("inspect", "--json").stdout)
        self.assertGreater(facts["num_parameters"], 0)
        self.assertGreater(facts["kv_bytes_per_token"], 0)
        shares = facts["memory_by_dtype"].values()
        self.assertEqual(sum(share["bytes"] for share in shares), facts["weight_bytes"])
        self.assertGreater(facts["tokenizer"]["vocab_size"], 0)
        self.assertTrue(facts["has_chat_template"])
        named = json.loads(run("inspect", facts["model_path"], "--json", "--batch", "3").stdout)
        self.assertEqual(named["batch"], 3)
        self.assertEqual(named["kv_bytes_at_batch"],
                         3 * named["context_length"] * named["kv_bytes_per_token"])
        self.assert_usage_error(run("inspect", "a", "b"), "one model")

    def test_inspect_shows_the_program(self):
        printed = run("inspect", "--program", "--tokens", "4", "--context", "100")
        self.assertEqual(printed.returncode, 0, printed)
        for words in ("program of", "matmul", "attention", "hidden", "total"):
            self.assertIn(words, printed.stdout)
        program = json.loads(run("inspect", "--program", "--json").stdout)["program"]
        self.assertEqual(sum(op["flops"] for op in program["ops"]), program["total"]["flops"])
        with tempfile.TemporaryDirectory() as folder:
            picture = os.path.join(folder, "program.svg")
            self.assertEqual(run("inspect", "--program-svg", picture).returncode, 0)
            with open(picture, encoding="utf-8") as file:
                self.assertTrue(file.read().startswith("<svg"))

    def test_tokenize_round_trips_through_the_ids(self):
        ids = run("tokenize", "Hello world").stdout.split()
        self.assertGreater(len(ids), 0)
        self.assertTrue(all(i.isdigit() for i in ids), ids)
        self.assertEqual(run("tokenize", stdin="Hello world").stdout.split(), ids)
        self.assertEqual(json.loads(run("tokenize", "--json", stdin="Hello world").stdout),
                         [int(i) for i in ids])
        pieces = run("tokenize", "--pieces", "Hello world").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in pieces], ids)
        back = run("tokenize", "--decode", "--no-special", stdin=" ".join(ids))
        self.assertEqual(back.stdout, "Hello world")
        lines = run("tokenize", "--lines", "--json", stdin="Hello world\n\nHello\n")
        lists = [json.loads(line) for line in lines.stdout.splitlines()]
        self.assertEqual(len(lists), 3)
        self.assertEqual(lists[0], [int(i) for i in ids])
        back = run("tokenize", "--decode", "--lines", "--no-special", stdin=lines.stdout)
        self.assertEqual(back.stdout, "Hello world\n\nHello\n")
        for wrong in ("x", "1.5", "99999999", "-1"):
            result = run("tokenize", "--decode", stdin=wrong)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("error: ", result.stderr)
        self.assertIn("line 2: 'x'", run("tokenize", "--decode", "--lines", stdin="1\nx\n").stderr)
        result = run("tokenize", "--tokenizer", "/nonexistent", "a")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nonexistent does not exist", result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("no tokenizer in this folder",
                          run("tokenize", "--tokenizer", folder, "a").stderr)
            self.assertIn("holds no config.json", run("inspect", folder).stderr)

    def test_template_prints_the_prompt(self):
        with tempfile.TemporaryDirectory() as folder:
            def write(name, text):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                return path
            template = write("t.jinja", "{{ bos_token }}{% for m in messages %}<{{ m.role }}>"
                             "{{ m.content }}{{ eos_token }}{% endfor %}"
                             "{% if tools %}{{ tools | tojson }}{% endif %}"
                             "{% if add_generation_prompt %}<assistant>{% endif %}")
            messages = write("m.json", json.dumps([{"role": "user", "content": "h\u00e9"}]))
            tools = write("tools.json", json.dumps([{"name": "f"}]))
            result = run("template", "--chat-template", template, "--messages", messages, "--tools",
                         tools, "--bos-token", "<s>", "--eos-token", "</s>")
            self.assertEqual(result.stdout, '<s><user>h\u00e9</s>[{"name": "f"}]<assistant>')
            result = run("template", "--chat-template", template, "--messages", messages,
                         "--no-generation-prompt")
            self.assertEqual(result.stdout, "<user>h\u00e9")
            bad = write("bad.jinja", "{{ raise_exception('no ' ~ messages[0].role) }}")
            result = run("template", "--chat-template", bad, "--messages", messages)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("no user", result.stderr)
            self.assert_usage_error(run("template", "--messages", messages), "--chat-template")
            result = run("template", "--chat-template", template, "--messages", template)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("not JSON", result.stderr)
            own = write("tokenizer_config.json", '{"chat_template": "{{ messages | length }}"}')
            result = run("template", "--chat-template", own, "--messages", messages)
            self.assertEqual(result.stdout, "1")
            for wrong, said in (("[{},\n{]", "line 2 behind 6 bytes"), ("", "incomplete JSON"),
                                ("[] []", "more than one value"), ("7", "a list of messages")):
                result = run("template", "--chat-template", template, "--messages", "-", stdin=wrong)
                self.assertEqual(result.returncode, 1, result)
                self.assertIn(said, result.stderr)
                self.assertIn("standard input", result.stderr)
            self.assertIn("a list of tools", run("template", "--chat-template", template, "--messages",
                                                 messages, "--tools", own).stderr)
            self.assert_usage_error(run("template", "--chat-template", "-", "--messages", "-"),
                                    "standard input")

    def test_bench_offline_reports(self):
        result = run("bench", "offline", "--num-prompts", "8", "--input-len", "32", "--output-len",
                     "8", "--dataset-name", "shared-prefix", "--num-groups", "2", "--json")
        self.assertEqual(result.returncode, 0, result)
        report = json.loads(result.stdout)
        self.assertEqual(report["completed"], 8)
        self.assertEqual(report["total_input_tokens"], 8 * 32)
        self.assertEqual(report["total_output_tokens"], 8 * 8)

    def test_bench_radix_and_host_report(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            result = run_bench("radix", "--max-nodes", "1000", "--rounds", "1", "--json", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path) as file:
                rows = json.load(file)
            self.assertEqual([row["page_size"] for row in rows], [1, 16])
            self.assertGreater(rows[0]["match_per_second"], 0)
            result = run_bench("host", "--running", "4", "--waiting", "100", "--steps", "20",
                         "--output-len", "16", "--json", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path) as file:
                row = json.load(file)
            self.assertGreater(row["host_us_per_step"]["p50"], 0)
            self.assertGreaterEqual(row["host_us_per_step"]["p99"], row["host_us_per_step"]["p50"])
            # The same two ways for every benchmark: a file beside the table, or JSON in its place.
            self.assertIn("us a step", result.stdout)
            printed = run_bench("host", "--json", "--running", "4", "--waiting", "100", "--steps", "20",
                          "--output-len", "16")
            self.assertEqual(json.loads(printed.stdout).keys(), row.keys())
            result = run("bench", "offline", "--num-prompts", "1", "--random-input-len", "4",
                         "--random-output-len", "2", "--json", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("tokens", result.stdout)
            with open(path) as file:
                self.assertEqual(json.load(file)["completed"], 1)
        self.assert_usage_error(run_bench("host", "--running", "4", "--output-len", "2"),
                                "--waiting")

    def test_a_result_file_that_cannot_be_written_is_told_before_the_work_and_after(self):
        offline = ("bench", "offline", "--num-prompts", "1", "--random-input-len", "4",
                   "--random-output-len", "2")
        self.assert_usage_error(run(*offline, "--output-file", "/no/such/folder/x.json"),
                                "there is no folder /no/such/folder")
        for result in (run(*offline, "--output-file", "/dev/full"),
                       run_bench("radix", "--max-nodes", "1000", "--rounds", "1", "--json", "/dev/full"),
                       run("grammar", "explain", "--kind", "regex", "a|b", "--svg", "/dev/full")):
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("/dev/full could not be written: No space left on device", result.stderr)

    def test_bench_workloads_reports(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            result = run_bench("workloads", "--only", "json_decoding", "--scale", "0.2",
                         "--json", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path) as file:
                row = json.load(file)["workloads"][0]
            self.assertGreater(row["hit_rate"], 0)
            self.assertLessEqual(row["hit_rate"], row["hit_rate_optimal"] + 1e-9)
            self.assertGreater(row["throughput_cache_off"], 0)
            plots = run_bench("workloads", "--from", path, "--plots", folder)
            if shutil.which("rsvg-convert"):
                self.assertEqual(plots.returncode, 0, plots.stderr)
                for name in ("throughput", "hit_rate"):
                    with open(os.path.join(folder, f"workloads_{name}.svg")) as file:
                        self.assertIn("json_decoding", file.read())
                    with open(os.path.join(folder, f"workloads_{name}.png"), "rb") as file:
                        self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
            else:
                self.assertEqual(plots.returncode, 1, plots)
                self.assertIn("librsvg2-bin", plots.stderr)
                print("no rsvg-convert: PNG plots are not tested")
        self.assert_usage_error(run_bench("workloads", "--only", "nothing"), "retrieval")

    def test_bench_overhead_reports(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            result = run_bench("overhead", "--requests", "4", "--prompt-len", "32",
                         "--output-len", "4", "--repeats", "2", "--json", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path) as file:
                report = json.load(file)
            self.assertGreater(report["tree_seconds"], 0)
            self.assertLess(report["tree_share"], 0.5)
            self.assertGreater(report["throughput_cache_off"], 0)

    def test_the_events_setting_is_read(self):
        self.assert_usage_error(run("serve", "--kv-events-config", "yes"), "JSON object")
        self.assert_usage_error(run("serve", "--kv-events-config", '{"publisher": "kafka"}'),
                                "must be \"http\"")
        self.assert_usage_error(run("serve", "--kv-events-config", '{"buffer_steps": 0}'),
                                "buffer_steps is 0")

    def test_bench_serving_reports_every_dialect(self):
        with Server() as server:
            url = f"http://127.0.0.1:{server.port}"
            for backend in ("sglang", "sglang-oai", "sglang-oai-chat", "sglang-oai-ids"):
                result = run("bench", "serving", "--base-url", url, "--backend", backend,
                             "--num-prompts", "6", "--input-len", "24", "--output-len", "6",
                             "--max-concurrency", "3", "--json",
                             *(("--vocab-size", "200") if backend == "sglang-oai-ids" else ()))
                self.assertEqual(result.returncode, 0, result)
                report = json.loads(result.stdout)
                self.assertEqual((report["completed"], report["failed"]), (6, 0), report)
                self.assertGreater(report["output_throughput"], 0)
                if backend in ("sglang", "sglang-oai-ids"):
                    self.assertEqual(report["total_input_tokens"], 6 * 24, report)
            result = run("bench", "serving", "--base-url", url, "--preset", "document_qa", "--scale",
                         "1000")
            self.assert_usage_error(result, "--scale")
        self.assertEqual(run("bench", "serving", "--base-url", url).returncode, 1)

    def test_chat_is_ended_by_the_end_of_its_input(self):
        process = subprocess.Popen([BINARY, "chat"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=clean_environment())
        process.communicate()
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
