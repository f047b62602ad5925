"""The language over the engine in this process, with the model that ships."""
import asyncio
import gc
import inspect
import json
import os
import sys
import threading
import time
import unittest

import espalier as sgl

MODEL = os.path.join(os.path.dirname(__file__), "..", "..", "share", "default_model")


def setUpModule():
    sgl.set_default_backend(sgl.Engine(MODEL, num_threads=2, random_seed=1))


@sgl.function
def capital(s, country):
    """Asks for a capital."""
    s += sgl.user("What is the capital of " + country + "?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))


class FieldsTest(unittest.TestCase):
    """The Python signatures against the table of request fields: a field that is missing fails."""

    def missing(self, function, renamed=()):
        names = {dict(renamed).get(name, name) for name in sgl._native.default_names()}
        return names - set(inspect.signature(function).parameters)

    def test_gens_take_every_field(self):
        for function in (sgl.gen, sgl.gen_int, sgl.gen_string):
            self.assertEqual(self.missing(function), set(), function.__name__)

    def test_runs_take_every_field_as_a_default_of_their_gens(self):
        for function in (capital.run, capital.run_batch):
            self.assertEqual(self.missing(function, [("max_tokens", "max_new_tokens")]), set())


class GenTest(unittest.TestCase):
    def test_a_gen_answers(self):
        s = capital.run(country="France")
        self.assertIsNone(s.error())
        self.assertIn("Paris", s["answer"])
        self.assertIn(s["answer"], s.text())
        self.assertEqual(s.messages()[0],
                         {"role": "user", "content": "What is the capital of France?"})
        self.assertEqual(s.messages()[1], {"role": "assistant", "content": s["answer"]})
        meta = s.get_meta_info("answer")
        self.assertGreater(meta["completion_tokens"], 0)
        self.assertEqual(capital.__doc__, "Asks for a capital.")
        self.assertEqual(capital("France")["answer"], s["answer"])  # a call is a run

    def test_forms_hold(self):
        @sgl.function
        def forms(s):
            s += "Bob is " + sgl.gen_int("age", max_tokens=4) + " years old. Yes or no? "
            s += sgl.gen("short", regex="(yes|no)", max_tokens=8) + " "
            s += sgl.gen("truth", dtype=bool, max_tokens=8) + " "
            s += sgl.gen("picked", choices=["red", "blue"]) + " "
            s += sgl.gen_string("quoted", max_tokens=32)

        s = forms.run(temperature=0)
        self.assertIsNone(s.error())
        int(s["age"])
        self.assertIn(s["short"], ("yes", "no"))
        self.assertIn(s["truth"], ("True", "False"))
        self.assertIn(s["picked"], ("red", "blue"))
        self.assertTrue(s["quoted"].startswith('"'))

    def test_schemas_are_parsed_where_they_are_objects(self):
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                  "additionalProperties": False}

        class Model:  # what a pydantic model offers
            def __init__(self, fields):
                self.fields = fields

            @staticmethod
            def model_json_schema():
                return schema

            @classmethod
            def model_validate_json(cls, text):
                return cls(json.loads(text))

        @sgl.function
        def extract(s):
            s += sgl.gen("text", json_schema=json.dumps(schema)) + "\n"
            s += sgl.gen("parsed", json_schema=schema) + "\n" + sgl.gen("model", json_schema=Model)

        s = extract.run(temperature=0)
        self.assertIsInstance(json.loads(s["text"])["ok"], bool)
        self.assertIsInstance(s["parsed"]["ok"], bool)
        self.assertIsInstance(s["model"].fields["ok"], bool)

    def test_several_samples_are_a_list(self):
        @sgl.function
        def dice(s):
            s += "Once" + sgl.gen("tale", n=3, max_tokens=4)

        self.assertEqual(len(dice.run(temperature=1, seed=3)["tale"]), 3)

    def test_beam_search_ends_as_early_stopping_says(self):
        @sgl.function
        def tale(s, ends):
            s += "Once" + sgl.gen("tale", max_tokens=8, n=2, use_beam_search=True, beam_width=3,
                                  early_stopping=ends)

        for ends in (False, True, "never", None):
            self.assertEqual(len(tale.run(ends=ends)["tale"]), 2)
        with self.assertRaisesRegex(Exception, "early_stopping"):
            tale.run(ends="soon")["tale"]

    def test_arguments_have_sglangs_places(self):
        @sgl.function
        def story(s):
            s += "Once upon a time" + sgl.gen("a", 3)

        s = story.run(temperature=0, ignore_eos=True)
        self.assertEqual(s.get_meta_info("a")["completion_tokens"], 3)
        short = story.run(temperature=0, max_new_tokens=1, ignore_eos=True)
        self.assertEqual(short["a"], s["a"])  # a gen's own argument wins


