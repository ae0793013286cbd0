"""Bins of what a map of heads shows, the same in every report and output: a letter, and a colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Bin:
    """Values below `below`, from the end of the bin before it on."""

    letter: str
    below: float
    meaning: str


NOTHING: Final = Bin(".", 0.0, "0")
BINS: Final = (
    Bin("-", 1e-4, "under 0.01 %"),
    Bin("+", 1e-3, "to 0.1 %"),
    Bin("o", 1e-2, "to 1 %"),
    Bin("x", 1e-1, "to 10 %"),
    Bin("#", float("inf"), "10 % and more"),
)
"""Of losses: shares of a signal's energy, or of values, 0 to 1."""
RANGE_BINS: Final = (
    Bin("-", 0.25, "under ¼ ×"),
    Bin("+", 0.5, "to ½ ×"),
    Bin("o", 0.75, "to ¾ ×"),
    Bin("x", 0.9, "to 0.9 ×"),
    Bin("#", float("inf"), "0.9 × and more"),
)
"""Of range used: the largest magnitude over the covered one."""


def bin_of(value: float, bins: Sequence[Bin] = BINS) -> Bin:
    """Return the bin of a loss, or of a range used.

    >>> [bin_of(x).letter for x in (0.0, 0.00005, 0.0001, 0.05, 0.1)]
    ['.', '-', '+', 'x', '#']
    >>> bin_of(0.75, RANGE_BINS).letter
    'x'
    """
    return NOTHING if value <= 0 else next(one for one in bins if value < one.below)
