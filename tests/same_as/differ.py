"""Where two values differ, path by path, and where two texts do, line by line."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ABSENT: Final = "(absent)"
_SHOWN_LINES: Final = 8
_SHOWN_WIDTH: Final = 150
_LEAD: Final = 29
"""Characters shown before the first that differs."""


@dataclass(frozen=True)
class Difference:
    """A place at which two values differ; ABSENT on the side that has nothing there."""

    path: str
    before: Any
    after: Any

    @property
    def change(self) -> str:
        """`added`, `removed` or `changed`."""
        return "added" if self.before is ABSENT else "removed" if self.after is ABSENT else "changed"


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield every place at which two JSON values differ; whole numbers and floats are not equal.

    >>> [(one.path, one.change) for one in differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}, 4], "c": 0})]
    [('a[1].b', 'changed'), ('a[2]', 'added'), ('c', 'added')]
    >>> list(differences({"a": 1.0}, {"a": 1}))
    [Difference(path='a', before=1.0, after=1)]
    """
    if type(before) is not type(after):
        yield Difference(path, before, after)
    elif isinstance(before, dict):
        for name in (*before, *(name for name in after if name not in before)):
            below = f"{path}.{name}" if path else name
            yield from _pair(before.get(name, ABSENT), after.get(name, ABSENT), below)
    elif isinstance(before, list):
        for index in range(max(len(before), len(after))):
            one = before[index] if index < len(before) else ABSENT
            other = after[index] if index < len(after) else ABSENT
            yield from _pair(one, other, f"{path}[{index}]")
    elif before != after:
        yield Difference(path, before, after)


def _pair(before: Any, after: Any, path: str) -> Iterator[Difference]:
    if before is ABSENT or after is ABSENT:
        yield Difference(path, before, after)
    elif before != after or type(before) is not type(after) or isinstance(before, (dict, list)):
        yield from differences(before, after, path)


def shown_differences(found: list[Difference]) -> list[str]:
    """Return the first of the differences as lines of a diff."""
    lines = []
    for one in found[: _SHOWN_LINES // 2]:
        for sign, value in (("-", one.before), ("+", one.after)):
            if value is not ABSENT:
                lines.append(cut(f"{sign} {one.path} = {json.dumps(value, ensure_ascii=False, default=str)}"))
    return [*lines, *_and_more(len(found) - _SHOWN_LINES // 2, "differences")]


def shown_text(before: str, after: str) -> list[str]:
    """Return the first lines of a unified diff without context."""
    compared = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    lines = [line for line in compared if not line.startswith(("--- ", "+++ "))]
    if not lines:
        lines = ["(they differ in line ends alone)"]
    return [*_cut_alike(lines[:_SHOWN_LINES]), *_and_more(len(lines) - _SHOWN_LINES, "lines")]


def cut(line: str) -> str:
    """Return a line short enough to be read."""
    return line if len(line) <= _SHOWN_WIDTH else f"{line[:_SHOWN_WIDTH]}…"


def _cut_alike(lines: list[str]) -> list[str]:
    """Return the lines of a diff short enough to be read; a lone pair begins shortly before it differs.

    >>> [len(line) for line in _cut_alike(["@@ -1 +1 @@", "-" + "x" * 500 + "a", "+" + "x" * 500 + "b"])]
    [11, 32, 32]
    """
    shown = []
    for index, line in enumerate(lines):
        other = {"-": lines[index + 1 : index + 2], "+": lines[index - 1 : index]}.get(line[:1], [])
        first = _first_that_differs(line[1:], other[0][1:]) if other and other[0][0] in "+-" else 0
        is_far = len(line) > _SHOWN_WIDTH and first > 2 * _LEAD
        shown.append(cut(f"{line[0]}…{line[1 + first - _LEAD :]}" if is_far else line))
    return shown


def _first_that_differs(one: str, other: str) -> int:
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)


def _and_more(count: int, what: str) -> list[str]:
    return [f"… and {count:,} more {what}"] if count > 0 else []
