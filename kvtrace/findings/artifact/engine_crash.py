"""Content on which the engine does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.findings.artifact.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error for everything the engine would die on."""
    for note in context.resolved.notes_of("crash"):
        yield Finding(
            id="engine-crash",
            severity="error",
            message=note.text,
            action="Write the scales anew in a form that the engine takes, or change its setup.",
            layers=note.layers,
            evidence={"engine": context.resolved.setup.engine, "tp": context.resolved.setup.tp},
        )
