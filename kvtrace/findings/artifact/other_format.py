"""Scales that were made for another number format than FP8, in all layers or in some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.scales.loaders.other_format import is_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.finding import Severity
    from kvtrace.scales.artifact import ScaleArtifact


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where the engine does not take the scales as what they are, a note where it does; a
    warning for a format that another engine reads, and a note on layers that differ.
    """
    artifact = context.artifact
    for note in context.resolved.notes_of("other-format", "mixed-format"):
        takes_them = is_loaded(artifact, context.resolved.setup) or artifact.number_format == "mixed"
        severity: Severity = "warning" if artifact.number_format == "int8-per-channel" else "error"
        yield Finding(
            id="other-format",
            severity="note" if takes_them else severity,
            message=note.text,
            action=_action(artifact, takes_them=takes_them),
            evidence=({"number_format": artifact.number_format},),
        )


def _action(artifact: ScaleArtifact, *, takes_them: bool) -> str:
    if not takes_them:
        return "Serve it with the engine that it was made for, or make FP8 scales (`kvtrace calibrate`)."
    if artifact.number_format in ("nvfp4", "mixed"):
        return (
            "Nothing here: they are not for FP8. `kvtrace replay --cache-dtype nvfp4` tries NVFP4 over them, "
            "and a map of layers is replayed beside them."
        )
    return "Nothing here: they serve the cache that they were made for. For FP8 run `kvtrace calibrate`."


RULE: Final = ArtifactRule(
    id="other-format",
    headline="The scales are of another number format",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(scheme={"type": "int"}),),
    valid=(ArtifactExample(),),
)
