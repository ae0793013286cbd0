"""Numbers as every output prints them, by kind: short, plain, and never zero for something that is not."""

from __future__ import annotations

from typing import Final

_LEAST_SHOWN: Final = 1e-5
_MOST_SHOWN: Final = 0.999


def percent(share: float | None) -> str:
    """Return a share as a percentage of two digits; none is rounded to zero or to all.

    >>> [percent(x) for x in (None, 0.0, 1e-7, 0.0000123, 0.000123, 0.0714, 0.5, 0.9976, 0.99996, 1.0)]
    ['–', '0', '<0.001 %', '0.0012 %', '0.012 %', '7.1 %', '50 %', '99.8 %', '>99.9 %', '100 %']
    """
    if share is None:
        return "–"
    if share == 0:
        return "0"
    if share < _LEAST_SHOWN:
        return "<0.001 %"
    if _MOST_SHOWN < share < 1:
        return ">99.9 %"
    if 0.99 < share < 1:
        return f"{share * 100:.1f} %"
    return f"{two_digits(share * 100)} %"


def times(ratio: float | None) -> str:
    """Return a ratio of two digits.

    >>> times(1.523), times(0.9999), times(19.4), times(4096.0), times(None)
    ('1.5 ×', '1.0 ×', '19 ×', '4,096 ×', '–')
    """
    return "–" if ratio is None else f"{two_digits(ratio)} ×"


def two_digits(value: float) -> str:
    """Return two significant digits, or all before the point.

    >>> [two_digits(x) for x in (0.0412, 0.999, 1.0, 9.96, 19.4, 163.0)]
    ['0.041', '1.0', '1.0', '10', '19', '163']
    """
    shown = f"{value:#.2g}"
    return f"{value:,.0f}" if "e+" in shown or shown.endswith(".") else shown


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
