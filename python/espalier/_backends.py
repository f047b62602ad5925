"""Back ends: what runs a program's calls. One serves any number of programs."""
from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any, AsyncIterator, Dict, Iterator, List, Optional, Type, Union

from . import _native
from ._native import Backend

Answer = Dict[str, Any]
"""One sample as /generate tells it: "text", "output_ids", "meta_info"."""


class Engine(Backend):
    """An engine in this process: a back end for programs, and SGLang's Engine.generate.

    model_path: what `espalier serve --model-path` takes: a folder, a .gguf file, or org/name of a
        Hugging Face hub, which is fetched into its cache; None is the model that ships, "seeing"
        the one that reads pictures
    settings: the engine's of `espalier serve`, by the flags' names: num_threads, context_length,
        max_total_tokens, dtype, revision, lora_paths=["name=folder"], ...; None is the default,
        one that is unknown is an error. Warnings and errors are logged, more with log_level="info".
    """

    def __init__(self, model_path: Optional[str] = None, **settings: Any) -> None:
        super().__init__(_native.Engine(model_path or "", settings))

    def generate(
        self,
        prompt: Optional[Union[str, List[str]]] = None,
        sampling_params: Optional[Union[Dict[str, Any], List[Dict[str, Any]]]] = None,
        input_ids: Optional[Union[List[int], List[List[int]]]] = None,
        return_logprob: Optional[Union[bool, List[bool]]] = None,
        logprob_start_len: Optional[Union[int, List[int]]] = None,
        top_logprobs_num: Optional[Union[int, List[int]]] = None,
        token_ids_logprob: Optional[Union[List[int], List[List[int]]]] = None,
        stream: bool = False,
        **more: Any,
    ) -> Any:
        """The answer of one prompt, or the list of a list's; all of them run at once.

        sampling_params: of /generate (max_new_tokens, temperature, stop, json_schema, n, ...)
        stream: gives an iterator instead, of the samples each time they have grown, as far as they
            are; of a list each has its "index"
        more: further fields of a /generate body (rid, return_text_in_logprobs, extra_key, ...)

        Fields that a body cannot have are an error that names them. Ctrl-C, and an iterator that
        is dropped, end the requests.
        """
        fields = {"text": prompt, "sampling_params": sampling_params, "input_ids": input_ids,
                  "return_logprob": return_logprob, "logprob_start_len": logprob_start_len,
                  "top_logprobs_num": top_logprobs_num, "token_ids_logprob": token_ids_logprob}
        body = {name: value for name, value in {**fields, **more}.items() if value is not None}
        _check_names("body", body, _native._body_schema)
        for one in sampling_params if isinstance(sampling_params, list) else [sampling_params or {}]:
            _check_names("sampling_params", one, _native._sampling_schema)
        generation = _native._generate(self, json.dumps(body))
        return generation if stream else generation.result()

    async def async_generate(
        self,
        prompt: Optional[Union[str, List[str]]] = None,
        sampling_params: Optional[Union[Dict[str, Any], List[Dict[str, Any]]]] = None,
        *,
        stream: bool = False,
        **more: Any,
    ) -> Any:
        """generate() for coroutines; awaited, with stream=True it gives an asynchronous iterator."""
        pieces = self.generate(prompt, sampling_params, stream=True, **more)
        if stream:
            return _async_iterator(pieces)
        return await asyncio.get_running_loop().run_in_executor(None, pieces.result)

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Ends the requests whose ids begin with `rid`, or all."""
        if rid or abort_all:
            _native._abort(self, rid, abort_all)

    def shutdown(self) -> None:
        """Ends what runs and drops what is cached; later calls fail with "unavailable". The
        memory of the weights goes back with the object."""
        _native._shut_down(self)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.shutdown()


def _check_names(what: str, fields: Dict[str, Any], schema: str) -> None:
    """A server ignores fields that it does not know; here they are a mistake."""
    known = json.loads(schema)["properties"]
    for name in fields:
        if name not in known:
            raise TypeError(f"{what} has no field {name!r}; it has " + ", ".join(sorted(known)))


async def _async_iterator(pieces: Iterator[Answer]) -> AsyncIterator[Answer]:
    loop = asyncio.get_running_loop()
    end = object()
    while (piece := await loop.run_in_executor(None, next, pieces, end)) is not end:
        yield piece  # type: ignore[misc]


class RuntimeEndpoint(Backend):
    """A server: `espalier serve`, or SGLang's.

    chat_template_name: how messages are framed; by default as the model that the server tells
    """

    def __init__(self, base_url: str, api_key: Optional[str] = None,
                 chat_template_name: Optional[str] = None) -> None:
        super().__init__(_native.RuntimeEndpoint(base_url, api_key or "", chat_template_name or ""))
        self.base_url = base_url.rstrip("/")

    @property
    def endpoint(self) -> RuntimeEndpoint:
        """Itself: what SGLang's programs look for in a Runtime."""
        return self

    def get_model_name(self) -> str:
        """The folder or name that the server tells."""
        return str(self.get_server_info()["model_path"])


