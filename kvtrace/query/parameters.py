"""Check the values of a query's parameters: a name that a run does not hold is an error, no empty table."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import QueryError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

_OF_THE_RUN: Final = {
    "candidate": "SELECT candidate FROM candidates ORDER BY ordinal",
    "baseline": "SELECT candidate FROM candidates WHERE status = 'valid' AND kind <> 'bf16' ORDER BY ordinal",
    "per_head": "SELECT candidate FROM candidates WHERE status = 'valid' AND granularity = 'attn_head' "
    "ORDER BY ordinal",
    "source": "SELECT source FROM sampling UNION SELECT source FROM requests ORDER BY source",
    "workload": "SELECT DISTINCT workload FROM requests ORDER BY workload",
    "layer": "SELECT DISTINCT layer FROM scales ORDER BY layer",
    "kv_head": "SELECT DISTINCT kv_head FROM scales ORDER BY kv_head",
}
"""Parameter → the values that say something of a run."""
_WORDS: Final = {
    "tensor": ("k", "v"),
    "phase": ("prefill", "decode"),
    "by": ("workload", "prompt", "output"),
    "intervals": ("true", "false"),
}
_LEAST: Final = {"top": 1, "width": 1, "min_requests": 1, "min_tokens": 0}
"""Whole numbers, and the smallest that means something."""
_LARGEST: Final = 2**31 - 1
_MOST: Final = {"limit": 1.0, "margin_db": math.inf}
"""Numbers from 0, and the largest that means something."""
_EDGES: Final = ("edges", "prompt_edges", "output_edges")
CHECKED: Final = frozenset({*_OF_THE_RUN, *_WORDS, *_LEAST, *_MOST, *_EDGES})
"""Every parameter that a query of the library may have."""
_LONGEST_LIST: Final = 20


def check_values(connection: duckdb.DuckDBPyConnection, where: str, parameters: Mapping[str, str]) -> None:
    """Raise QueryError for a value that a query of the library cannot mean; the text says what it can.

    connection: with the views of queries/views.sql. where: what has the parameters: `query rank_heads`.
    """
    for name, value in parameters.items():
        expected = _expected(connection, name, value)
        if expected is not None:
            raise QueryError(f"{where}: {name} is {plain(value)!r}; expected {expected}")


def _expected(connection: duckdb.DuckDBPyConnection, name: str, value: str) -> str | None:
    """Return what the parameter takes, or None where the value is such a one."""
    if name in _OF_THE_RUN:
        known = [row[0] for row in connection.execute(_OF_THE_RUN[name]).fetchall()]
        given = int(value) if name in ("layer", "kv_head") and _is_whole(value) else value
        return None if given in known else _one_of(known)
    if name in _WORDS:
        # Python writes its truth values with a capital.
        given = value.lower() if name == "intervals" else value
        return None if given in _WORDS[name] else " or ".join(_WORDS[name])
    if name in _LEAST:
        least = _LEAST[name]
        fits = _is_whole(value) and least <= int(value) <= _LARGEST
        return None if fits else f"a whole number from {least} on"
    if name in _EDGES:
        return None if _are_edges(value.split(",")) else "ascending whole numbers, such as 512,4096"
    most = _MOST[name]
    up_to = f"from 0 to {most:g}" if math.isfinite(most) else "from 0 on"
    return None if _is_between(value, most) else f"a number {up_to}"


def _one_of(known: Sequence[Any]) -> str:
    """Return the values of the run in words; consecutive numbers as a range.

    >>> _one_of([0, 1, 2]), _one_of(["chat", "code"]), _one_of([])
    ('0 to 2', 'one of chat, code', 'none: the run has nothing to name here')
    """
    if not known:
        return "none: the run has nothing to name here"
    if len(known) > 1 and isinstance(known[0], int) and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]} to {known[-1]}"
    rest = f" and {len(known) - _LONGEST_LIST:,} more" if len(known) > _LONGEST_LIST else ""
    return f"one of {', '.join(plain(str(value)) for value in known[:_LONGEST_LIST])}{rest}"


def _is_whole(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= len(str(_LARGEST))


def _are_edges(parts: Sequence[str]) -> bool:
    numbers = [part.strip() for part in parts]
    return all(map(_is_whole, numbers)) and all(int(low) < int(high) for low, high in pairwise(numbers))


def _is_between(value: str, most: float) -> bool:
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and 0 <= number <= most
