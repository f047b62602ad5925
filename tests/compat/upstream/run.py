"""SGLang's own black-box tests against `espalier serve` on SmolLM2-135M-Instruct.

  run.py [--model GGUF] [--sglang CHECKOUT] [--only TEXT] [--results FILE]

The package `sglang` holds kits: classes of tests that speak HTTP to a server, which SGLang's test files mix in. Every
kit of KITS runs, unmodified. With a checkout of SGLang (tag v0.5.23) its test files of FILES run too. A test that
fails must stand in expected_failures.txt with the reason; one that stands there and passes must leave it."""
import argparse
import collections
import importlib
import importlib.util
import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, ".."))
import launcher as launching  # noqa: E402

# Module of sglang.test.kits, class, flags of the server.
KITS = [
    ("basic_api_contract_kit", "BasicAPIContractMixin", ()),
    ("basic_decode_correctness_kit", "BasicDecodeCorrectnessMixin", ()),
    ("basic_scheduler_stress_kit", "BasicSchedulerStressMixin", ()),
    ("abort_timeout_kit", "AbortAllMixin", ("--max-running-requests", "8")),
    ("anthropic_messages_kit", "AnthropicMessagesMixin", ()),
    ("ebnf_constrained_kit", "EBNFConstrainedMixin", ("--grammar-backend", "xgrammar")),
    ("json_constrained_kit", "JSONConstrainedMixin", ("--grammar-backend", "xgrammar")),
    ("json_mode_kit", "JSONModeMixin", ("--grammar-backend", "xgrammar")),
    ("regex_constrained_kit", "RegexConstrainedMixin", ("--grammar-backend", "xgrammar")),
    ("matched_stop_kit", "MatchedStopMixin", ("--max-running-requests", "10")),
    ("pause_generation_kit", "PauseResumeInPlaceMixin", ()),
    ("streaming_session_kit", "StreamingSessionKitMixin", ("--enable-streaming-session",)),
    ("streaming_session_kit", "AbortLeakReproKitMixin", ("--enable-streaming-session",)),
    ("spec_server_kits", "SpecCorrectnessKit", ()),
    ("spec_server_kits", "SpecFeatureKit", ()),
    ("spec_server_kits", "SpecGrammarKit", ()),
    ("spec_server_kits", "SpecLogprobKit", ()),
    ("spec_server_kits", "SpecPenaltyKit", ()),
]

# Under CHECKOUT/test/registered.
FILES = [
    "openai_server/basic/test_openai_server.py",
    "openai_server/features/test_json_mode.py",
    "openai_server/features/test_openai_server_ebnf.py",
    "openai_server/function_call/test_openai_function_calling.py",
    "openai_server/function_call/test_tool_choice.py",
    "openai_server/validation/test_large_max_new_tokens.py",
    "openai_server/validation/test_matched_stop.py",
    "openai_server/validation/test_openai_server_ignore_eos.py",
    "openai_server/validation/test_request_length_validation.py",
]


class Outcomes(unittest.TestResult):
    """The outcome and the last line of the error of each test."""

    def __init__(self):
        super().__init__()
        self.rows = collections.OrderedDict()

    @staticmethod
    def name(test):
        return f"{type(test).__name__}.{getattr(test, '_testMethodName', 'setUpClass')}"

    def add(self, test, outcome, why=""):
        name = self.name(test) if isinstance(test, unittest.TestCase) else str(test)
        self.rows[name] = (outcome, why)
        print(f"  {outcome:7} {name} {why[:200]}", flush=True)

    def addSuccess(self, test):
        self.add(test, "passed")

    def add_failure(self, test, err):
        text = str(err[1]).strip().splitlines() or [err[0].__name__]
        self.add(test, "failed", f"{err[0].__name__}: {text[0]}")

    addFailure = addError = add_failure

    def addSkip(self, test, reason):
        self.add(test, "skipped", reason)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.add_failure(test, err)


def of_kit(launcher, module_name, class_name, flags):
    """A test case of the kit whose class starts the server as SGLang's fixtures do."""
    kit = getattr(importlib.import_module("sglang.test.kits." + module_name), class_name)

    def set_up(cls):
        import openai
        cls.process = launcher.launch(other_args=flags)
        cls.client = openai.Client(api_key="EMPTY", base_url=launcher.url + "/v1")

    members = {"setUpClass": classmethod(set_up), "tearDownClass": classmethod(lambda cls: launcher.stop()),
               "base_url": launcher.url, "model": launcher.model, "served_model_name": launcher.model,
               "api_key": "EMPTY", "tokenizer": launching.Tokenizer(launcher), "disable_overlap": False}
    return type(class_name, (kit, unittest.TestCase), members)


def of_file(checkout, name):
    path = os.path.join(checkout, "test", "registered", name)
    if not os.path.isfile(path):
        sys.exit(f"there is no {path}: --sglang names a checkout of SGLang, tag v0.5.23")
    spec = importlib.util.spec_from_file_location(os.path.basename(name)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def read_expected():
    """{test: reason}."""
    out = {}
    with open(os.path.join(HERE, "expected_failures.txt"), encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                name, _, reason = line.strip().partition(": ")
                out[name] = reason
    return out


def suites(args, launcher):
    for module_name, class_name, flags in KITS:
        if args.only in f"{module_name}.{class_name}":
            case = of_kit(launcher, module_name, class_name, flags)
            yield f"{module_name} {class_name}", unittest.defaultTestLoader.loadTestsFromTestCase(case)
    for name in FILES if args.sglang else ():
        if args.only in name:
            yield name, of_file(args.sglang, name)


def compare(rows, expected):
    """(lines of what is wrong, counts)."""
    wrong, counts = [], collections.Counter()
    for name, (outcome, why) in rows.items():
        listed = name in expected
        counts["listed" if outcome == "failed" and listed else outcome] += 1
        if outcome == "failed" and not listed:
            wrong.append(f"{name} fails: {why}")
        if outcome == "passed" and listed:
            wrong.append(f"{name} passes: take it out of expected_failures.txt")
    return wrong, counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ESPALIER_REAL_MODEL", "download"),
                        help="the GGUF of SmolLM2-135M-Instruct; download fetches it (98 MB)")
    parser.add_argument("--sglang", default=os.environ.get("ESPALIER_SGLANG_CHECKOUT"),
                        help="a checkout of SGLang, whose test files run too")
    parser.add_argument("--only", default="", help="kits and files whose names hold this text")
    args = parser.parse_args()
    launching.find_binary()
    import real_model
    launcher = launching.Launcher(os.path.abspath(real_model.model_path(args.model)))
    launching.install(launcher)
    outcomes = Outcomes()
    started = time.monotonic()
    for title, suite in suites(args, launcher):
        print(title, flush=True)
        try:
            suite.run(outcomes)
        finally:
            launcher.stop()
    wrong, counts = compare(outcomes.rows, read_expected())
    print(f"SGLang's tests: {len(outcomes.rows)} run, {counts['passed']} passed, {counts['listed']} listed, "
          f"{counts['skipped']} skipped, {counts['failed']} failed, {time.monotonic() - started:.0f} s")
    for line in wrong:
        print(line)
    return 1 if wrong or not outcomes.rows else 0


if __name__ == "__main__":
    sys.exit(main())