class SelectTest(unittest.TestCase):
    def test_every_method_decides(self):
        for method in (sgl.token_length_normalized, sgl.greedy_token_selection,
                       sgl.unconditional_likelihood_normalized, "exact"):
            @sgl.function
            def choose(s):
                s += sgl.user("What is the capital of France?")
                s += sgl.assistant("It is " + sgl.select("c", ["Paris", "Zebra"],
                                                         choices_method=method))

            self.assertEqual(choose.run()["c"], "Paris", method)

    def test_choices_that_are_empty_or_equal_are_refused(self):
        for choices in ([], ["a", "a"], ["a", ""]):
            @sgl.function
            def choose(s):
                s += "x" + sgl.select("c", choices)

            self.assertIsInstance(choose.run().error(), ValueError, choices)


class StateTest(unittest.TestCase):
    def test_branches_are_gathered(self):
        @sgl.function
        def tips(s):
            s += "Tips: "
            forks = s.fork(3)
            forks += lambda i: f"{i + 1}." + sgl.gen("tip", max_tokens=4, ignore_eos=True)
            forks.join()
            s += "Summary:" + sgl.gen("summary", max_tokens=4, ignore_eos=True)

        s = tips.run(temperature=0)
        self.assertIsNone(s.error())
        self.assertEqual(len(s["tip"]), 3)
        self.assertTrue(s.text().startswith("Tips: Summary:"))

    def test_branches_are_appended_in_order(self):
        @sgl.function
        def parts(s):
            s += "A"
            forks = s.fork(2)
            forks += ["B", "C"]
            self.assertEqual(len(forks), 2)
            self.assertEqual([f.text() for f in forks], ["AB", "AC"])
            forks.join("concate_and_append")
            with self.assertRaises(sgl.Error):
                forks.join()

        self.assertEqual(parts.run().text(), "ABC")

    def test_scopes(self):
        @sgl.function
        def scoped(s):
            with s.user():
                s += "Hi"
            with s.assistant():
                s += "Well, "
                with s.var_scope("whole"):
                    s += "it is" + sgl.gen("end", max_tokens=3, ignore_eos=True)
            s.user("Bye")
            s.set_var("mine", "42")

        s = scoped.run(temperature=0)
        self.assertEqual(s["whole"], "it is" + s["end"])
        self.assertEqual([m["role"] for m in s.messages()], ["user", "assistant", "user"])
        self.assertEqual(s["mine"], "42")
        self.assertIn("mine", s)
        self.assertNotIn("other", s)

    def test_begin_and_end_frame_as_whole_messages_do(self):
        @sgl.function
        def whole(s):
            s += sgl.system("S") + sgl.user("U") + sgl.assistant("A")

        @sgl.function
        def parts(s):
            s += sgl.system_begin() + "S" + sgl.system_end()
            s += sgl.user_begin() + "U" + sgl.user_end()
            s += sgl.assistant_begin() + "A" + sgl.assistant_end()

        self.assertEqual(whole.run().text(), parts.run().text())

    def test_a_copy_gives_its_variables_back(self):
        @sgl.function
        def program(s):
            s += "A"
            with s.copy() as c:
                c += "B" + sgl.gen("x", max_tokens=2)

        s = program.run(temperature=0)
        self.assertEqual(s.text(), "A")
        self.assertIn("x", s)


class JudgeTest(unittest.TestCase):
    def test_figure_2_judges_branches_and_merges(self):
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "examples"))
        import judge
        judge.image = lambda path: ""  # the model that ships reads none
        # It thinks that no essay is related, so that it is held to the other choice.
        judge.select = lambda name, choices: sgl.gen(name, regex="yes")
        s = judge.multi_dimensional_judge.run(None, "A red boat.", max_new_tokens=40, temperature=0)
        self.assertIsNone(s.error())
        merged = s.messages()[6]["content"]
        self.assertIn("In summary," + s["summary"] + "The grade of it is" + s["grade"], merged)
        self.assertEqual(s.messages()[-1]["content"], s["output"])
        self.assertTrue(s["output"].startswith('{"summary": "'))


