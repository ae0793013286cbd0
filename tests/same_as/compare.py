"""Decide of each output whether both sides are the same, but for what is allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from same_as.differ import differences, shown_differences, shown_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from same_as.allowed import Allowed
    from same_as.parts import Parts


@dataclass(frozen=True)
class Compared:
    """One output of both sides."""

    output: str
    verdict: Literal["equal", "intended", "DIFFERENT"]
    num_intended: int = 0
    shown: tuple[str, ...] = ()
    """Lines of a diff: what nothing allows."""


def compare(output: str, before: Parts, after: Parts, allowed: Sequence[Allowed]) -> Compared:
    """Return how an output of the base and of the tree compare. A part that one side lacks differs."""
    num_intended, shown = 0, []
    for part in (*before, *(name for name in after if name not in before)):
        entries = [one for one in allowed if one.is_about(output, part)]
        count, lines = _compare_part(before.get(part), after.get(part), entries)
        num_intended += count
        shown += [f"{part}:", *lines] if lines else []
    verdict = "DIFFERENT" if shown else "intended" if num_intended else "equal"
    return Compared(output, verdict, num_intended, tuple(shown))


def _compare_part(before: Any, after: Any, entries: Sequence[Allowed]) -> tuple[int, list[str]]:
    """Return the number of intended differences, and lines that show the others."""
    if isinstance(before, str) and isinstance(after, str):
        return _compare_texts(before, after, entries)
    num_intended, others = 0, []
    for one in differences(before, after):
        entry = next((entry for entry in entries if entry.allows(one)), None)
        if entry is None:
            others.append(one)
        elif not entry.is_volatile:
            num_intended += 1
    return num_intended, shown_differences(others) if others else []


def _compare_texts(before: str, after: str, entries: Sequence[Allowed]) -> tuple[int, list[str]]:
    if before == after:
        return 0, []
    for one in entries:
        if one.is_volatile:
            before, after = one.replaced(before), one.replaced(after)
    num_intended = 0
    for one in entries:
        if before != after and not one.is_volatile:
            counted = one.count
            before = one.replaced(before)
            num_intended += one.count - counted
            if one.rewraps and one.count > counted:
                before, after = (" ".join(text.split()) for text in (before, after))
    return num_intended, [] if before == after else shown_text(before, after)
