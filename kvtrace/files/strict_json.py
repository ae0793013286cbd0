"""JSON that every reader must read alike: no key twice, no text that cannot be stored."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_SURROGATE_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_CONTAINERS: Final = 2_000_000
_MAX_VALUES: Final = 20_000_000
"""An empty list takes 3 bytes of a file and 60 of the memory."""


def parse_strict_json(text: bytes, *, constants: bool = False) -> Any:
    r"""Return parsed JSON.

    constants: take NaN and Infinity, which Python writes and JSON does not have.
    Raises ValueError: not UTF-8, not JSON, a key twice in an object, half of a surrogate pair, a number of
    too many digits, or more values than memory is given to. RecursionError: it nests too deeply.

    >>> parse_strict_json(b'{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: an object has the same key twice
    """
    if text.count(b"[") + text.count(b"{") > _MAX_CONTAINERS or text.count(b",") > _MAX_VALUES:
        raise ValueError(f"it has more than {_MAX_CONTAINERS:,} lists and objects, or {_MAX_VALUES:,} values")
    content = json.loads(
        text.decode("utf-8"),
        object_pairs_hook=_unique_keys,
        parse_constant=None if constants else _refuse_constant,
    )
    if _SURROGATE_ESCAPE.search(text):
        json.dumps(content, ensure_ascii=False).encode("utf-8")  # half a pair cannot be encoded
    return content


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("an object has the same key twice")
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