class StreamTest(unittest.TestCase):
    def test_pieces_are_the_text(self):
        s = capital.run(country="Spain", stream=True)
        pieces = list(s.text_iter("answer"))
        self.assertGreater(len(pieces), 1)
        self.assertEqual("".join(pieces), s["answer"])
        self.assertEqual("".join(s.text_iter()), s.text())

    def test_coroutines_read_too(self):
        async def read(country):
            s = capital.run(country=country, stream=True)
            return "".join([piece async for piece in s.text_async_iter("answer")])

        async def both():
            return await asyncio.gather(read("France"), read("Italy"))

        france, italy = asyncio.run(both())
        self.assertEqual(france, capital.run(country="France")["answer"])
        self.assertEqual(italy, capital.run(country="Italy")["answer"])

    def test_the_interpreter_runs_while_a_program_waits(self):
        @sgl.function
        def long(s):
            s += "Once" + sgl.gen("a", max_tokens=100, ignore_eos=True)

        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        long.run(temperature=0)
        done.set()
        thread.join()
        self.assertGreater(len(ticks), 5)


class BatchTest(unittest.TestCase):
    def test_states_are_in_order(self):
        countries = ["France", "Italy", "Spain"] * 5
        states = capital.run_batch([{"country": c} for c in countries], progress_bar=True)
        alone = {c: capital.run(country=c)["answer"] for c in set(countries)}
        self.assertEqual([s["answer"] for s in states], [alone[c] for c in countries])

    def test_arguments_are_any_objects_and_results_come_back(self):
        @sgl.function
        def count(s, items):
            s += f"{len(items)} things"
            return len(items)

        self.assertEqual([s.ret_value for s in count.run_batch([([1],), {"items": [1, 2]}])],
                         [1, 2])

    def test_a_program_that_throws_leaves_the_others_alone(self):
        @sgl.function
        def some(s, i):
            if i == 1:
                raise KeyError("mine")
            s += "x" + sgl.gen("a", max_tokens=2)

        states = some.run_batch([{"i": i} for i in range(3)], temperature=0)
        self.assertEqual([s.error() is None for s in states], [True, False, True])
        self.assertIn("KeyError", str(states[1].error()))

    def test_bind(self):
        bound = capital.bind(country="France")
        self.assertIn("Paris", bound.run()["answer"])
        self.assertIn("Paris", bound.run_batch([{}])[0]["answer"])
        with self.assertRaises(TypeError):
            capital.bind(city="Paris")


def line_of(text):
    with open(__file__) as f:
        return next(i for i, line in enumerate(f, 1) if text in line)


