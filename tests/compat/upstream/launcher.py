"""What SGLang's tests import besides themselves, over Espalier: its launcher of servers, names of models, tokenizers.

SGLang's `test_utils` imports a GPU engine and starts `python -m sglang.launch_server`. Here a module takes its place
whose `popen_launch_server` starts `espalier serve` with the same flags on the model of this run, whichever model a
test names. The test files and the kits of the package `sglang` run as published."""
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "e2e"))
from harness import BINARY, clean_environment  # noqa: E402
import sglang_client  # noqa: E402

READY_S = 120
THREADS = "2"


class Tokenizer:
    """The part of a Hugging Face tokenizer that tests call, answered by the server that runs."""

    bos_token_id, eos_token_id = 1, 2  # SmolLM2's

    def __init__(self, launcher):
        self.launcher = launcher

    def encode(self, text, **_):
        import requests
        answer = requests.post(self.launcher.url + "/v1/tokenize", json={"prompt": text, "add_special_tokens": False},
                               headers=self.launcher.headers, timeout=60)
        answer.raise_for_status()
        return answer.json()["tokens"]

    def decode(self, ids, **_):
        import requests
        answer = requests.post(self.launcher.url + "/v1/detokenize", json={"tokens": list(ids)},
                               headers=self.launcher.headers, timeout=60)
        answer.raise_for_status()
        return answer.json()["text"]


class Launcher:
    """Starts one server at a time on one address, which tests read when they are imported."""

    def __init__(self, model):
        self.model = model
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.headers = {}
        self.process, self.log = None, None

    def launch(self, model=None, base_url=None, timeout=READY_S, api_key=None, other_args=(), env=None, **_):
        del model, base_url, timeout
        self.stop()
        args = [str(arg) for arg in other_args or ()]
        if api_key:
            args += ["--api-key", api_key]
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--model-path", self.model, "--port", str(self.port), "--num-threads", THREADS, *args],
            env=clean_environment(env), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).close()
                return self.process
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the server does not start: {self.output().strip()}")

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.log.close()
        self.process = None


class TestUtils(types.ModuleType):
    """sglang.test.test_utils: names of models mean the model of this run."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if "TIMEOUT" in name:
            return READY_S
        if name.startswith("DEFAULT_URL"):
            return self.launcher.url
        if name.startswith("DEFAULT_") or name.endswith("_FOR_TEST"):
            return self.launcher.model
        if name.startswith("is_in_") or name.startswith("is_"):
            return lambda *_, **__: False
        raise AttributeError(f"the launcher has no {name} of SGLang's test_utils")


def module(name, **members):
    out = types.ModuleType(name)
    out.__dict__.update(members)
    sys.modules[name] = out
    return out


def install(launcher):
    """Puts the modules in the place of SGLang's that import its engine."""
    sglang_client.install_stand_ins()
    package = importlib.util.find_spec("sglang.test")
    root = list(package.submodule_search_locations)[0]
    for name in ("sglang.test", "sglang.test.kits", "sglang.srt.parser", "sglang.srt.entrypoints",
                 "sglang.srt.entrypoints.anthropic"):
        holder = types.ModuleType(name)
        relative = name.split(".")[1:]
        holder.__path__ = [os.path.join(os.path.dirname(root), *relative)]
        sys.modules[name] = holder

    def end(*_, **__):
        launcher.stop()

    utils = TestUtils("sglang.test.test_utils")
    utils.launcher = launcher
    utils.CustomTestCase = unittest.TestCase
    utils.popen_launch_server = launcher.launch
    sys.modules[utils.__name__] = utils
    sys.modules["sglang.srt.utils"].kill_process_tree = end
    module("sglang.srt.utils.common", kill_process_tree=end)
    module("sglang.srt.utils.hf_transformers_utils", get_tokenizer=lambda *_, **__: Tokenizer(launcher))
    ignored = {f"register_{kind}_ci": lambda *_, **__: None for kind in ("cuda", "amd", "cpu", "npu", "xpu", "musa")}
    # One test of the Anthropic kit calls SGLang's server class itself.
    module("sglang.srt.entrypoints.anthropic.serving", AnthropicServing=None)
    module("sglang.test.ci", __path__=[])
    module("sglang.test.ci.ci_register", **ignored)


def find_binary():
    if not shutil.which(BINARY):
        sys.exit(f"there is no {BINARY}: build it, or set ESPALIER_BINARY")
