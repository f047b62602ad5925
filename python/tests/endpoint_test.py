"""The language over our own server, as an endpoint and as an OpenAI-compatible API."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tests", "e2e"))
from harness import Server  # noqa: E402

import espalier as sgl  # noqa: E402


@sgl.function
def capital(s, country):
    s += sgl.user("What is the capital of " + country + "?")
    s += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))


class EndpointTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--host", "127.0.0.1")
        cls.url = f"http://127.0.0.1:{cls.server.port}"
        cls.backend = sgl.RuntimeEndpoint(cls.url + "/")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)

    def test_gen_stream_select_fork(self):
        @sgl.function
        def program(s):
            s += sgl.user("What is the capital of France?")
            s += sgl.assistant("It is " + sgl.select("c", ["Paris", "Zebra"]))
            forks = s.fork(2)
            forks += sgl.user("And of Spain?") + sgl.assistant(sgl.gen("a", max_tokens=4))
            forks.join()

        s = program.run(backend=self.backend, temperature=0)
        self.assertIsNone(s.error())
        self.assertEqual(s["c"], "Paris")
        self.assertEqual(len(s["a"]), 2)
        s = capital.run(country="France", stream=True, backend=self.backend)
        self.assertEqual("".join(s.text_iter("answer")), s["answer"])
        self.assertIn("Paris", s["answer"])
        self.assertGreater(self.backend.usage()["completion_tokens"], 0)
        self.assertIn("model_path", sgl.get_server_info(self.backend))

    def test_exact_choices(self):
        @sgl.function
        def program(s):
            s += sgl.user("What is the capital of France?")
            s += sgl.assistant("It is " + sgl.select("c", ["Paris", "Zebra"],
                                                     choices_method="exact"))

        s = program.run(backend=self.backend)
        self.assertEqual(s["c"], "Paris")
        scores = s.get_meta_info("c")["normalized_prompt_logprobs"]
        self.assertGreater(scores[0], scores[1])

    def test_openai(self):
        api = sgl.OpenAI("default", base_url=self.url + "/v1", api_key="none",
                         prices={"input": 1.0, "output": 2.0})
        self.assertIn("Paris", capital.run(country="France", backend=api)["answer"])
        self.assertGreater(api.usage()["dollars"], 0)

    def test_a_server_that_is_lost_is_an_error_at_the_line_of_the_gen(self):
        @sgl.function
        def endless(s):
            s += "Once"
            s += sgl.gen("tale", max_tokens=1500, ignore_eos=True)  # here it is lost

        runtime = sgl.Runtime(num_threads=1)
        s = endless.run(stream=True, backend=runtime)
        next(s.text_iter("tale"))
        runtime._process.kill()  # shutdown() would let it answer
        with self.assertRaises(sgl.Error) as caught:
            s["tale"]
        with open(__file__, encoding="utf-8") as f:
            line = next(i for i, line in enumerate(f, 1) if "# here it is lost" in line)
        self.assertEqual(caught.exception.line, line)
        self.assertIn(caught.exception.code, ("unavailable", "aborted"))
        runtime.shutdown()
        runtime.shutdown()  # a second time is nothing

    def test_a_runtime_that_cannot_start_says_why(self):
        with self.assertRaisesRegex(RuntimeError, "no_such_folder"):
            sgl.Runtime("/no_such_folder")

    def test_no_server(self):
        with self.assertRaises(sgl.Error) as caught:
            sgl.RuntimeEndpoint("http://127.0.0.1:1")
        self.assertEqual(caught.exception.code, "unavailable")


if __name__ == "__main__":
    unittest.main()
