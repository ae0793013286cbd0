"""`differences.toml`: what may differ. Volatile things always do; intended ones were decided, one by one."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from same_as.differ import ABSENT

if TYPE_CHECKING:
    from pathlib import Path

    from same_as.differ import Difference


class AllowedError(Exception):
    """The file of allowed differences says something that cannot be meant."""


@dataclass
class Allowed:
    """One entry. It is about texts if it has no `path`, and then `before` and `after` are needed."""

    why: str
    output: str
    """Outputs it is about, as a shell's pattern: `*/report-json`."""
    part: str = "*"
    """Parts of them: exit, stdout, stderr, table, json, data, visible, sql, …"""
    path: str | None = None
    """Places in a value: `findings[*].layers`; * is within a name, [*] any index, ** anything."""
    change: str = "any"
    """added, removed or changed."""
    before: str | None = None
    """A regular expression. In a text: what is replaced; at a path: all of the value, texts as they are."""
    after: str | None = None
    """What `before` became, with \\1 for its groups."""
    rewraps: bool = False
    """In a text: blanks of `before` may be line breaks, and where it was needed all blanks are one blank."""
    tolerance: float | None = None
    """At a path: numbers may differ by this share of the larger one."""
    is_volatile: bool = False
    """Replaced on both sides, or passed over at its path, whatever stands there."""
    count: int = 0
    """How often it was needed."""

    def __post_init__(self) -> None:
        if not self.why:
            raise AllowedError(f"the entry for {self.output!r} says not why")
        if self.path is None and (self.before is None or self.after is None):
            raise AllowedError(f"{self.why!r}: expected a path, or before and after")
        if self.change not in ("any", "added", "removed", "changed"):
            raise AllowedError(f"{self.why!r}: change is {self.change!r}; expected added, removed or changed")
        self._path = None if self.path is None else path_pattern(self.path)
        before = self.before.replace(" ", r"\s+") if self.before and self.rewraps else self.before
        self._before = None if before is None else re.compile(before, re.MULTILINE)

    def is_about(self, output: str, part: str) -> bool:
        """Whether the entry is about this part of this output."""
        return fnmatchcase(output, self.output) and fnmatchcase(part, self.part)

    def allows(self, difference: Difference) -> bool:
        """Whether this difference is the one meant; counts it."""
        is_meant = (
            self._path is not None
            and bool(self._path.fullmatch(difference.path))
            and self.change in ("any", difference.change)
            and (self.tolerance is None or _are_close(difference, self.tolerance))
            and self._becomes(difference)
        )
        self.count += is_meant
        return is_meant

    def replaced(self, text: str) -> str:
        """Return the text after the replacement; counts each."""
        if self._path is not None or self._before is None:
            return text
        changed, count = self._before.subn(self.after or "", text)
        self.count += count
        return changed

    def _becomes(self, difference: Difference) -> bool:
        if self._before is None:
            return True
        if difference.before is ABSENT:
            return False
        match = self._before.fullmatch(_as_text(difference.before))
        if match is None:
            return False
        return self.after is None or match.expand(self.after) == _as_text(difference.after)


def read_allowed(path: Path) -> list[Allowed]:
    """Return the entries of the file. Raises AllowedError: one has an unknown key, or lacks one."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := content.keys() - {"volatile", "intended"}:
        raise AllowedError(f"{path}: {sorted(unknown)}; expected [[volatile]] and [[intended]]")
    known = {one.name for one in fields(Allowed)} - {"is_volatile", "count"}
    entries = []
    for kind in ("volatile", "intended"):
        for one in content.get(kind, []):
            if one.keys() - known or not {"why", "output"} <= one.keys():
                raise AllowedError(f"{path}: {one}: expected why, output and of {', '.join(sorted(known))}")
            entries.append(Allowed(**one, is_volatile=kind == "volatile"))
    return entries


def path_pattern(pattern: str) -> re.Pattern[str]:
    """Return a pattern of places as a regular expression.

    >>> bool(path_pattern("findings[*].layers").fullmatch("findings[12].layers"))
    True
    >>> bool(path_pattern("a.*").fullmatch("a.b.c")), bool(path_pattern("a.**").fullmatch("a.b[0].c"))
    (False, True)
    """
    escaped = re.escape(pattern)
    for written, meant in ((r"\[\*\]", r"\[\d+\]"), (r"\*\*", ".*"), (r"\*", r"[^.\[]*")):
        escaped = escaped.replace(written, meant)
    return re.compile(escaped)


def _are_close(difference: Difference, tolerance: float) -> bool:
    numbers = [_as_number(one) for one in (difference.before, difference.after)]
    return None not in numbers and math.isclose(*numbers, rel_tol=tolerance)


def _as_number(value: Any) -> float | None:
    """Return a number, or a text of CSV that is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
