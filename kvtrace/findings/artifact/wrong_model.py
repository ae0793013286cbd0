"""Layers or heads that differ from the model's: the artifact belongs to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.findings.artifact.finding import Finding
from kvtrace.scales.model_match import MEANT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where the artifact's layers or heads are not those of the model."""
    notes = context.resolved.notes_of("other-model")
    if notes:
        path, question = f"{context.artifact.path}: ", f"; {MEANT}"
        facts = [note.text.removeprefix(path).removesuffix(question) for note in notes]
        yield Finding(
            id="wrong-model",
            severity="error",
            message=f"{path}{'; '.join(facts)}{question}",
            action="Use the scales that were calibrated on this model, or calibrate on it.",
            evidence={
                "model_num_layers": context.num_layers,
                "model_num_kv_heads": context.num_kv_heads,
                "artifact_num_layers": context.artifact.model.num_layers or len(context.artifact.layers),
                "artifact_num_kv_heads": context.artifact.model.num_kv_heads
                or max((len(s.values) for s in context.artifact.scales if s.tensor == "k"), default=None),
            },
        )
