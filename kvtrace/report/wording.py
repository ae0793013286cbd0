"""Numbers and names as a report prints them: short, plain, and never zero for something that is not."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import Final

from kvtrace.plain_text import plain

WIDTH: Final = 80
_LEAST_SHOWN: Final = 1e-5


def percent(share: float | None) -> str:
    """Return a share as a percentage of three digits; a tiny one is not rounded to zero.

    >>> [percent(x) for x in (None, 0.0, 1e-7, 0.000123, 0.0714, 0.99996, 1.0)]
    ['–', '0', '<0.001 %', '0.0123 %', '7.14 %', '99.99 %', '100 %']
    """
    if share is None:
        return "–"
    if share == 0:
        return "0"
    if share < _LEAST_SHOWN:
        return "<0.001 %"
    if share == 1:
        return "100 %"
    return f"{min(float(f'{share * 100:.3g}'), 99.99):.10g} %"


def decibel(value: float | None) -> str:
    """Return dB with one decimal.

    >>> decibel(31.987), decibel(None)
    ('32.0', '–')
    """
    return "–" if value is None else f"{value:.1f}"


def number(value: float | None) -> str:
    """Return a scale or magnitude with four digits.

    >>> number(0.0123456), number(None)
    ('0.01235', '–')
    """
    return "–" if value is None else f"{value:.4g}"


def span(least: float | None, largest: float | None) -> str:
    """Return a range of scales.

    >>> span(0.5, 0.5), span(0.25, 2.0)
    ('0.5', '0.25 to 2')
    """
    return number(least) if least == largest else f"{number(least)} to {number(largest)}"


def positions(first: int, last: int) -> str:
    """Return a range of positions.

    >>> positions(1024, 2047)
    '1,024–2,047'
    """
    return f"{first:,}–{last:,}"


def count(amount: int, noun: str) -> str:
    """Return an amount of something.

    >>> count(1, "head"), count(1200, "head")
    ('1 head', '1,200 heads')
    """
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def padded(text: str, width: int) -> str:
    """Return a name from outside as plain text that takes exactly `width` columns of a terminal.

    >>> padded("chat", 6) + "|", padded("0123456789", 6) + "|"
    ('chat  |', '01234…|')
    """
    shown = plain(text, width)
    while columns(shown) > width:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown + " " * (width - columns(shown))


def columns(text: str) -> int:
    """Return the columns that a terminal gives a text: two for a wide character, none for a combining one.

    >>> columns("日本"), columns("e" + chr(0x301))
    (4, 1)
    """
    return sum(_columns_of(char) for char in text)


def _columns_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def paragraph(text: str, indent: str = "  ", first: str | None = None) -> list[str]:
    """Return the text wrapped to the report's width; `first` starts the first line instead of `indent`."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=True,
        break_on_hyphens=False,
    )
