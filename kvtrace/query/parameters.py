"""What a query's parameters take, as its header says it; a value that means nothing in a run is an error.

A name that a run does not hold would else give an empty table. What a header can say:

    candidate, quantizing candidate, per-head candidate, trace, workload, layer, KV head    one of the run's
    k or v                    one of these words; any number of them
    whole number from 1
    number from 0, number from 0 to 1
    ascending whole numbers   such as 512,4096
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kvtrace.errors import QueryError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvtrace.query.connection import RunConnection

_OF_THE_RUN: Final = {
    "candidate": "SELECT candidate FROM candidates ORDER BY ordinal",
    "quantizing candidate": "SELECT candidate FROM quantizing WHERE status = 'valid' ORDER BY ordinal",
    "per-head candidate": "SELECT candidate FROM quantizing WHERE status = 'valid' "
    "AND granularity = 'attn_head' ORDER BY ordinal",
    "trace": "SELECT source FROM sampling UNION SELECT source FROM requests ORDER BY source",
    "workload": "SELECT DISTINCT workload FROM requests ORDER BY workload",
    "layer": "SELECT DISTINCT layer FROM scales ORDER BY layer",
    "KV head": "SELECT DISTINCT kv_head FROM scales ORDER BY kv_head",
}
"""Kind → the values that say something of a run."""
_LARGEST: Final = 2**31 - 1
_WHOLE: Final = re.compile(r"whole number from (\d+)")
_NUMBER: Final = re.compile(r"number from 0(?: to (\d+))?")
_EDGES: Final = "ascending whole numbers"
_LONGEST_LIST: Final = 20


Kind: TypeAlias = "Callable[[RunConnection, str], str | None]"
"""(connection, value) → what a parameter takes, in words; None where the value is such a one."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a query."""

    kind: Kind
    takes: str
    """The kind, as the header says it."""
    default: str | None
    """What holds without it, in words; None: its meaning says so."""
    meaning: str


def parameter_kind(where: str, said: str) -> Kind:
    """Return what a header says that a parameter takes. Raises QueryError: nothing known.

    >>> parameter_kind("x.sql", "whole number from 1")(None, "0")
    'a whole number from 1 on'
    >>> parameter_kind("x.sql", "prefill or decode")(None, "decode")
    """
    if said in _OF_THE_RUN:
        return partial(_of_the_run, said)
    if said == _EDGES:
        return _edges
    if whole := _WHOLE.fullmatch(said):
        return partial(_whole_number, int(whole[1]))
    if number := _NUMBER.fullmatch(said):
        return partial(_number, float(number[1] or math.inf))
    words = tuple(said.split(" or "))
    if len(words) > 1 and all(word.isidentifier() for word in words):
        return partial(_one_word, words)
    known = ", ".join(_OF_THE_RUN)
    raise QueryError(
        f"{where} takes {said!r}; expected {known}, {_EDGES}, whole number from N, number from 0 (to N), or "
        "words such as k or v"
    )


def check_values(
    connection: RunConnection,
    where: str,
    known: Mapping[str, Parameter],
    given: Mapping[str, str],
) -> None:
    """Raise QueryError for a value that a query of the library cannot mean; the text says what it can.

    connection: with the views of `queries/`. where: what has the parameters: `query rank_heads`.
    """
    for name, value in given.items():
        expected = known[name].kind(connection, value)
        if expected is not None:
            raise QueryError(f"{where}: {name} is {plain(value)!r}; expected {expected}")


def _of_the_run(what: str, connection: RunConnection, value: str) -> str | None:
    known = [row[0] for row in connection.execute(_OF_THE_RUN[what]).fetchall()]
    given = int(value) if what in ("layer", "KV head") and _is_whole(value) else value
    return None if given in known else _one_of(known)


def _one_word(words: tuple[str, ...], _: RunConnection, value: str) -> str | None:
    # Python writes its truth values with a capital.
    given = value.lower() if "true" in words else value
    return None if given in words else " or ".join(words)


def _whole_number(least: int, _: RunConnection, value: str) -> str | None:
    fits = _is_whole(value) and least <= int(value) <= _LARGEST
    return None if fits else f"a whole number from {least} on"


def _number(most: float, _: RunConnection, value: str) -> str | None:
    up_to = f"from 0 to {most:g}" if math.isfinite(most) else "from 0 on"
    return None if _is_between(value, most) else f"a number {up_to}"


def _edges(_: RunConnection, value: str) -> str | None:
    return None if _are_edges(value.split(",")) else f"{_EDGES}, such as 512,4096"


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
