"""Programs: Python functions over a ProgramState."""
from __future__ import annotations

import asyncio
import inspect
from typing import (Any, AsyncIterator, Callable, Dict, Iterator, List, Optional, Sequence, Tuple,
                    Union, overload)

from . import _native
from ._backends import global_config
from ._native import Backend, Graph, ProgramState, Recorder
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
        min_tokens: Optional[int] = None,
        top_n_sigma: Optional[float] = None,
        use_beam_search: Optional[bool] = None,
        beam_width: Optional[int] = None,
        length_penalty: Optional[float] = None,
        early_stopping: Union[bool, str, None] = None,
        stream: bool = False,
        backend: Optional[Backend] = None,
        use_thread: bool = True,
        recorder: Optional[Recorder] = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Runs the program and waits for all that it appended.

        What the function throws is thrown here; what a gen of it failed with is in error() and is
        thrown where its variable is read. With stream=True it runs on a thread of its own and the
        state is there at once, for text_iter(). With use_thread=False each append waits until it is
        done and throws what failed. Ctrl-C ends the program's calls.

        recorder: gets a span of every primitive, for chrome_trace() and tree()
        """
        defaults = _defaults(locals())
        how = {"backend": backend, "num_api_spec_tokens": self.num_api_spec_tokens,
               "stream": stream, "use_thread": use_thread, "recorder": recorder,
               "parallel_encoding": global_config.enable_parallel_encoding}
        return _native.run(self.func, args, {**self.bound, **kwargs}, defaults, how)

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
        min_tokens: Optional[int] = None,
        top_n_sigma: Optional[float] = None,
        use_beam_search: Optional[bool] = None,
        beam_width: Optional[int] = None,
        length_penalty: Optional[float] = None,
        early_stopping: Union[bool, str, None] = None,
        backend: Optional[Backend] = None,
        num_threads: Union[int, str] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        recorder: Optional[Recorder] = None,
    ) -> Any:
        """Runs the program once for each dict (or sequence) of arguments; states in their order.

        The constant text with which all of them begin is computed first: for that, the function is
        called once with arguments that have no value yet. A program that throws leaves the others
        alone: its own state's error() returns why, and reading from that state throws.

        generator_style: gives an iterator instead of a list; 200 programs are at work at a time,
            and those that were read can go
        """
        defaults = _defaults(locals())
        rows = [{**self.bound, **self._named(row)} for row in batch_kwargs]
        how = {"backend": backend, "num_api_spec_tokens": self.num_api_spec_tokens,
               "num_threads": 0 if num_threads == "auto" else int(num_threads),
               "recorder": recorder,
               "parallel_encoding": global_config.enable_parallel_encoding,
               "prefetch_prefix": global_config.enable_precache_with_tracing}
        if generator_style:
            return self._in_parts(rows, defaults, how, progress_bar)
        return _native.run_batch(self.func, self.arg_names, rows, defaults, how, progress_bar,
                                 self.__name__)

    def _in_parts(self, rows: List[Dict[str, Any]], defaults: Dict[str, Any], how: Dict[str, Any],
                  progress_bar: bool, size: int = 200) -> Iterator[ProgramState]:
        for begin in range(0, len(rows), size):
            part = {**how, "prefetch_prefix": how["prefetch_prefix"] and begin == 0,
                    "num_done_before": begin,
                    "num_in_all": len(rows)}
            yield from _native.run_batch(self.func, self.arg_names, rows[begin:begin + size],
                                         defaults, part, progress_bar, self.__name__)

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
        return _native.trace(*self._free())

    def cache(self, backend: Optional[Backend] = None) -> int:
        """Computes the constant text with which every run begins, so that runs find it in the
        cache; its size in bytes, 0 where a back end has no cache to fill. run_batch does so by
        itself."""
        return _native.cache(*self._free(), {"backend": backend})

    def _free(self) -> Tuple[Callable[..., Any], List[str], str]:
        """The function of the arguments that are not bound, their names, its own."""
        func, bound = self.func, self.bound
        if not bound:
            return func, self.arg_names, self.__name__
        free = [name for name in self.arg_names if name not in bound]
        return lambda s, **kwargs: func(s, **bound, **kwargs), free, self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], ProgramState):
            return self.func(*args, **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)


def _defaults(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Of the arguments of run or run_batch those that are defaults of every gen: the table of request
    fields names them (docs/request_fields.md)."""
    arguments = {**arguments, "max_tokens": arguments["max_new_tokens"]}
    return {name: arguments[name] for name in _native.default_names()}


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: Optional[int] = None) -> Function: ...
@overload
def function(func: None = None, num_api_spec_tokens: Optional[int] = None
             ) -> Callable[[Callable[..., Any]], Function]: ...
def function(func: Optional[Callable[..., Any]] = None,
             num_api_spec_tokens: Optional[int] = None) -> Any:
    """Makes a program of a function whose first argument is its state: @function, or
    @function(num_api_spec_tokens=64) for API speculation (OpenAI back ends)."""
    if func is not None:
        return Function(func, num_api_spec_tokens)
    return lambda f: Function(f, num_api_spec_tokens)


async def text_async_iter(state: ProgramState, var_name: Optional[str] = None,
                          return_meta_data: bool = False
                          ) -> AsyncIterator[Union[str, Tuple[str, Dict[str, Any]]]]:
    """text_iter() for coroutines.

    return_meta_data: pairs of a piece and the variable's meta information so far:
        "output_token_logprobs" are those of the piece, "output_token_logprobs_length" counts all.
        The last piece has all of get_meta_info; the others {} where a back end does not report it
    """
    if return_meta_data and var_name is None:
        raise ValueError("return_meta_data is of a variable: name it")
    loop = asyncio.get_running_loop()
    pieces = state.text_iter(var_name)
    end = object()
    last: Optional[Tuple[str, Dict[str, Any]]] = None  # the newest piece, which may be the last
    num_reported = 0  # log-probabilities, without those of the newest piece
    while (piece := await loop.run_in_executor(None, next, pieces, end)) is not end:
        assert isinstance(piece, str)
        if not return_meta_data:
            yield piece
            continue
        if last is not None:
            num_reported = last[1].get("output_token_logprobs_length", num_reported)
            yield last
        last = piece, pieces.progress() or {}
    if return_meta_data and var_name is not None:
        meta = await loop.run_in_executor(None, state.get_meta_info, var_name)
        if "output_token_logprobs" in meta:
            entries = meta["output_token_logprobs"]
            meta = {**meta, "output_token_logprobs": entries[num_reported:],
                    "output_token_logprobs_length": len(entries)}
        yield last[0] if last is not None else "", meta


def fold_constants(graph: Graph, **arguments: str) -> Graph:
    """Puts arguments that are known into the text, and texts next to each other into one."""
    return graph._fold_constants(arguments)


def optimize(graph: Graph, **arguments: str) -> Graph:
    """All passes that keep every prompt: constants folded, what nobody can read eliminated, what
    all branches of a fork begin with computed once. `arguments` that are known become text."""
    return graph._optimize(arguments)


def run_graph(graph: Graph, backend: Optional[Backend] = None, max_new_tokens: int = 128,
              temperature: Optional[float] = None, seed: Optional[int] = None,
              recorder: Optional[Recorder] = None, **arguments: str) -> ProgramState:
    """Runs a graph by its arguments, without the function that it was traced from."""
    defaults = {"max_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    how = {"backend": backend, "recorder": recorder,
           "parallel_encoding": global_config.enable_parallel_encoding}
    return graph._run(defaults, how, arguments)
