"""Text from outside (labels, names, paths) made safe to print."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import Final

_UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

_COLUMNS: Final = 80


def plain(text: str, limit: int = 60) -> str:
    r"""Return `text` with control, direction and unassigned characters as escapes, cut to `limit`.

    A terminal then shows it as it is: no colour, no cursor movement, no reversed direction.

    >>> plain("a\x1b[31mb")
    'a\\x1b[31mb'
    >>> plain("x" * 100, limit=10)
    'xxxxxxxxx…'
    """
    shown = _escaped(text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def plain_line(text: str) -> str:
    r"""Return all of `text` as one line that a terminal shows as it is.

    >>> plain_line("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    return text if text.isprintable() else _escaped(text)


def plain_lines(text: str) -> str:
    r"""Return `text` of several lines, each as `plain_line` gives it.

    >>> plain_lines("a\n\x9b31mb\n")
    'a\n\\x9b31mb\n'
    """
    return "\n".join(map(plain_line, text.split("\n")))


def wrapped(text: str, first: str, later: str | None = None) -> list[str]:
    """Return a text as lines of 80 columns. first, later: indents; later is two spaces more unless given.

    >>> wrapped("one line", "  ")
    ['  one line']
    """
    indent = later if later is not None else f"{first}  "
    return textwrap.wrap(text, _COLUMNS, initial_indent=first, subsequent_indent=indent)


def _escaped(text: str) -> str:
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNSAFE_CATEGORIES else char
        for char in text
    )
