"""Bins of a loss, the same in every report and output: each has a letter, and a colour on the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Bin:
    """Losses below `below`, from the end of the bin before it on; shares of a signal's energy, 0 to 1."""

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


def bin_of(loss: float) -> Bin:
    """Return the bin of a loss.

    >>> [bin_of(x).letter for x in (0.0, 0.00005, 0.0001, 0.05, 0.1)]
    ['.', '-', '+', 'x', '#']
    """
    return NOTHING if loss <= 0 else next(one for one in BINS if loss < one.below)
