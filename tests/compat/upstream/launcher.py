"""What SGLang's tests import besides themselves, over Espalier: its launcher of servers, names of models, tokenizers.

SGLang's `test_utils` is imported as published, with stand-ins for the GPU packages that it imports. Its
`popen_launch_server` starts `espalier serve` here, with the same flags, on the model of this run, whichever model a
test names; its constants name this model and a free address. An adapter that a test names on a hub is one made here."""
import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.parse
import urllib.request
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "e2e"))
from harness import BINARY, clean_environment  # noqa: E402
import sglang_client  # noqa: E402

READY_S = 120
THREADS = os.environ.get("ESPALIER_COMPAT_THREADS", "2")
DEVICE = os.environ.get("ESPALIER_COMPAT_DEVICE", "cpu")  # what SmolLM2 says by the lists, it says on a CPU
SEED = "1"  # of requests that state none, so that what SmolLM2 says is the same in every run
# Flags without a value that `espalier serve` refuses by name: the tests of such a class that need none of them run.
REFUSED_FLAGS = ("--enable-custom-logit-processor", "--enable-mis")
# Packages that SGLang's test helpers import and that no test which speaks HTTP calls.
GPU_PACKAGES = ("torch", "triton", "sgl_kernel", "flashinfer", "torchvision", "torchaudio", "pynvml", "ray")
# Packages of SGLang whose __init__ imports its engine; the modules in them are imported as published.
HOLLOW = ("sglang.srt.parser", "sglang.srt.entrypoints", "sglang.srt.entrypoints.anthropic", "sglang.srt.sampling",
          "sglang.srt.observability", "sglang.srt.managers")
# Modules of its engine that those import.
ENGINE_MODULES = ("sglang.srt.disaggregation.utils", "sglang.srt.model_executor.forward_batch_info",
                  "sglang.srt.server_args", "sglang.srt.runtime_context", "sglang.srt.entrypoints.engine",
                  "sglang.srt.entrypoints.anthropic.serving", "sglang.srt.utils.gauge_histogram")


