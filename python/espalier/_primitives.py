"""What a program appends to its prompt. Arguments have SGLang's names and order; one that is None is
the run's default, and where that is absent the back end's."""
from __future__ import annotations

import json
import warnings
from typing import Any, Dict, List, Optional, Sequence, Type, Union

from . import _native
from ._native import ChoicesMethod, Expr, Value

Content = Union[str, Expr, Value]
StrOrList = Union[str, Sequence[str]]

token_length_normalized = ChoicesMethod.token_length_normalized
greedy_token_selection = ChoicesMethod.greedy_token_selection
unconditional_likelihood_normalized = ChoicesMethod.unconditional_likelihood_normalized
exact_likelihood = ChoicesMethod.exact_likelihood


def _with_schema(options: Dict[str, Any]) -> Dict[str, Any]:
    """A schema that is a dict or a pydantic model becomes text, with a reader of what is written."""
    schema = options["json_schema"]
    if schema is None or isinstance(schema, str):
        return options
    if hasattr(schema, "model_json_schema"):
        text, reader = json.dumps(schema.model_json_schema()), schema.model_validate_json
    elif isinstance(schema, dict):
        text, reader = json.dumps(schema), json.loads
    else:
        raise TypeError("json_schema is a str, a dict or a pydantic model, not "
                        f"{type(schema).__name__}")
    return {**options, "json_schema": text, "reader": reader}


def gen(
    name: Optional[str] = None,
    max_tokens: Optional[int] = None,
    min_tokens: Optional[int] = None,
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
    dtype: Optional[Union[type, str]] = None,
    choices: Optional[List[str]] = None,
    choices_method: Optional[Union[ChoicesMethod, str]] = None,
    regex: Optional[str] = None,
    json_schema: Optional[Union[str, Dict[str, Any], Type[Any]]] = None,
    ebnf: Optional[str] = None,
    seed: Optional[int] = None,
    top_n_sigma: Optional[float] = None,
    use_beam_search: Optional[bool] = None,
    beam_width: Optional[int] = None,
    length_penalty: Optional[float] = None,
    early_stopping: Union[bool, str, None] = None,
    **fields: Any,
) -> Expr:
    """The model writes, until it ends, a stop or max_tokens; the text is the variable `name`.

    n: above 1 the variable is a list, and its first goes into the prompt
    stop: one or several texts that end it; they are not part of it
    dtype: str, int, float or bool: constrains the text to that form
    choices: makes it a select
    regex, json_schema, ebnf: at most one; constrains the text. With a schema that is a dict the
        variable reads as parsed JSON, with a pydantic model as one of it, with a str as text.
    fields: other request fields of docs/request_fields.md
    """
    options = dict(locals())
    return _native.gen(_with_schema({**options.pop("fields"), **options}))


def gen_int(
    name: Optional[str] = None,
    max_tokens: Optional[int] = None,
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
    min_tokens: Optional[int] = None,
    seed: Optional[int] = None,
    top_n_sigma: Optional[float] = None,
    use_beam_search: Optional[bool] = None,
    beam_width: Optional[int] = None,
    length_penalty: Optional[float] = None,
    early_stopping: Union[bool, str, None] = None,
) -> Expr:
    """A gen constrained to an integer. The variable is its text, as in SGLang."""
    return _native.gen_int(locals())


def gen_string(
    name: Optional[str] = None,
    max_tokens: Optional[int] = None,
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
    min_tokens: Optional[int] = None,
    seed: Optional[int] = None,
    top_n_sigma: Optional[float] = None,
    use_beam_search: Optional[bool] = None,
    beam_width: Optional[int] = None,
    length_penalty: Optional[float] = None,
    early_stopping: Union[bool, str, None] = None,
) -> Expr:
    """A gen constrained to a quoted string."""
    return _native.gen_string(locals())


def select(
    name: Optional[str] = None,
    choices: Sequence[str] = (),
    temperature: float = 0.0,
    choices_method: Union[ChoicesMethod, str] = token_length_normalized,
) -> Expr:
    """The most probable of `choices`; a select is decided by the largest score and draws nothing,
    so a `temperature` above 0, which SGLang's select accepts and ignores, raises a warning."""
    if temperature > 0:
        warnings.warn("temperature has no effect on a select: the largest score decides",
                      stacklevel=2)
    return _native.select(name or "", list(choices), choices_method)


def image(path: str) -> Expr:
    """A file, or "data:image/...;base64,...", for models that see: in this process and behind the back ends."""
    return _native.image(path)


def video(path: str, num_frames: int) -> Expr:
    return _native.video(path, num_frames)


def separate_reasoning(expr: Expr, model_type: str) -> Expr:
    """Of one gen: its variable keeps the answer, NAME_reasoning_content what stood in <think>."""
    return _native.separate_reasoning(expr, model_type)


def system(expr: Optional[Content] = None) -> Expr:
    """A whole message of the system; `system_begin() + ... + system_end()` in parts."""
    return _native.system("" if expr is None else expr)


def user(expr: Optional[Content] = None) -> Expr:
    """A whole message of the user."""
    return _native.user("" if expr is None else expr)


def assistant(expr: Optional[Content] = None) -> Expr:
    """A whole message of the assistant."""
    return _native.assistant("" if expr is None else expr)


def system_begin() -> Expr:
    return _native.system_begin()


def system_end() -> Expr:
    return _native.system_end()


def user_begin() -> Expr:
    return _native.user_begin()


def user_end() -> Expr:
    return _native.user_end()


def assistant_begin() -> Expr:
    return _native.assistant_begin()


def assistant_end() -> Expr:
    return _native.assistant_end()
