"""What to do now: one command, and how to serve until it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.findings.remedies import steps_to_mend
from kvtrace.findings.run.own_dtype import without_fp8
from kvtrace.report.answer.model import Action

if TYPE_CHECKING:
    from kvtrace.findings.finding import Finding
    from kvtrace.findings.run.case import Case, Subject


def action_of(case: Case, subject: Subject | None, first: Finding | None, *, is_served: bool) -> Action:
    """Return what the leading finding calls for; of sound scales that did not run how to serve them.

    is_served: the scales ran, so a stop-gap is needed until they are mended.
    """
    if first is not None:
        needs_until = is_served and subject is not None and first.severity != "note"
        until = without_fp8(case, subject) if needs_until and subject else None
        return Action(
            text="" if first.command else first.action,
            command=first.command,
            until=until,
            steps=steps_to_mend(case, subject, first),
        )
    if subject is None or is_served:
        return Action(text="Nothing needs to be done to the scales.", command=None, until=None)
    dtype = "fp8_e5m2" if subject.format == "e5m2" else "fp8"
    return Action(text=f"Serve these scales with --kv-cache-dtype {dtype}.", command=None, until=None)
