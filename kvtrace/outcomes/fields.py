"""Fields of records from elsewhere, taken strictly: the type and size that is expected, or a ValueError."""

from __future__ import annotations

from typing import Any, Final

from kvtrace.plain_text import plain

MAX_TEXT: Final = 256
_MAX_WHOLE: Final = 2**53


def text(record: dict[str, Any], key: str, *, most: int = MAX_TEXT) -> str:
    """Return a text that is not empty. Raises ValueError: it is absent, something else or too long."""
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is {shown(value)}, expected a text that is not empty")
    if len(value) > most:
        raise ValueError(f"{key} has {len(value):,} characters, expected at most {most}")
    return value


def text_or_none(record: dict[str, Any], key: str, *, most: int = MAX_TEXT) -> str | None:
    """Return a text; None where it is null or absent."""
    return None if record.get(key) is None else text(record, key, most=most)


def whole(record: dict[str, Any], key: str) -> int:
    """Return a whole number from 0 to 2⁵³. Raises ValueError: it is absent or something else."""
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_WHOLE:
        raise ValueError(f"{key} is {shown(value)}, expected a whole number of 0 or more")
    return value


def whole_or_none(record: dict[str, Any], key: str) -> int | None:
    """Return a whole number; None where it is null or absent."""
    return None if record.get(key) is None else whole(record, key)


def name(record: dict[str, Any], key: str) -> str:
    """Return a text, or a whole number as text: what tools use as ids."""
    return str(whole(record, key)) if isinstance(record.get(key), int) else text(record, key)


def flag(record: dict[str, Any], key: str) -> bool:
    """Return a truth value. Raises ValueError: it is absent or something else."""
    value = record.get(key)
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {shown(value)}, expected true or false")
    return value


def table(record: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an object; an empty one where it is null or absent. Raises ValueError: it is something else."""
    value = record.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{key} is {shown(value)}, expected an object")
    return value or {}


def zero_or_one(value: object, key: str) -> bool:
    """Return whether a score is 1. Raises ValueError: it is neither 0 nor 1."""
    if not isinstance(value, int | float) or value not in (0, 1):
        raise ValueError(f"{key} is {shown(value)}, expected 0 or 1; only pass and fail can be compared")
    return value == 1


def shown(value: object) -> str:
    """Return a value from a file as a message shows it."""
    try:
        return plain(repr(value), 40)
    except ValueError:  # an integer of too many digits
        return "a number of too many digits"
