"""Each example runs by its one command, on the model that ships."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

EXAMPLES = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "examples"))

# What stands in the output whatever the model says, and further arguments.
EXPECTED = {
    "judge": ("related: ", []),
    "tips": ("In summary,", ["{model}", "{folder}/tips.json"]),
    "tree_of_thought": ("of 9 votes", []),
    "react": ("answer: ", []),
    "few_shot": ("Paris", []),
    "chat": ("> What is the capital of France?\nThe capital of France is Paris", []),
    "stories": ("Once upon a time there was a small boat.", []),
    "extract": ("Maria Keller, 34", []),
    "summary": ("The whole story in one sentence:", []),
    "compiled": ("4 calls in 3 stages", ["{model}", "{folder}/expand.json"]),
    "dspy_adapter": ("Paris", []),
}


def run(name, folder):
    model = os.path.join(EXAMPLES, "..", "..", "share", "default_model")
    arguments = [a.format(model=model, folder=folder) for a in EXPECTED[name][1]]
    return subprocess.run([sys.executable, "-B", os.path.join(EXAMPLES, name + ".py"), *arguments],
                          capture_output=True, text=True, timeout=200, check=False, cwd=folder)


class ExamplesTest(unittest.TestCase):
    def test_every_example_is_run(self):
        files = {name[:-3] for name in os.listdir(EXAMPLES) if name.endswith(".py")}
        self.assertEqual(files - {"example"}, set(EXPECTED))

    def test_they_run(self):
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
            results = dict(zip(EXPECTED, pool.map(lambda name: run(name, folder), EXPECTED)))
            for name, result in results.items():
                with self.subTest(name):
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertIn(EXPECTED[name][0], result.stdout)
            with open(os.path.join(folder, "tips.json"), encoding="utf-8") as f:
                self.assertTrue(json.load(f)["traceEvents"])
            with open(os.path.join(folder, "expand.json"), encoding="utf-8") as f:
                self.assertEqual(json.load(f)["parameters"], ["topic"])


if __name__ == "__main__":
    unittest.main()
