"""The files of deploy/ name flags, environment variables and metrics that the program has."""
import json
import pathlib
import re
import unittest

import harness

DEPLOY = pathlib.Path(harness.ROOT, "deploy")
# Of Hugging Face, whose names the hub's client reads.
FOREIGN_VARIABLES = {"HF_HUB_CACHE", "HF_TOKEN"}


def manifests():
    return sorted(DEPLOY.glob("kubernetes/*/*.yaml"))


def arguments(text):
    """The arguments of each container of a manifest: lists of words, the command first."""
    for line in re.findall(r"args: \[(.*)\]", text):
        yield [word.strip().strip('"') for word in line.split(",")]


class Router(harness.Server):
    COMMAND = "route"


class DeployTest(unittest.TestCase):
    def test_flags_are_those_of_the_program(self):
        seen = set()
        for path in manifests():
            for command, *words in arguments(path.read_text()):
                known = set(re.findall(r"--[a-z][a-z-]+", harness.run(command, "--help").stdout))
                flags = {word for word in words if word.startswith("--")}
                seen |= {command} | flags
                self.assertLessEqual(flags, known, path)
        self.assertLessEqual({"serve", "route", "--worker-dns", "--model-path", "--tp"}, seen)

    def test_variables_are_those_of_the_program(self):
        documented = "".join(pathlib.Path(harness.ROOT, "docs", page).read_text()
                             for page in ("flags.md", "router_flags.md"))
        seen = set()
        for path in manifests():
            seen |= set(re.findall(r"name: ([A-Z][A-Z_]+)[,\n]", path.read_text()))
        self.assertIn("ESPALIER_WORKER_API_KEY", seen)
        for name in seen - FOREIGN_VARIABLES:
            self.assertIn(f"`{name}`", documented)

    def test_metrics_are_there(self):
        files = [DEPLOY / "grafana" / "espalier.json", *sorted(DEPLOY.glob("prometheus/*.yaml"))]
        named = {name for path in files for name in re.findall(r"(?:sglang|espalier):[a-z0-9_]+", path.read_text())}
        self.assertGreater(len(named), 40)
        with harness.Server("--enable-metrics") as worker, Router(
                "--worker", f"http://127.0.0.1:{worker.port}") as router:
            worker.post("/generate", {"text": "One", "sampling_params": {"max_new_tokens": 2}})
            text = worker.get("/metrics")[2] + router.get("/metrics")[2]
        there = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        for name in named - there:
            self.assertIn(name.removesuffix("_bucket"), there, name)

    def test_the_dashboard_is_whole(self):
        dashboard = json.loads((DEPLOY / "grafana" / "espalier.json").read_text())
        panels = dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        for panel in panels:
            for target in panel.get("targets", []):
                for opening, closing in ("()", "{}", "[]"):
                    self.assertEqual(target["expr"].count(opening), target["expr"].count(closing), target["expr"])


if __name__ == "__main__":
    unittest.main()