class Tokenizer:
    """The part of a Hugging Face tokenizer that tests call, answered by the server that runs."""

    bos_token_id, eos_token_id = 1, 2  # SmolLM2's

    def __init__(self, launcher):
        self.launcher = launcher

    def post(self, path, body):
        import requests
        answer = requests.post(self.launcher.url + path, json=body, headers=self.launcher.headers, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def encode(self, text, **_):
        return self.post("/v1/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def __call__(self, text, **_):
        ids = self.encode(text)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def decode(self, ids, **_):
        return self.post("/v1/detokenize", {"tokens": list(ids)})["text"]

    def apply_chat_template(self, messages, tokenize=True, **_):
        prompt = self.post("/apply-template", {"messages": messages})["prompt"]
        return self.encode(prompt) if tokenize else prompt


class CommandTokenizer(Tokenizer):
    """The same, answered by the command, for tests whose server has no tokenizer."""

    def run(self, *args):
        done = subprocess.run([BINARY, "tokenize", "--tokenizer", self.launcher.model, "--json", *args],
                              env=clean_environment(), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def encode(self, text, **_):
        return self.run("--no-special", text)

    def __call__(self, text, return_tensors=None, **_):
        if return_tensors is None:
            return super().__call__(text)
        import numpy
        ids = self.encode(text)
        return {"input_ids": numpy.array([ids])}

    def decode(self, ids, **_):
        return self.run("--decode", " ".join(map(str, ids)))


def write_adapter(folder):
    """The folder, which gets a LoRA adapter of SmolLM2's first layer, as PEFT's save_pretrained writes it."""
    os.makedirs(folder, exist_ok=True)
    rank, width = 4, 576
    rng = random.Random(1)
    header, data = {}, b""
    for factor, shape, deviation in (("lora_A", [rank, width], 0.1), ("lora_B", [width, rank], 1.0)):
        values = [rng.gauss(0, deviation) for _ in range(rank * width)]
        header[f"base_model.model.model.layers.0.self_attn.q_proj.{factor}.weight"] = {
            "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += struct.pack(f"<{len(values)}f", *values)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": 8}, f)
    return folder


class Launcher:
    """Starts one server at a time, on one address which tests read when they are imported."""

    def __init__(self, model):
        self.model = model
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.default_url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        self.url = self.default_url
        self.headers = {}
        self.more_flags = ()  # of every server that a file starts
        self.process, self.log = None, None

    def launch(self, model=None, base_url=None, timeout=READY_S, api_key=None, other_args=(), env=None,
               return_stdout_stderr=None, **_):
        del timeout
        self.stop()
        self.url = base_url or self.default_url
        args = [str(arg) for arg in other_args or () if arg not in REFUSED_FLAGS]
        if "--lora-paths" in args:
            at = args.index("--lora-paths") + 1
            args[at] = f"{args[at].partition('=')[0]}={write_adapter(os.path.abspath('adapter'))}"
        if model not in (None, self.model) and "--served-model-name" not in args:
            args += ["--served-model-name", model]  # the name that the test states in requests
        if api_key:
            args += ["--api-key", api_key]
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        command = [BINARY, "serve", "--model-path", self.model, "--port", str(urllib.parse.urlsplit(self.url).port),
                   "--device", DEVICE, "--num-threads", THREADS, "--random-seed", SEED, *self.more_flags, *args]
        print("  starts: " + shlex.join(command), flush=True)
        self.log = tempfile.TemporaryFile("w+")
        own = {name: value for name, value in (env or {}).items() if not name.startswith("ESPALIER_")}
        self.process = subprocess.Popen(command, env=clean_environment(own), stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=subprocess.PIPE, text=True)
        sinks = [self.log] + ([return_stdout_stderr[1]] if return_stdout_stderr else [])
        threading.Thread(target=copy_lines, args=(self.process.stderr, sinks), daemon=True).start()
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=5).close()
                return self.process
            except OSError:
                time.sleep(0.1)
        time.sleep(0.2)  # the last lines of the log
        said = "\n".join(line for line in self.output().splitlines() if not line.startswith("note:"))
        raise RuntimeError(f"the server does not start: {said.strip()}")

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process = None


def copy_lines(source, sinks):
    for line in iter(source.readline, ""):
        for sink in sinks:
            try:
                sink.write(line)
                sink.flush()
            except ValueError:  # a test closed its file
                pass


class StandIn(types.ModuleType):
    """A package that is imported and not called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GPU_PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def module(name, **members):
    out = types.ModuleType(name)
    out.__dict__.update(members)
    sys.modules[name] = out
    return out


def constants_of(path):
    """The members of a module that are written as literals, without importing it."""
    with open(path, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    out = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                out[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                pass
    return out


def install_engine_utils(launcher):
    """The part of SGLang's helpers of its engine that tests call."""

    def end(*_, **__):
        launcher.stop()

    def no(*_, **__):
        return False

    package = sys.modules["sglang.srt.utils"]
    members = {"kill_process_tree": end, "get_device": lambda *_, **__: "cpu", "retry": lambda call, **_: call(),
               "get_bool_env_var": lambda name, default="false": os.environ.get(name, default).lower() in ("1", "true")}
    members.update({f"is_{kind}": no for kind in ("cuda", "hip", "xpu", "npu", "cpu", "musa", "blackwell", "in_ci")})
    package.__dict__.update(members)
    module("sglang.srt.utils.common", temp_set_env=lambda **values: mock.patch.dict(os.environ, values), **members)
    module("sglang.srt.utils.hf_transformers_utils", get_tokenizer=lambda *_, **__: Tokenizer(launcher))
    for name in ENGINE_MODULES:
        sys.modules[name] = StandIn(name)
    ignored = {f"register_{kind}_ci": no for kind in ("cuda", "amd", "cpu", "npu", "xpu", "musa")}
    module("sglang.test.ci", __path__=[])
    module("sglang.test.ci.ci_register", **ignored)


def install(launcher, checkout=None):
    """Puts the modules in the place of SGLang's that import its engine. The helpers of a checkout's tests are its own."""
    if checkout and os.path.isdir(os.path.join(checkout, "python", "sglang")):
        sys.path.insert(0, os.path.join(checkout, "python"))
    import transformers.utils
    transformers.utils.is_torch_available()  # answered, and remembered, without the stand-in
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: CommandTokenizer(launcher)
    sglang_client.install_stand_ins()
    sys.meta_path.append(StandIns())
    root = list(importlib.util.find_spec("sglang.test").submodule_search_locations)[0]
    for name in HOLLOW:
        holder = module(name)
        holder.__path__ = [os.path.join(os.path.dirname(root), *name.split(".")[1:])]
    install_engine_utils(launcher)
    module("sglang.test.runners", **constants_of(os.path.join(root, "runners.py")))
    utils = importlib.import_module("sglang.test.test_utils")
    utils.popen_launch_server = launcher.launch
    utils.CustomTestCase = __import__("unittest").TestCase
    utils.is_rust_server_built = lambda: False
    for name, value in list(vars(utils).items()):
        if name.startswith("DEFAULT_URL"):
            setattr(utils, name, launcher.default_url)
        elif name.startswith("DEFAULT_") and "MODEL" in name and isinstance(value, str):
            setattr(utils, name, launcher.model)
        elif name in ("STDOUT_FILENAME", "STDERR_FILENAME"):  # in /tmp, where another run has them too
            setattr(utils, name, os.path.abspath(os.path.basename(value)))
    utils.read_output.__defaults__ = (utils.STDERR_FILENAME,)  # bound when the module was read


def find_binary():
    if not shutil.which(BINARY):
        sys.exit(f"there is no {BINARY}: build it, or set ESPALIER_BINARY")
