"""Which candidates a report tells of head by head, where there are too many for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.findings.run.case import Case
    from kvtrace.report.answer.model import Compared
    from kvtrace.report.answer.told import Told
    from kvtrace.report.sections import CandidateSummary, Report

MOST_SHOWN: Final = 8
"""Sets of scales that a page or a text can be read with."""
_SCALES: Final = ("artifact", "swept", "unit")
"""Kinds of which there may be too many. BF16, what ran, and formats that were asked for are always there."""
_ALL: Final = "SELECT candidate, kind FROM candidates ORDER BY ordinal"


def all_candidates(case: Case) -> dict[str, str]:
    """Return every candidate of the run and its kind, in the order asked for."""
    return {row["candidate"]: row["kind"] for row in case.rows(_ALL)}


def chosen_candidates(run: Path, known: dict[str, str], asked: Sequence[str]) -> tuple[str, ...]:
    """Return those asked for, or all of a few; of many where none is named only what every report has.

    Raises InputError: the run has no candidate of that name.
    """
    for name in asked:
        if name not in known:
            listed = ", ".join(plain(one, 40) for one in list(known)[:MOST_SHOWN])
            more = len(known) - MOST_SHOWN
            raise InputError(
                f"{run}: --candidate {plain(name, 80)}: no such candidate; expected one of {listed}"
                + (f" and {more:,} more" if more > 0 else "")
            )
    if not asked and sum(kind in _SCALES for kind in known.values()) <= MOST_SHOWN:
        return tuple(known)
    always = {name for name, kind in known.items() if kind not in _SCALES}
    return tuple(name for name in known if name in always or name in asked)


def with_the_best(known: dict[str, str], chosen: Sequence[str], told: Told) -> tuple[str, ...]:
    """Return the chosen ones, the one of the answer, and the best of the others where none was asked for."""
    wanted = set(chosen)
    is_asked = any(known[name] in _SCALES for name in chosen)
    for one in told.by_preference[:1] if is_asked else told.by_preference:
        if is_asked or sum(known[name] in _SCALES for name in wanted) < MOST_SHOWN:
            wanted.add(one.name)
    return tuple(name for name in known if name in wanted)


def shown_candidates(report: Report) -> list[CandidateSummary]:
    """Return the candidates that outputs for people list."""
    return [one for one in report.candidates if one.candidate in report.shown]


def shown_choices(report: Report) -> list[Compared]:
    """Return what the answer says of them, its own scales first."""
    return [one for one in report.answer.compared if one.candidate in report.shown]


def left_out(report: Report) -> str | None:
    """Return how many candidates are not listed, and how to see one; None: all are."""
    more = len(report.candidates) - len(report.shown)
    if more == 0:
        return None
    return (
        f"{len(report.shown):,} of {len(report.candidates):,} candidates are shown: what ran, what to take "
        "and the best of the others, or those asked for. --candidate NAME shows another; "
        "--format json counts all."
    )