class ErrorTest(unittest.TestCase):
    def test_an_unknown_variable_is_an_error_at_its_line(self):
        s = capital.run(country="France")
        with self.assertRaises(KeyError) as caught:
            s["unknown"]  # here it is read
        self.assertEqual(caught.exception.line, line_of("# here it is read"))
        self.assertTrue(caught.exception.file.endswith("language_test.py"))

    def test_a_primitive_that_fails_is_told_at_its_line(self):
        @sgl.function
        def wrong(s):
            s += "x"
            s += sgl.gen("a", regex="(", max_tokens=4)  # here it fails
            s["a"]

        with self.assertRaises(sgl.Error) as caught:
            wrong.run()
        self.assertEqual(caught.exception.line, line_of("# here it fails"))

    def test_a_failed_branch_leaves_the_others_alone(self):
        @sgl.function
        def two(s):
            s += "x"
            bad, good = s.fork(2)
            bad += sgl.gen("a", regex="(")
            good += sgl.gen("a", max_tokens=2)
            with self.assertRaises(sgl.Error):
                bad["a"]
            return good["a"]

        self.assertIsInstance(two.run(temperature=0).ret_value, str)

    def test_what_a_program_throws_is_thrown(self):
        @sgl.function
        def throws(s):
            s += "x"
            return 1 / 0

        with self.assertRaises(ZeroDivisionError):
            throws.run()
        s = throws.run(stream=True)
        with self.assertRaisesRegex(sgl.Error, "ZeroDivisionError"):
            s.sync()
        self.assertEqual(s.error().line, line_of("return 1 / 0"))

    def test_what_is_no_prompt_is_refused(self):
        @sgl.function
        def wrong(s, what):
            s += what

        for what in (None, 3, ["x"]):
            with self.assertRaises(TypeError):
                wrong.run(what)
        with self.assertRaisesRegex(TypeError, "max_tokens"):
            sgl.gen("a", max_tokens="many")
        with self.assertRaises(ValueError):
            sgl.gen("a", dtype=dict)
        with self.assertRaises(ValueError):
            sgl.Engine(MODEL, no_such_setting=1)

    def test_images_are_refused_by_name(self):
        @sgl.function
        def look(s):
            s += sgl.user(sgl.image("cat.png") + "What is it?") + sgl.assistant(sgl.gen("a"))

        with self.assertRaisesRegex(sgl.Error, "image"):
            look.run()["a"]

    def test_without_a_back_end(self):
        kept = sgl._native.default_backend()
        sgl.set_default_backend(None)
        try:
            with self.assertRaisesRegex(sgl.Error, "set_default_backend"):
                capital.run(country="France")
        finally:
            sgl.set_default_backend(kept)

    def test_bad_input_is_told_at_its_line_and_leaves_nothing_running(self):
        def unknown(s):
            s += sgl.gen("a", max_tokens=1500, ignore_eos=True)
            s += "x" + s["b"]  # unknown: wrong

        def joined_twice(s):
            forks = s.fork(2)
            forks += sgl.gen("a", max_tokens=1500, ignore_eos=True)
            forks.join()
            forks.join()  # joined_twice: wrong

        def no_choices(s):
            s += sgl.select("c", [])  # no_choices: wrong
            s += sgl.gen("a", max_tokens=1500, ignore_eos=True)
            s["a"]

        def equal_choices(s):
            s += sgl.select("c", ["x", "x"])  # equal_choices: wrong
            s["c"]

        def empty_choice(s):
            s += sgl.select("c", ["x", ""])  # empty_choice: wrong
            s["c"]

        engine = sgl._native.default_backend()
        for program, said in ((unknown, 'no variable "b"'), (joined_twice, "joined before"),
                              (no_choices, "has no choices"), (equal_choices, 'are equal: "x"'),
                              (empty_choice, "is empty")):
            with self.subTest(program.__name__):
                def whole(s):
                    s += "x"
                    program(s)

                with self.assertRaises(sgl.Error) as caught:
                    sgl.function(whole).run()
                self.assertIn(said, str(caught.exception))
                self.assertEqual(caught.exception.line,
                                 line_of(f"# {program.__name__}: wrong"))
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline:
                    info = engine.get_server_info()
                    if info["num_running"] + info["num_waiting"] == 0:
                        break
                    time.sleep(0.01)
                self.assertEqual((info["num_running"], info["num_waiting"]), (0, 0))

    def test_a_cancelled_program_ends(self):
        @sgl.function
        def long(s):
            s += "Once" + sgl.gen("a", max_tokens=1500, ignore_eos=True)

        s = long.run(stream=True)
        s.cancel()
        with self.assertRaises(sgl.Error):
            s["a"]
        del s
        gc.collect()


class TraceTest(unittest.TestCase):
    def test_a_graph_writes_what_the_program_does(self):
        @sgl.function
        def tips(s, topic):
            s += "About " + topic + ": "
            forks = s.fork(2)
            for i, f in enumerate(forks):
                f += str(i) + sgl.gen("tip", max_tokens=4)
            s += "First: " + forks[0]["tip"] + sgl.gen("end", max_tokens=4)

        graph = tips.trace()
        self.assertEqual(graph.parameters, ["topic"])
        again = sgl.Graph.from_json(graph.to_json())
        self.assertIn("<svg", again.to_svg())
        self.assertEqual(again.run(topic="boats", temperature=0).text(),
                         tips.run(topic="boats", temperature=0).text())
        self.assertEqual(tips.bind(topic="boats").trace().parameters, [])

    def test_a_way_that_depends_on_a_value_is_refused(self):
        @sgl.function
        def branching(s, topic):
            s += sgl.gen("a")
            if s["a"] == "x":  # here it branches
                s += "y"

        with self.assertRaises(sgl.Error) as caught:
            branching.trace()
        self.assertIn("traced", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
