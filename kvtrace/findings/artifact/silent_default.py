"""The engine uses 1.0, or K's scale for V, without saying where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where shipped scales do not reach the engine, a warning where K's stand in for V's."""
    if not context.artifact.scales:
        return  # constant-scales speaks of an artifact without any
    for note in context.resolved.notes_of("silent-default"):
        shipped = [n for n in note.layers if any((n, 0, t) in context.shipped for t in ("k", "v"))]
        if shipped:
            yield Finding(
                id="silent-default",
                severity="error",
                message=note.text,
                action="Give the engine an artifact that it reads; look at the scales in effect after the "
                "start.",
                layers=tuple(shipped),
                evidence=({"engine": context.resolved.setup.loader.name, "num_layers": len(shipped)},),
            )
    for note in context.resolved.notes_of("duplicated"):
        by_design = set(note.layers) <= context.cache.k_serves_v
        yield Finding(
            id="silent-default",
            severity="warning",
            message=note.text + (", by design: they have no projection for V" if by_design else ""),
            action="Check V's range against K's scale: capture a trace and give it with --trace."
            if by_design
            else "Ship a usable V scale in every layer.",
            layers=note.layers,
            evidence=({"engine": context.resolved.setup.loader.name, "num_layers": len(note.layers)},),
        )


RULE: Final = ArtifactRule(
    id="silent-default",
    headline="The engine uses 1.0 without saying so in {layers}",
    about="not loaded",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(ArtifactExample(quantization={"quant_method": "gptq"}),),
    valid=(ArtifactExample(),),
)
