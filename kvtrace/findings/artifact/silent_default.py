"""The engine uses 1.0, or K's scale for V, without saying where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import TENSORS, Finding
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.finding import Tensor


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where shipped scales do not reach the engine, a warning where K's stand in for V's."""
    if not context.artifact.scales:
        return  # constant-scales speaks of an artifact without any
    for note in context.resolved.notes_of("silent-default"):
        shipped = [n for n in note.layers if any(_is_dropped(context, n, tensor) for tensor in TENSORS)]
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


def _is_dropped(context: AuditContext, layer: int, tensor: Tensor) -> bool:
    """Return whether a scale is shipped and 1.0 is used."""
    return (layer, 0, tensor) in context.shipped and context.resolved.scale(layer, 0, tensor).is_default


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
    valid=(
        ArtifactExample(),
        # Absent: missing-layers says so.
        ArtifactExample(scales=covering({"0.k": 8.0, "0.v": 1.0, "1.k": 16.0})),
    ),
)
