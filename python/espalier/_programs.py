"""Programs: Python functions over a ProgramState."""
from __future__ import annotations

import asyncio
import inspect
from typing import Any, AsyncIterator, Callable, Dict, List, Optional, Sequence, Union

from . import _native
from ._native import Backend, Graph, ProgramState
from ._primitives import StrOrList


class Function:
    """A program, made by @function. Calling it runs it; with a state as the first argument it goes
    on in that state instead.

    The options of run and run_batch are the defaults of every gen of the program.
    """

    def __init__(self, func: Callable[..., Any], num_api_spec_tokens: Optional[int] = None,
                 bound: Optional[Dict[str, Any]] = None) -> None:
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bound = dict(bound or {})
        self.arg_names = list(inspect.signature(func).parameters)[1:]
        self.__name__ = func.__name__
        self.__doc__ = func.__doc__

    def bind(self, **kwargs: Any) -> Function:
        """The same with some arguments set."""
        for name in kwargs:
            if name not in self.arg_names:
                raise TypeError(f"{self.__name__} has no argument {name!r}")
        return Function(self.func, self.num_api_spec_tokens, {**self.bound, **kwargs})

    def run(
        self,
        *args: Any,
        max_new_tokens: int = 128,
        n: Optional[int] = None,
        stop: Optional[StrOrList] = None,
        stop_token_ids: Optional[List[int]] = None,
        stop_regex: Optional[StrOrList] = None,
        temperature: Optional[float] = None,
        top_p: Optional[float] = None,
        top_k: Optional[int] = None,
        min_p: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        ignore_eos: Optional[bool] = None,
        return_logprob: Optional[bool] = None,
        logprob_start_len: Optional[int] = None,
        top_logprobs_num: Optional[int] = None,
        return_text_in_logprobs: Optional[bool] = None,
        seed: Optional[int] = None,
        stream: bool = False,
        backend: Optional[Backend] = None,
        use_thread: bool = True,
        **kwargs: Any,
    ) -> ProgramState:
        """Runs the program and waits for all that it appended.

        What the function throws is thrown here; what a gen of it failed with is in error() and is
        thrown where its variable is read. With stream=True it runs on a thread of its own and the
        state is there at once, for text_iter(). use_thread is there for SGLang's programs: a prompt
        state needs no thread here.
        """
        options = locals()
        defaults = {name: options[name] for name in _DEFAULTS}
        defaults["max_tokens"] = max_new_tokens
        return _native.run(self.func, args, {**self.bound, **kwargs}, defaults, backend,
                           self.num_api_spec_tokens or 0, stream)

    def run_batch(
        self,
        batch_kwargs: Sequence[Union[Dict[str, Any], Sequence[Any]]],
        *,
        max_new_tokens: int = 128,
        n: Optional[int] = None,
        stop: Optional[StrOrList] = None,
        stop_token_ids: Optional[List[int]] = None,
        stop_regex: Optional[StrOrList] = None,
        temperature: Optional[float] = None,
        top_p: Optional[float] = None,
        top_k: Optional[int] = None,
        min_p: Optional[float] = None,
        frequency_penalty: Optional[float] = None,
        presence_penalty: Optional[float] = None,
        ignore_eos: Optional[bool] = None,
        return_logprob: Optional[bool] = None,
        logprob_start_len: Optional[int] = None,
        top_logprobs_num: Optional[int] = None,
        return_text_in_logprobs: Optional[bool] = None,
        seed: Optional[int] = None,
        backend: Optional[Backend] = None,
        num_threads: Union[int, str] = "auto",
        progress_bar: bool = False,
    ) -> List[ProgramState]:
        """Runs the program once for each dict (or sequence) of arguments; states in their order.

        The constant text with which all of them begin is computed first: for that, the function is
        called once with arguments that have no value yet. A program that throws leaves the others
        alone: its own state's error() tells, and reading from that state throws.
        """
        options = locals()
        defaults = {name: options[name] for name in _DEFAULTS}
        defaults["max_tokens"] = max_new_tokens
        rows = [{**self.bound, **self._named(row)} for row in batch_kwargs]
        threads = 0 if num_threads == "auto" else int(num_threads)
        return _native.run_batch(self.func, self.arg_names, rows, defaults, backend,
                                 self.num_api_spec_tokens or 0, threads, progress_bar,
                                 self.__name__)

    def _named(self, row: Union[Dict[str, Any], Sequence[Any]]) -> Dict[str, Any]:
        if isinstance(row, dict):
            return row
        if isinstance(row, (list, tuple)) and len(row) <= len(self.arg_names):
            return dict(zip(self.arg_names, row))
        raise TypeError(f"{self.__name__} takes dicts or sequences of its arguments "
                        f"({', '.join(self.arg_names)}), not {row!r}")

    def trace(self) -> Graph:
        """The program as a graph, for to_json(), to_svg() and run(). Throws, with the line, where
        the function's way depends on a value. Bound arguments are constants."""
        func, bound = self.func, self.bound
        if not bound:
            return _native.trace(func, self.arg_names, self.__name__)
        free = [name for name in self.arg_names if name not in bound]
        return _native.trace(lambda s, **kwargs: func(s, **bound, **kwargs), free, self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], ProgramState):
            return self.func(*args, **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)


_DEFAULTS = ("n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p",
             "frequency_penalty", "presence_penalty", "ignore_eos", "return_logprob",
             "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs", "seed")


def function(func: Optional[Callable[..., Any]] = None,
             num_api_spec_tokens: Optional[int] = None) -> Any:
    """Makes a program of a function whose first argument is its state: @function, or
    @function(num_api_spec_tokens=64) for API speculation (OpenAI back ends)."""
    if func is not None:
        return Function(func, num_api_spec_tokens)
    return lambda f: Function(f, num_api_spec_tokens)


async def text_async_iter(state: ProgramState, var_name: Optional[str] = None) -> AsyncIterator[str]:
    """text_iter() for coroutines."""
    loop = asyncio.get_running_loop()
    pieces = state.text_iter(var_name)
    end = object()
    while (piece := await loop.run_in_executor(None, next, pieces, end)) is not end:
        yield piece


def run_graph(graph: Graph, backend: Optional[Backend] = None, max_new_tokens: int = 128,
              temperature: Optional[float] = None, seed: Optional[int] = None,
              **arguments: str) -> ProgramState:
    """Runs a graph by its arguments, without the function that it was traced from."""
    options = {"max_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    return graph._run(backend, options, arguments)
