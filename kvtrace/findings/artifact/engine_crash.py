"""Content on which the engine does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX_PER_HEAD, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier

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
            layers=tuple(n for n in note.layers if context.sizes_are_known or n in context.artifact.layers),
            evidence=({"engine": context.resolved.setup.loader.name, "tp": context.resolved.setup.tp},),
        )


RULE: Final = ArtifactRule(
    id="engine-crash",
    headline="The engine does not start with these scales",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(ArtifactExample(scales=covering(AMAX_PER_HEAD), scheme={"strategy": "tensor"}),),
    valid=(ArtifactExample(scales=covering(AMAX_PER_HEAD)),),
)
