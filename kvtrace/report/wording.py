"""Sentences and names as a terminal shows them."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

from kvtrace.plain_text import plain

WIDTH: Final = 80
_WORD: Final = re.compile(r"--[a-z-]+ \w\S*|\S+(?: [%×](?!\S*\w)\S*)?")
"""A flag keeps its value beside it, a number its unit, and that its comma or bracket."""


def minute(unix_seconds: float) -> str:
    """Return a moment in UTC.

    >>> minute(0.0)
    '1970-01-01 00:00 UTC'
    """
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ended(text: str) -> str:
    """Return a sentence with its full stop.

    >>> ended("K clips"), ended("another model?")
    ('K clips.', 'another model?')
    """
    return text if text.endswith((".", "?")) else f"{text}."


def cut(text: str, width: int) -> str:
    """Return a name from outside as plain text of at most `width` columns of a terminal.

    >>> cut("chat", 6), cut("0123456789", 6)
    ('chat', '01234…')
    """
    shown = plain(text, width)
    while columns(shown) > width:
        shown = shown.removesuffix("…")[:-1] + "…"
    return shown


def padded(text: str, width: int) -> str:
    """Return `cut` with spaces after it, so that it takes exactly `width` columns.

    >>> padded("chat", 6) + "|"
    'chat  |'
    """
    shown = cut(text, width)
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
    """Return the text in lines of the report's width; `first` starts the first line instead of `indent`."""
    lines = [indent if first is None else first]
    fresh = True
    for word in _WORD.findall(text):
        for piece in _pieces(word, WIDTH - columns(indent)):
            if columns(lines[-1]) + columns(piece) + (not fresh) > WIDTH and not fresh:
                lines.append(indent)
                fresh = True
            lines[-1] += piece if fresh else f" {piece}"
            fresh = False
    return lines


def _pieces(word: str, width: int) -> list[str]:
    """Return a word in pieces that fit; `textwrap` would count characters, not columns."""
    pieces = [""]
    for char in word:
        if columns(pieces[-1]) + columns(char) > width:
            pieces.append("")
        pieces[-1] += char
    return pieces
