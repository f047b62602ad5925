"""Espalier's frontend language: programs of many model calls, by SGLang's names.

    import espalier as sgl

    @sgl.function
    def capital(s, country):
        s += sgl.user("What is the capital of " + country + "?")
        s += sgl.assistant(sgl.gen("answer", max_tokens=16, stop="."))

    sgl.set_default_backend(sgl.Engine())    # the model that ships
    print(capital.run(country="France")["answer"])

Appending never waits; reading a variable does, with the interpreter lock released.
"""
import atexit
import os

from . import _native
from ._backends import (Anthropic, Engine, OpenAI, Runtime, RuntimeEndpoint, flush_cache,
                        get_server_info, global_config, set_default_backend)
from ._errors import Error, InvalidArgumentError, NotFoundError, make_error
from ._native import (Backend, ChoicesMethod, Expr, Graph, Plan, ProgramState, ProgramStateGroup,
                      Recorder, Value)
from ._primitives import (assistant, assistant_begin, assistant_end, exact_likelihood, gen, gen_int,
                          gen_string, greedy_token_selection, image, select, separate_reasoning,
                          system, system_begin, system_end, token_length_normalized,
                          unconditional_likelihood_normalized, user, user_begin, user_end, video)
from ._programs import Function, fold_constants, function, optimize, run_graph, text_async_iter
from ._weights import share_weights, update_weights

_native._set_package(os.path.join(os.path.dirname(__file__), ""), Error, make_error)
for name, method in (("run", run_graph), ("optimize", optimize),
                     ("fold_constants", fold_constants)):
    setattr(Graph, name, method)
setattr(ProgramState, "text_async_iter", text_async_iter)
del name, method


@atexit.register
def _end() -> None:
    _native._wait_for_programs()
    _native.set_default_backend(None)


__all__ = [
    "assistant", "assistant_begin", "assistant_end", "exact_likelihood", "flush_cache", "function",
    "gen", "gen_int", "gen_string", "get_server_info", "global_config", "greedy_token_selection",
    "image", "select", "separate_reasoning", "set_default_backend", "share_weights", "system",
    "system_begin", "system_end", "token_length_normalized", "unconditional_likelihood_normalized",
    "update_weights", "user", "user_begin", "user_end", "video", "Anthropic", "Backend", "ChoicesMethod", "Engine", "Error",
    "Expr", "Function", "Graph", "InvalidArgumentError", "NotFoundError", "OpenAI", "Plan",
    "ProgramState", "ProgramStateGroup", "Recorder", "Runtime", "RuntimeEndpoint", "Value",
]
