"""Scales that were made for another number format than FP8, in all layers or in some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where the engine does not apply the scales as what they are, a note where it does."""
    for note in context.resolved.notes_of("other-format", "mixed-format"):
        is_loaded = context.artifact.number_format == "nvfp4" or bool(context.resolved.scales)
        yield Finding(
            id="other-format",
            severity="note" if is_loaded else "warning",
            message=note.text,
            action="Nothing here: only the FP8 layers of an artifact are audited and replayed."
            if is_loaded
            else "Serve it with the engine that it was made for, or make FP8 scales (`kvtrace calibrate`).",
            evidence=({"number_format": context.artifact.number_format},),
        )


RULE: Final = ArtifactRule(
    id="other-format",
    role="cause",
    tier=Tier.fault,
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(scheme={"type": "int"}),),
    valid=(ArtifactExample(),),
)
