"""SGLang's own black-box tests against `espalier serve` on SmolLM2-135M-Instruct.

  run.py [--model GGUF] [--upstream CHECKOUT] [--only TEXT ...] [--resume FOLDER] [--results FILE]

The package `sglang` holds kits: classes of tests that speak HTTP to a server, which SGLang's test files mix in. Every
kit of KITS runs, unmodified. With a checkout of SGLang every test file under test/ that starts a server runs too, each
in a process of its own, but those that not_run.txt names with a reason. A test that fails must stand in
expected_failures.txt with the reason; one that stands there and passes must leave it. With --resume the rows of each kit
and file are kept in a folder, and what has rows there does not run again: a whole run may end and go on."""
import argparse
import collections
import fnmatch
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, ".."))
import launcher as launching  # noqa: E402

# Drafts that need no second model.
SPECULATES = ("--speculative-algorithm", "COMBINED")
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
    ("streaming_session_kit", "AbortLeakReproKitMixin",
     ("--enable-streaming-session", "--chunked-prefill-size", "4096", "--context-length", "512")),
    ("spec_server_kits", "SpecCorrectnessKit", SPECULATES),
    ("spec_server_kits", "SpecFeatureKit", SPECULATES),
    ("spec_server_kits", "SpecGrammarKit", SPECULATES),
    ("spec_server_kits", "SpecLogprobKit", SPECULATES),
    ("spec_server_kits", "SpecPenaltyKit", SPECULATES),
]
# A kit's fixture in sglang.test.server_fixtures, whose methods send what its tests compare.
FIXTURES = {"spec_server_kits": ("spec_eagle_fixture", "SpecEagleServerBase")}
# Every test file that starts a server has one of these texts.
STARTS_A_SERVER = ("popen_launch_server", "server_fixtures")
# Files and kits that ask for more tokens than SmolLM2's context of 8,192 has and judge none of them: its positions go on
# beyond it.
LONG_CONTEXT = ("abort_timeout_kit", "streaming_session_kit", "test_scheduler_control", "test_priority_scheduling",
                "test_streaming_session", "test_srt_endpoint")
LONG_CONTEXT_FLAGS = ("--json-model-override-args", '{"max_position_embeddings": 131072}')
# 400 answers of 128 tokens (test_radix_attention) take 4 minutes on two cores; with other work beside them, longer.
TEST_S = int(os.environ.get("ESPALIER_COMPAT_TEST_S", "900"))
FILE_S = int(os.environ.get("ESPALIER_COMPAT_FILE_S", str(4 * TEST_S)))
ROWS = "rows.json"  # in the folder that a child works in


class TookTooLong(Exception):
    pass


def ring(*_):
    raise TookTooLong(f"no end within {TEST_S} s")


class Outcomes(unittest.TestResult):
    """The outcome and the first line of the error of each test; a test that does not end fails."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.rows = collections.OrderedDict()
        self.path = os.path.abspath(ROWS)  # a test may change the folder
        signal.signal(signal.SIGALRM, ring)

    def startTest(self, test):
        super().startTest(test)
        signal.alarm(TEST_S)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)

    def name(self, test):
        if isinstance(test, unittest.TestCase):
            return f"{self.module}.{type(test).__name__}.{test._testMethodName}"
        # A class whose setUpClass failed: "setUpClass (module.Class)".
        return f"{self.module}.{str(test).rstrip(')').rpartition('.')[2]}.setUpClass"

    def add(self, test, outcome, why=""):
        self.rows[self.name(test)] = (outcome, why)
        write_rows(self.path, self.rows)  # for a file that breaks off
        print(f"  {outcome:7} {self.name(test)} {why[:300]}", flush=True)

    def addSuccess(self, test):
        if self.name(test) not in self.rows:  # a subtest of it failed
            self.add(test, "passed")

    def add_failure(self, test, err):
        text = str(err[1]).strip().splitlines() or [""]
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
    return type(class_name, (kit, *fixture_of(module_name), unittest.TestCase), members)


def fixture_of(module_name):
    if module_name not in FIXTURES:
        return ()
    name, class_name = FIXTURES[module_name]
    return (getattr(importlib.import_module("sglang.test.server_fixtures." + name), class_name),)


def of_file(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def run_one(target, launcher):
    """{test: (outcome, why)} of one kit (a number) or file, in this process."""
    is_kit = isinstance(target, int)
    outcomes = Outcomes(name_of(target))
    if name_of(target) in LONG_CONTEXT:
        launcher.more_flags = LONG_CONTEXT_FLAGS
    try:
        suite = (unittest.defaultTestLoader.loadTestsFromTestCase(of_kit(launcher, *KITS[target])) if is_kit
                 else of_file(target))
        suite.run(outcomes)
    except Exception as error:  # what the file imports is not there
        outcomes.rows[f"{outcomes.module}.import"] = ("failed", f"{type(error).__name__}: {error}")
    finally:
        launcher.stop()
    return outcomes.rows


def name_of(target):
    return KITS[target][0] if isinstance(target, int) else os.path.basename(target)[:-3]


def write_rows(path, rows):
    with open(path + ".part", "w", encoding="utf-8") as f:
        json.dump(rows, f, indent=1)
    os.replace(path + ".part", path)


def in_child(call, limit_s, name):
    """The rows of `call`, which runs in a child of this process within limit_s; the child's children end with it."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, ROWS)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setsid()
                os.chdir(folder)
                write_rows(results, call())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        deadline = time.monotonic() + limit_s
        ended, status = os.waitpid(child, os.WNOHANG)
        while time.monotonic() < deadline and ended == 0:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
        try:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        rows = {}
        if os.path.exists(results):
            with open(results, encoding="utf-8") as f:
                rows = json.load(f)
        if ended == 0 or status != 0:
            rows[f"{name}.file"] = ["failed", f"it broke off, or did not end within {limit_s} s"]
        return rows


