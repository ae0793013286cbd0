"""Arguments of `vllm.LLM` as a command line gives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse_engine_arguments(pairs: Sequence[str], *, taken: Sequence[str] = ()) -> dict[str, Any]:
    """Return NAME=VALUE pairs as arguments; a value that is JSON is taken as such, else as text.

    taken: names that kvtrace sets. Raises InputError: one of these, or no pair.

    >>> parse_engine_arguments(["max_model_len=8192", "dtype=bfloat16"])
    {'max_model_len': 8192, 'dtype': 'bfloat16'}
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--engine-arg {pair!r}: expected NAME=VALUE, such as max_model_len=8192")
        if name in taken:
            raise InputError(f"--engine-arg {name}: is set by kvtrace; the command has options of its own")
        try:
            arguments[name] = json.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments
