"""Scales shipped for fewer layers than the model has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.scales.resolve import layer_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where some, not all, layers lack a K or V scale."""
    missing = {
        tensor: [n for n in range(context.num_layers) if (n, 0, tensor) not in context.shipped]
        for tensor in ("k", "v")
    }
    layers = sorted(set(missing["k"]) | set(missing["v"]))
    if not layers or not context.artifact.layers:
        return
    yield Finding(
        id="missing-layers",
        severity="error",
        message=f"no scale is shipped in {layer_ranges(layers)} of {context.num_layers}; the engine uses "
        f"{_what_happens(context, layers)} there",
        action="Calibrate every layer, or leave these layers unquantized (vLLM: "
        f"--kv-cache-dtype-skip-layers {' '.join(map(str, layers))}).",
        layers=tuple(layers),
        evidence=(
            {
                "num_layers": context.num_layers,
                "num_layers_without_k": len(missing["k"]),
                "num_layers_without_v": len(missing["v"]),
            },
        ),
    )


def _what_happens(context: AuditContext, layers: list[int]) -> str:
    used = {context.resolved.scale(layer, 0, tensor).is_default for layer in layers for tensor in ("k", "v")}
    return "1.0" if used == {True} else "1.0 or the other tensor's scale"


RULE: Final = ArtifactRule(
    id="missing-layers",
    headline="No scale is shipped for {layers}",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(scales=covering({"0.k": 8.0, "0.v": 1.0, "1.k": 16.0})),),
    valid=(ArtifactExample(),),
)