class Runtime(RuntimeEndpoint):
    """A server of its own: starts `espalier serve` and is its endpoint.

    model_path: as Engine's; None is the model that ships
    settings: the command's flags with underscores: context_length=4096, trust_remote_code=True

    The command is found by ESPALIER_BINARY, in the package, beside its build, or by PATH.
    """

    def __init__(self, model_path: Optional[str] = None, *, launch_timeout: float = 300.0,
                 chat_template_name: Optional[str] = None, **settings: Any) -> None:
        command = [_binary(), "serve", "--host", "127.0.0.1"]
        if "port" not in settings:
            command += ["--port", "0"]
        if model_path is not None:
            command += ["--model-path", model_path]
        for name, value in settings.items():
            command.append("--" + name.replace("_", "-"))
            if value is not True:
                command.append(str(value))
        self._log = tempfile.TemporaryFile("w+")
        self._process: Optional[subprocess.Popen[bytes]] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        try:
            self.url = self._wait_for_address(launch_timeout)
            super().__init__(self.url, chat_template_name=chat_template_name)
        except BaseException:
            self.shutdown()
            raise

    def _output(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _wait_for_address(self, timeout: float) -> str:
        assert self._process is not None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            _, ready, rest = self._output().partition("ready url=")
            if ready and rest.split():
                return rest.split()[0]
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}:\n"
                                   f"{self._output()}")
            time.sleep(0.01)
        raise RuntimeError(f"the server is not ready after {timeout} s:\n{self._output()}")

    def shutdown(self) -> None:
        """Ends the server."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.shutdown()


def _binary() -> str:
    package = os.path.dirname(os.path.abspath(_native.__file__))
    installed = os.path.join(package, "bin", "espalier")
    built = os.path.join(package, "..", "..", "espalier")
    for path in (os.environ.get("ESPALIER_BINARY"), installed, built, shutil.which("espalier")):
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError("there is no `espalier` command: build it, and put it into PATH or "
                            "name it in ESPALIER_BINARY")


class TokenUsage:
    """The tokens that an API has counted since the last reset()."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.reset()

    def reset(self) -> None:
        self._before = self._backend.usage()

    def _since(self, name: str) -> int:
        return int(self._backend.usage()[name] - self._before[name])

    @property
    def prompt_tokens(self) -> int:
        return self._since("prompt_tokens")

    @property
    def completion_tokens(self) -> int:
        return self._since("completion_tokens")


class OpenAI(Backend):
    """An OpenAI-compatible API; the key and the address by default from OPENAI_API_KEY and
    OPENAI_BASE_URL.

    is_chat_model: by default all but the models whose names end in "instruct"
    has_extensions: the server takes more than OpenAI's fields (Espalier's and SGLang's do)
    prices: dollars for a million tokens: {"input": .., "cached_input": .., "output": ..}
    """

    def __init__(self, model_name: str, is_chat_model: Optional[bool] = None, *,
                 base_url: Optional[str] = None, api_key: Optional[str] = None,
                 has_extensions: bool = False, prices: Optional[Dict[str, float]] = None) -> None:
        address = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        if is_chat_model is None:
            is_chat_model = not model_name.endswith("instruct")
        super().__init__(_native.OpenAI(model_name, address,
                                        api_key or os.environ.get("OPENAI_API_KEY", ""),
                                        is_chat_model, has_extensions, prices or {}))
        self.token_usage = TokenUsage(self)


class Anthropic(Backend):
    """Anthropic's API; the key by default from ANTHROPIC_API_KEY."""

    def __init__(self, model_name: str, *, base_url: Optional[str] = None,
                 api_key: Optional[str] = None, prices: Optional[Dict[str, float]] = None) -> None:
        super().__init__(_native.Anthropic(model_name, base_url or "https://api.anthropic.com",
                                           api_key or os.environ.get("ANTHROPIC_API_KEY", ""),
                                           prices or {}))


def set_default_backend(backend: Optional[Backend]) -> None:
    """For programs that are run without backend=."""
    _native.set_default_backend(backend)


def flush_cache(backend: Optional[Backend] = None) -> None:
    """Drops what a back end has cached; of the default one when none is given."""
    _chosen(backend).flush_cache()


def get_server_info(backend: Optional[Backend] = None) -> Dict[str, Any]:
    """What a back end tells of itself; of the default one when none is given."""
    return _chosen(backend).get_server_info()


class GlobalConfig:
    """SGLang's name for what set_default_backend sets, and two switches.

    enable_parallel_encoding: a join by "concate_and_append" keeps what its branches have computed,
        where the back end can (docs/lang.md); off, the joined text is computed anew
    enable_precache_with_tracing: run_batch computes the constant beginning first
    """

    enable_parallel_encoding: bool = True
    enable_precache_with_tracing: bool = True

    @property
    def default_backend(self) -> Optional[Backend]:
        return _native.default_backend()

    @default_backend.setter
    def default_backend(self, backend: Optional[Backend]) -> None:
        _native.set_default_backend(backend)


global_config = GlobalConfig()


def _chosen(backend: Optional[Backend]) -> Backend:
    chosen = backend if backend is not None else _native.default_backend()
    if chosen is None:
        raise RuntimeError("no back end: pass one, or call set_default_backend() first")
    return chosen
