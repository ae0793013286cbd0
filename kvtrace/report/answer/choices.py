"""Every set of scales that there is to choose from: its state, what it clips, and a command of its own."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvtrace.plain_text import plain
from kvtrace.report.answer.model import Compared

if TYPE_CHECKING:
    from kvtrace.findings.run.case import Subject
    from kvtrace.report.answer.told import Told

_PATH = 1_000


def choices(told: Told, *, run_kept: bool) -> list[Compared]:
    """Return what was judged, the scales of the answer first, then the default and the effective scales.

    run_kept: whether there is a run to ask more of.
    """
    judged = sorted(told.case.subjects, key=lambda one: one is not told.subject)
    rest = told.case.beside().subjects
    return [_choice(told, one, run_kept=run_kept) for one in (*judged, *rest)]


def _choice(told: Told, subject: Subject, *, run_kept: bool) -> Compared:
    state, text = told.shown_state(subject), told.in_words(subject)
    same = _ran_as(told, subject)
    if same is not None:
        state, text = told.shown_state(same), f"the same scales as {plain(same.name, 40)}"
    return Compared(subject.name, state, text, _command(told, same or subject, run_kept=run_kept))


def _ran_as(told: Told, subject: Subject) -> Subject | None:
    """Return the artifact that the effective scales are."""
    if subject.kind != "effective" or subject in told.case.subjects:
        return None
    return next((one for one in told.case.subjects if one.in_effect), None)


def _command(told: Told, subject: Subject, *, run_kept: bool) -> str | None:
    """Return what mends these scales, or else what shows them head by head."""
    blaming = [one.command for one in told.of(subject) if one.severity != "note" and one.command]
    if blaming:
        return blaming[0]
    if run_kept:
        run, name = str(told.case.run.path), subject.name
        return f"kvtrace report {_word(run)} --candidate {_word(name)}"
    traces = [_word(source.path) for source in told.case.run.record.sources]
    if len(traces) == 1 and subject.artifact is not None:
        return f"kvtrace report {traces[0]} --scales {_word(subject.artifact)}"
    return None


def _word(text: str) -> str:
    return shlex.quote(plain(text, _PATH))
