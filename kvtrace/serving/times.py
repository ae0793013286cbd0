"""Times from files into whole microseconds."""

from __future__ import annotations

import math
from typing import Any, Final

from kvtrace.outcomes.fields import shown, whole_or_none

_MOST_SECONDS: Final = 4e9
"""Later than any epoch that is meant in seconds: what is beyond is in another unit."""


MOST_AMOUNT: Final = 1e18


def seconds(record: dict[str, Any], key: str, *, may_be_negative: bool = False) -> int | None:
    """Return a time or duration in seconds as microseconds; None where it is null or absent.

    Raises ValueError: it is no number, not finite, negative, or too large to be seconds.
    """
    value = record.get(key)
    return None if value is None else microseconds(value, key, may_be_negative=may_be_negative)


def microseconds(value: object, key: str, *, may_be_negative: bool = False) -> int:
    """Return seconds as microseconds, to the nearest. Raises ValueError as `seconds` does."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{key} is {shown(value)}, expected seconds")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} is {shown(value)}, expected seconds")
    if abs(value) > _MOST_SECONDS:
        raise ValueError(f"{key} is {shown(value)}, too large for seconds; is it in another unit?")
    if value < 0 and not may_be_negative:
        raise ValueError(f"{key} is {shown(value)}, expected 0 or more")
    return round(value * 1_000_000)


def milliseconds(record: dict[str, Any], key: str) -> int | None:
    """Return a duration in milliseconds as microseconds; None where it is null or absent."""
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{key} is {shown(value)}, expected milliseconds")
    return microseconds(value / 1000 if abs(value) < _MOST_SECONDS * 1000 else math.inf, key)


def nanoseconds(record: dict[str, Any], key: str) -> int | None:
    """Return whole nanoseconds as microseconds, to the nearest; None where they are null or absent."""
    value = record.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS * 1_000_000_000:
        return (value + 500) // 1000
    return whole_or_none(record, key)  # null, or its refusal


def amount(record: dict[str, Any], key: str) -> float | None:
    """Return a finite number of 0 or more; None where it is null or absent. Raises ValueError: it is not."""
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST_AMOUNT:
        raise ValueError(f"{key} is {shown(value)}, expected a number of 0 or more")
    return float(value)
