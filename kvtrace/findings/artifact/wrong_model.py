"""Layers or heads that differ from the model's: the artifact belongs to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier
from kvtrace.scales.model_match import MEANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where the artifact's layers or heads are not those of the model."""
    notes = context.resolved.notes_of("other-model")
    if notes:
        yield Finding(
            id="wrong-model",
            severity="error",
            message=f"{context.artifact.path}: {'; '.join(note.fact for note in notes)}; {MEANT}",
            action="Use the scales that were calibrated on this model, or calibrate on it.",
            evidence=numbers(
                model_num_layers=context.num_layers,
                model_num_kv_heads=context.num_kv_heads,
                artifact_num_layers=context.artifact.model.num_layers or len(context.artifact.layers),
                artifact_num_kv_heads=context.artifact.model.num_kv_heads
                or max((len(s.values) for s in context.artifact.scales if s.tensor == "k"), default=None),
            ),
        )


RULE: Final = ArtifactRule(
    id="wrong-model",
    headline="These scales belong to another model",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    recalls_approval=True,
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(amax=AMAX, declared={"num_hidden_layers": 3}),),
    valid=(ArtifactExample(amax=AMAX),),
)
