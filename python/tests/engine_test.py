"""SGLang's Engine interface, traces of runs, passes over graphs, and what ends a program early."""
import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from unittest import mock

import espalier as sgl

TESTS = os.path.join(os.path.dirname(__file__), "..", "..", "tests")
sys.path[:0] = [os.path.join(TESTS, "e2e"), os.path.join(TESTS, "docs")]
import ingredients  # noqa: E402
from gguf_writer import write_gguf  # noqa: E402
from hub_server import COMMIT, HubServer, Repo  # noqa: E402

SHARE = os.path.join(os.path.dirname(__file__), "..", "..", "share")
MODEL = os.path.join(SHARE, "default_model")
LONG = {"max_new_tokens": 1500, "ignore_eos": True}


def setUpModule():
    global engine
    engine = sgl.Engine(MODEL, num_threads=2, random_seed=1)
    sgl.set_default_backend(engine)


def num_running():
    return engine.get_server_info()["num_running"] + engine.get_server_info()["num_waiting"]


def wait_for_none(test):
    deadline = time.monotonic() + 60
    while num_running() > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    test.assertEqual(num_running(), 0)


@sgl.function
def capital(s, country):
    s += sgl.user("What is the capital of " + country + "?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))


@sgl.function
def endless(s):
    s += "Once upon a time" + sgl.gen("tale", max_tokens=1500, ignore_eos=True)


@sgl.function
def late(s):
    s += "Once" + sgl.gen("long", max_tokens=100, ignore_eos=True)
    s += sgl.gen("tale", max_tokens=2, ignore_eos=True)


@sgl.function
def look(s, picture):
    s += sgl.user(sgl.image(picture) + "What do you see?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))


class ModelNamesTest(unittest.TestCase):
    def test_the_model_that_sees(self):
        picture = os.path.join(SHARE, "seeing_model", "pictures", "shapes.png")
        with sgl.Engine("seeing", num_threads=1) as named:
            self.assertEqual(os.path.basename(named.get_server_info()["model_path"]), "seeing_model")
            answer = look.run(picture=picture, backend=named)["answer"]
        with sgl.Engine(os.path.join(SHARE, "seeing_model"), num_threads=1) as by_folder:
            self.assertEqual(answer, look.run(picture=picture, backend=by_folder)["answer"])
        self.assertTrue(answer.strip())

    def test_a_model_of_a_hub_is_fetched_once(self):
        files = {}
        for entry in os.scandir(MODEL):
            if entry.is_file():
                with open(entry.path, "rb") as file:
                    files[entry.name] = file.read()
        greedy = {"max_new_tokens": 4, "temperature": 0}
        repo = Repo(files, [name for name in files if name.endswith(".safetensors")])
        with tempfile.TemporaryDirectory() as home, HubServer({"org/tiny": repo}) as hub:
            shared = {"HF_ENDPOINT": hub.url, "HF_HOME": home, "HF_HUB_CACHE": "", "HF_TOKEN": "", "NO_PROXY": "*"}
            with mock.patch.dict(os.environ, {**shared, "HF_HUB_OFFLINE": ""}):
                with sgl.Engine("org/tiny", num_threads=1) as fetched:
                    path = fetched.get_server_info()["model_path"]
                    self.assertEqual(path, os.path.join(home, "hub/models--org--tiny/snapshots", COMMIT))
                    self.assertEqual(fetched.generate("The sun", greedy)["text"],
                                     engine.generate("The sun", greedy)["text"])
                with self.assertRaisesRegex(sgl.Error, "no-such-revision"):
                    sgl.Engine("org/tiny", revision="no-such-revision")
                other = os.path.join(home, "elsewhere")
                sgl.Engine("org/tiny", download_dir=other, num_threads=1).shutdown()
                self.assertIn("models--org--tiny", os.listdir(other))
            asked = len(hub.requests)
            with mock.patch.dict(os.environ, {**shared, "HF_HUB_OFFLINE": "1"}):
                sgl.Engine("org/tiny", num_threads=1).shutdown()
                with self.assertRaisesRegex(sgl.Error, "org/absent"):
                    sgl.Engine("org/absent")
            self.assertEqual(len(hub.requests), asked)

    def test_a_path_that_is_not_there(self):
        with self.assertRaisesRegex(sgl.Error, "/no/such/model.*org/name"):
            sgl.Engine("/no/such/model")


class SettingsTest(unittest.TestCase):
    def test_values_of_every_kind(self):
        with sgl.Engine(MODEL, num_threads=1, context_length=None, max_total_tokens=2048, disable_radix_cache=True,
                        schedule_conservativeness=0.5, log_level="error", download_dir=pathlib.Path("unused"),
                        json_model_override_args={"max_position_embeddings": 96}) as own:
            info = own.get_server_info()
            self.assertEqual((info["context_length"], info["max_total_num_tokens"]), (96, 2048))

    def test_a_list_is_all_of_its_values(self):
        with tempfile.TemporaryDirectory() as folder:
            stated = []
            for name in ("fr", "de"):
                ingredients.adapter(pathlib.Path(folder) / name)
                stated.append(f"{name}={folder}/{name}")
            with sgl.Engine(MODEL, num_threads=1, lora_paths=stated) as own:
                both = own.generate(["Bonjour", "Hallo"], {"max_new_tokens": 2}, lora_path=["fr", "de"])
                self.assertEqual([len(one["output_ids"]) for one in both], [2, 2])
                with self.assertRaisesRegex(sgl.Error, "it"):
                    own.generate("Ciao", {"max_new_tokens": 2}, lora_path="it")

    def test_what_is_wrong_is_named(self):
        for settings, said in (({"num_treads": 1}, "num-threads"), ({"num_threads": "many"}, "num_threads"),
                               ({"hicache_size": 1}, "enable-hierarchical-cache"),
                               ({"page_size": [16, 32]}, "page_size.*twice")):
            with self.subTest(settings), self.assertRaisesRegex(ValueError, said):
                sgl.Engine(MODEL, **settings)
        with self.assertRaisesRegex(TypeError, "num_threads cannot be <object"):
            sgl.Engine(MODEL, num_threads=object())


class GgufTest(unittest.TestCase):
    def test_messages_stand_in_the_template_inside_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "heron.gguf")
            write_gguf(path, "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
                       "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
            state = capital.run(country="France", backend=sgl.Engine(path, num_threads=1))
            self.assertTrue(state.text().startswith(
                "<|user|>What is the capital of France?</s><|assistant|>"), state.text())


class GenerateTest(unittest.TestCase):
    GREEDY = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}

    def test_one_and_a_list(self):
        one = engine.generate("Once upon a time", self.GREEDY)
        self.assertEqual(len(one["output_ids"]), 6)
        self.assertEqual(one["meta_info"]["completion_tokens"], 6)
        self.assertEqual(one["meta_info"]["finish_reason"], {"type": "length", "length": 6})
        both = engine.generate(["Once upon a time", "The sun"], self.GREEDY)
        self.assertEqual(both[0]["text"], one["text"])
        self.assertEqual(len(both), 2)
        own = engine.generate(["A", "B"], [{"max_new_tokens": 1}, {"max_new_tokens": 2}])
        self.assertEqual([o["meta_info"]["completion_tokens"] for o in own], [1, 2])
        self.assertEqual(len(engine.generate("A", {"n": 3, "max_new_tokens": 1})), 3)

    def test_ids_and_log_probabilities(self):
        ids = engine.generate(input_ids=[5, 6, 7], sampling_params=self.GREEDY, return_logprob=True,
                              logprob_start_len=0, top_logprobs_num=2, token_ids_logprob=[9])
        meta = ids["meta_info"]
        self.assertEqual(len(meta["input_token_logprobs"]), 3)
        self.assertEqual(meta["input_token_logprobs"][0][0], None)
        self.assertEqual([e[1] for e in meta["output_token_logprobs"]], ids["output_ids"])
        self.assertEqual([len(t) for t in meta["output_top_logprobs"]], [2] * 6)
        self.assertEqual([t[0][1] for t in meta["output_token_ids_logprobs"]], [9] * 6)

    def test_streams_grow(self):
        pieces = list(engine.generate("The sun", self.GREEDY, stream=True))
        texts = [p["text"] for p in pieces]
        self.assertTrue(all(b.startswith(a) for a, b in zip(texts, texts[1:])))
        self.assertEqual(texts[-1], engine.generate("The sun", self.GREEDY)["text"])
        self.assertEqual(pieces[-1]["meta_info"]["finish_reason"]["type"], "length")
        self.assertTrue(all(p["meta_info"]["finish_reason"] is None for p in pieces[:-1]))
        seen = {p["index"] for p in engine.generate(["A", "B"], self.GREEDY, stream=True)}
        self.assertEqual(seen, {0, 1})

    def test_a_stream_that_is_dropped_ends(self):
        pieces = engine.generate("Once", LONG, stream=True)
        next(pieces)
        self.assertEqual(num_running(), 1)
        del pieces
        wait_for_none(self)

    def test_coroutines(self):
        async def all_of_them():
            whole = await asyncio.gather(*(engine.async_generate(p, self.GREEDY)
                                           for p in ("The sun", "One day")))
            last = {}
            async for last in await engine.async_generate("The sun", self.GREEDY, stream=True):
                pass
            return whole, last

        whole, last = asyncio.run(all_of_them())
        self.assertEqual(last["text"], whole[0]["text"])

    def test_what_is_wrong_is_said(self):
        for arguments, said in (((None,), "text"), (("a", {"temperature": -1}), "temperature"),
                                (("a", {"regex": "("}), "regex")):
            with self.assertRaisesRegex(sgl.Error, said):
                engine.generate(*arguments)
        with self.assertRaisesRegex(TypeError, "nonsense"):
            engine.generate("a", nonsense=1)
        with self.assertRaisesRegex(TypeError, "max_tokens.*max_new_tokens"):
            engine.generate(["a", "b"], [{}, {"max_tokens": 1}])
        wait_for_none(self)

    def test_abort_and_shutdown(self):
        own = sgl.Engine(MODEL, num_threads=1)
        thread = threading.Timer(0.3, own.abort_request, kwargs={"abort_all": True})
        thread.start()
        self.assertEqual(own.generate("Once", LONG)["meta_info"]["finish_reason"]["type"], "abort")
        thread.join()
        own.shutdown()
        with self.assertRaisesRegex(sgl.Error, "unavailable"):
            own.generate("Once")
        with self.assertRaises(sgl.Error):
            capital.run(country="France", backend=own)["answer"]
        with sgl.Engine(MODEL, num_threads=1) as other:
            self.assertIn("Paris", capital.run(country="France", backend=other)["answer"])


class RecorderTest(unittest.TestCase):
    def test_spans_tree_and_trace(self):
        recorder = sgl.Recorder()
        s = capital.run(country="France", recorder=recorder)
        gens = [span for span in recorder.spans() if span["kind"] == "gen"]
        self.assertEqual(len(gens), 1)
        self.assertEqual(gens[0]["completion_tokens"],
                         s.get_meta_info("answer")["completion_tokens"])
        self.assertTrue(gens[0]["file"].endswith("engine_test.py"))
        self.assertIn("gen answer", recorder.tree())
        events = json.loads(recorder.chrome_trace())["traceEvents"]
        self.assertIn("gen answer", [e["name"] for e in events])

    def test_a_batch_and_a_graph_are_recorded(self):
        recorder = sgl.Recorder()
        capital.run_batch([{"country": c} for c in ("France", "Italy")], recorder=recorder)
        capital.trace().run(country="Spain", recorder=recorder)
        self.assertEqual(len([s for s in recorder.spans() if s["kind"] == "gen"]), 3)


class GraphTest(unittest.TestCase):
    def test_passes(self):
        @sgl.function
        def tips(s, topic, unused):
            s += "About " + topic + ". "
            forks = s.fork(3)
            for i, f in enumerate(forks):
                f += f"Tip number {i}:" + sgl.gen("tip", max_tokens=2)
            s += forks[0]["tip"] + forks[1]["tip"]

        graph = tips.trace()
        plan = graph.plan()
        self.assertEqual((plan.num_calls, len(plan.stages), plan.width, plan.parallelism),
                         (3, 1, 3, 3.0))
        best = graph.optimize(unused="x")
        self.assertEqual(best.plan().num_calls, 2)  # nobody reads the third
        self.assertEqual(best.parameters, ["topic"])
        self.assertEqual(graph.fold_constants(topic="boats", unused="").parameters, [])
        self.assertEqual(len(graph.eliminate_dead([])), 0)
        self.assertEqual(graph.hoist_common_prefixes().plan().num_calls, 3)
        self.assertEqual(best.run(topic="boats", temperature=0).text(),
                         tips.run("boats", "", temperature=0).text())


class RunTest(unittest.TestCase):
    def test_generator_style(self):
        rows = [{"country": c} for c in ["France", "Italy"] * 120]
        states = capital.run_batch(rows, generator_style=True)
        self.assertFalse(hasattr(states, "__len__"))
        first = next(states)
        self.assertIn("Paris", first["answer"])
        rest = list(states)
        self.assertEqual(len(rest), 239)
        self.assertEqual(rest[-1]["answer"], rest[0]["answer"])

    def test_the_constant_beginning_can_be_cached_ahead(self):
        @sgl.function
        def notes(s, question):
            s += "The lighthouse stands at the end of the pier, and the harbor is old. " * 4
            s += question + sgl.gen("a", max_tokens=1)
            if s["a"] == "never":
                s += "x"

        engine.flush_cache()
        self.assertEqual(notes.cache(), len("The lighthouse stands at the end of the pier, and "
                                            "the harbor is old. ") * 4)
        meta = notes.run("How old?").get_meta_info("a")
        self.assertGreater(meta["cached_tokens"], 0.7 * meta["prompt_tokens"])

    def test_without_a_thread_appending_waits(self):
        @sgl.function
        def program(s, sync):
            s += "Once" + sgl.gen("a", max_tokens=3, ignore_eos=True)
            if sync:
                self.assertEqual(num_running(), 0)
            s += "x" + sgl.gen("b", regex="(")  # fails at once
            return "not reached" if sync else "reached"

        self.assertEqual(program.run(False).ret_value, "reached")
        with self.assertRaisesRegex(sgl.Error, "engine_test.py"):
            program.run(True, use_thread=False)

    def test_what_has_no_effect_is_warned_of(self):
        @sgl.function
        def program(s):
            s += "x"
            with self.assertWarnsRegex(UserWarning, "position_ids_offset"):
                s.fork(2, position_ids_offset=[1, 2])
            with self.assertWarnsRegex(UserWarning, "temperature"):
                sgl.select("c", ["a", "b"], temperature=0.5)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                s.fork(2)
                sgl.select("c", ["a", "b"])

        self.assertIsNone(program.run().error())

    def test_variables_may_be_any_object(self):
        @sgl.function
        def program(s):
            s.set_var("n", 3)
            s["items"] = [1, 2]
            s += "x" + sgl.gen("a", regex="7") + sgl.select("c", ["a", "b"])
            s["a"] = int(s["a"])

        s = program.run()
        self.assertEqual((s["n"], s["items"], s["a"]), (3, [1, 2], 7))
        self.assertEqual(str(s), f"ProgramState({s.text()})")
        scores = s.get_meta_info("c")["input_token_logprobs"]
        self.assertEqual(len(scores), 2)
        self.assertLess(scores[0][0][0], 0)

    def test_branches_are_items(self):
        @sgl.function
        def program(s):
            forks = s.fork(2)
            forks[0] += "a"
            forks[1] += "b"
            with self.assertRaises(ValueError):
                forks[0] = forks[1]
            return [f.text() for f in forks]

        self.assertEqual(program.run().ret_value, ["a", "b"])

    def test_pieces_come_with_their_log_probabilities(self):
        @sgl.function
        def story(s):
            s += "Once" + sgl.gen("a", max_tokens=24, ignore_eos=True, return_logprob=True,
                                  temperature=0)

        async def read():
            s = story.run(stream=True)
            return s, [pair async for pair in s.text_async_iter("a", return_meta_data=True)]

        s, pairs = asyncio.run(read())
        self.assertGreater(len(pairs), 2)
        self.assertEqual("".join(text for text, _ in pairs), s["a"])
        count = 0
        for text, meta in pairs:
            count += len(meta["output_token_logprobs"])
            self.assertNotEqual(text, "")
            self.assertEqual(meta["output_token_logprobs_length"], count)
            self.assertEqual(meta["completion_tokens"], count)
        self.assertEqual([e for _, meta in pairs for e in meta["output_token_logprobs"]],
                         s.get_meta_info("a")["output_token_logprobs"])
        self.assertEqual(pairs[-1][1]["finish_reason"]["type"], "length")

    def test_a_join_keeps_what_its_branches_have_computed(self):
        @sgl.function
        def parts(s):
            s += "Some short stories.\n"
            forks = s.fork(3)
            forks += lambda i: f"Story {i}: " + sgl.gen("a", max_tokens=8, ignore_eos=True) + "\n"
            forks.join("concate_and_append")
            s += "Again: " + sgl.gen("end", max_tokens=4, ignore_eos=True)

        cached = {}
        for keeps in (True, False):
            sgl.flush_cache()
            sgl.global_config.enable_parallel_encoding = keeps
            try:
                s = parts.run(temperature=0)
            finally:
                sgl.global_config.enable_parallel_encoding = True
            self.assertIsNone(s.error())
            self.assertEqual(s.text().count("Story"), 3)
            meta = s.get_meta_info("end")
            cached[keeps] = meta["cached_tokens"] / meta["prompt_tokens"]
        self.assertGreater(cached[True], 0.9)
        self.assertLess(cached[False], 0.6)

    def test_meta_information_comes_with_the_last_piece(self):
        async def read():
            s = capital.run(country="France", stream=True)
            pairs = [pair async for pair in s.text_async_iter("answer", return_meta_data=True)]
            return s, pairs

        s, pairs = asyncio.run(read())
        self.assertEqual("".join(text for text, _ in pairs), s["answer"])
        self.assertEqual(pairs[-1][1]["completion_tokens"],
                         s.get_meta_info("answer")["completion_tokens"])

    def test_the_lock_is_released_in_every_wait(self):
        def ticks_during(work):
            done, count = threading.Event(), [0]

            def tick():
                while not done.wait(0.001):
                    count[0] += 1

            thread = threading.Thread(target=tick)
            thread.start()
            work()
            done.set()
            thread.join()
            return count[0]

        self.assertGreater(ticks_during(lambda: engine.generate("Once", {**LONG,
                                                                         "max_new_tokens": 100})), 5)
        self.assertGreater(ticks_during(lambda: capital.run_batch([{"country": "France"}] * 30)), 5)
        s = late.run(stream=True)
        self.assertGreater(ticks_during(lambda: next(s.text_iter("tale"))), 5)


# Ends by KeyboardInterrupt in each kind of wait; then nothing runs any more.
INTERRUPTED = """
import os, signal, sys, threading, time
import espalier as sgl
engine = sgl.Engine(sys.argv[1], num_threads=1)
sgl.set_default_backend(engine)

@sgl.function
def endless(s, i=0):
    s += f"{i}. Once upon a time" + sgl.gen("tale", max_tokens=1500, ignore_eos=True)

@sgl.function
def reads(s):
    endless(s)
    s["tale"]

def stream():
    for _ in endless.run(stream=True).text_iter("tale"):
        pass

waits = {
    "run": lambda: endless.run(),
    "read": lambda: reads.run(),
    "text": lambda: endless.run(stream=True).text(),
    "text_iter": stream,
    "run_batch": lambda: endless.run_batch([{"i": i} for i in range(300)]),
    "generate": lambda: engine.generate("Once", {"max_new_tokens": 1500, "ignore_eos": True}),
}
for name, wait in waits.items():
    timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    try:
        wait()
        print(name, "was not interrupted")
    except KeyboardInterrupt:
        deadline = time.monotonic() + 20
        def left():
            info = engine.get_server_info()
            return info["num_running"] + info["num_waiting"]
        while left() and time.monotonic() < deadline:
            time.sleep(0.01)
        print(name, "interrupted,", left(), "left")
"""


class InterruptTest(unittest.TestCase):
    def test_control_c_ends_every_wait_and_what_it_waits_for(self):
        result = subprocess.run([sys.executable, "-B", "-c", INTERRUPTED, MODEL], timeout=200,
                                capture_output=True, text=True, check=False,
                                preexec_fn=lambda: signal.signal(signal.SIGINT,
                                                                 signal.default_int_handler))
        self.assertEqual(result.stdout.splitlines(),
                         [f"{name} interrupted, 0 left" for name in
                          ("run", "read", "text", "text_iter", "run_batch", "generate")],
                         result.stderr)
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
