"""Back ends: what runs a program's calls. One serves any number of programs."""
from __future__ import annotations

import os
from typing import Any, Dict, Optional

from . import _native
from ._native import Backend


def Engine(model_path: str, **settings: Any) -> Backend:
    """An engine in this process.

    settings: of `espalier serve`, by the flags' names: num_threads, context_length,
    max_total_tokens, max_running_requests, page_size, dtype, ...; one that is unknown is an error.
    """
    return _native.Engine(model_path, settings)


def RuntimeEndpoint(base_url: str, api_key: Optional[str] = None,
                    chat_template_name: Optional[str] = None) -> Backend:
    """A server: `espalier serve`, or SGLang's."""
    return _native.RuntimeEndpoint(base_url, api_key or "", chat_template_name or "")


def OpenAI(model_name: str, is_chat_model: Optional[bool] = None, *, base_url: Optional[str] = None,
           api_key: Optional[str] = None, has_extensions: bool = False,
           prices: Optional[Dict[str, float]] = None) -> Backend:
    """An OpenAI-compatible API; the key and the address by default from OPENAI_API_KEY and
    OPENAI_BASE_URL.

    is_chat_model: by default all but the models whose names end in "instruct"
    has_extensions: the server takes more than OpenAI's fields (Espalier's and SGLang's do)
    prices: dollars for a million tokens: {"input": .., "cached_input": .., "output": ..}
    """
    address = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    if is_chat_model is None:
        is_chat_model = not model_name.endswith("instruct")
    return _native.OpenAI(model_name, address, api_key or os.environ.get("OPENAI_API_KEY", ""),
                          is_chat_model, has_extensions, prices or {})


def Anthropic(model_name: str, *, base_url: Optional[str] = None, api_key: Optional[str] = None,
              prices: Optional[Dict[str, float]] = None) -> Backend:
    """Anthropic's API; the key by default from ANTHROPIC_API_KEY."""
    return _native.Anthropic(model_name, base_url or "https://api.anthropic.com",
                             api_key or os.environ.get("ANTHROPIC_API_KEY", ""), prices or {})


def set_default_backend(backend: Optional[Backend]) -> None:
    """For programs that are run without backend=."""
    _native.set_default_backend(backend)


def flush_cache(backend: Optional[Backend] = None) -> None:
    """Drops what a back end has cached; of the default one when none is given."""
    _chosen(backend).flush_cache()


def get_server_info(backend: Optional[Backend] = None) -> Dict[str, Any]:
    return _chosen(backend).get_server_info()


def _chosen(backend: Optional[Backend]) -> Backend:
    chosen = backend if backend is not None else _native.default_backend()
    if chosen is None:
        raise RuntimeError("no back end: pass one, or call set_default_backend() first")
    return chosen