class Kept:
    """The rows of each kit and file, as JSON in a folder; without a folder nothing is kept."""

    def __init__(self, folder):
        self.folder = folder
        if folder:
            os.makedirs(folder, exist_ok=True)

    def path(self, target):
        name = "-".join(KITS[target][:2]) if isinstance(target, int) else target.rpartition("/test/")[2].replace("/", "-")
        return os.path.join(self.folder, name + ".json")

    def read(self, target):
        if not self.folder or not os.path.exists(self.path(target)):
            return None
        with open(self.path(target), encoding="utf-8") as f:
            return json.load(f)

    def write(self, target, rows):
        if self.folder:
            write_rows(self.path(target), rows)


def run_group(targets, model, checkout, kept):
    """The rows of kits or files, each in a child; what they import is imported once."""
    launcher = launching.Launcher(model)
    launching.install(launcher, checkout)
    rows = collections.OrderedDict()
    for target in targets:
        print(" ".join(KITS[target][:2]) if isinstance(target, int) else target, flush=True)
        found = kept.read(target)
        if found is None:
            found = in_child(lambda: run_one(target, launcher), FILE_S, name_of(target))
            kept.write(target, found)
        rows.update(found)
    return rows


def read_list(name):
    """{pattern: reason} of a file of lines `PATTERN: REASON`."""
    out = {}
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                pattern, _, reason = line.strip().partition(": ")
                out[pattern] = reason
    return out


def reason_of(name, patterns):
    return next((reason for pattern, reason in patterns.items() if fnmatch.fnmatchcase(name, pattern)), None)


def server_files(checkout):
    """The test files of a checkout that start a server, relative to its folder test/."""
    root = os.path.join(checkout, "test")
    if not os.path.isdir(root):
        sys.exit(f"there is no folder {root}: --upstream names a checkout of SGLang")
    out = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if name.startswith("test_") and name.endswith(".py"):
                with open(path, encoding="utf-8") as f:
                    source = f.read()
                if any(text in source for text in STARTS_A_SERVER):
                    out.append(os.path.relpath(path, root))
    return sorted(out)


def compare(rows, expected):
    """(lines of what is wrong, counts)."""
    wrong, counts = [], collections.Counter()
    for name, (outcome, why) in rows.items():
        reason = reason_of(name, expected)
        counts["listed" if outcome == "failed" and reason else outcome] += 1
        if outcome == "failed" and not reason:
            wrong.append(f"{name} fails: {why}")
        if outcome == "passed" and name in expected:
            wrong.append(f"{name} passes: take it out of expected_failures.txt")
    return wrong, counts


def run_all(args, model):
    def is_asked(name):
        return any(text in name for text in args.only)

    kits = [number for number, kit in enumerate(KITS) if is_asked(f"{kit[0]}.{kit[1]}")]
    groups = [(kits, None)]
    if args.upstream:
        not_run = read_list("not_run.txt")
        files = [name for name in server_files(args.upstream) if is_asked(name)]
        wanted = [name for name in files if not reason_of(name, not_run)]
        print(f"{len(files)} test files start a server; {len(files) - len(wanted)} of them stand in not_run.txt")
        checkout = os.path.realpath(args.upstream)
        groups.append(([os.path.join(checkout, "test", name) for name in wanted], checkout))
    else:
        print("SGLang's test files are skipped: --upstream names no checkout of it")
    rows = collections.OrderedDict()
    kept = Kept(args.resume and os.path.abspath(args.resume))
    for targets, checkout in groups:
        if targets:
            sys.stdout.flush()
            rows.update(in_child(lambda: run_group(targets, model, checkout, kept), FILE_S * (len(targets) + 1), "group"))
    return rows


def model_path(wanted):
    if os.path.isfile(wanted):
        return wanted
    import real_model  # what it imports beside is not needed where the file is there
    return real_model.model_path(wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ESPALIER_REAL_MODEL", "download"),
                        help="the GGUF of SmolLM2-135M-Instruct; download fetches it (98 MB)")
    parser.add_argument("--upstream", default=os.environ.get("ESPALIER_SGLANG_CHECKOUT"),
                        help="a checkout of SGLang, whose test files run too")
    parser.add_argument("--only", nargs="*", default=[""], help="kits and files whose names hold one of these texts")
    parser.add_argument("--resume", metavar="FOLDER", help="keeps the rows of each kit and file there, and skips what has "
                        "rows there already")
    parser.add_argument("--results", help="a file that gets the rows as JSON")
    args = parser.parse_args()
    launching.find_binary()
    started = time.monotonic()
    rows = run_all(args, os.path.abspath(model_path(args.model)))
    if args.results:
        with open(args.results, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    wrong, counts = compare(rows, read_list("expected_failures.txt"))
    print(f"SGLang's tests: {len(rows)} run, {counts['passed']} passed, {counts['listed']} listed, "
          f"{counts['skipped']} skipped, {counts['failed']} failed, {time.monotonic() - started:.0f} s")
    for line in wrong:
        print(line)
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
