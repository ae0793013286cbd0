"""A projection's weight or input scale stored as the scale of K or V: another number for another tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import TENSORS, Finding, Tensor
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext

_ROUNDING: Final = 2.0**-8
"""Relative: a scale may have been stored in bfloat16 on the way."""
_MIN_LAYERS: Final = 2
"""In one layer two numbers may be equal by chance."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where each layer's K or V scale equals a scale of its own projection."""
    kinds = {tensor: _kind_of_all(context, tensor) for tensor in TENSORS}
    tensors = tuple(tensor for tensor in TENSORS if kinds[tensor])
    if not tensors:
        return
    what = " or ".join(sorted({str(kinds[tensor]) for tensor in tensors}))
    yield Finding(
        id="not-a-kv-scale",
        severity="error",
        message=f"the scales of {' and '.join(t.upper() for t in tensors)} equal their projections' {what} "
        "in every layer: they belong to another tensor",
        action="Export the scales of the KV cache, amax / 448 of K and V themselves, or calibrate.",
        layers=tuple(range(context.num_layers)),
        tensors=tensors,
        evidence=({"kind": what, "tensors": tensors},),
    )


def _kind_of_all(context: AuditContext, tensor: Tensor) -> str | None:
    """Return which of the projection's scales all of a tensor's are; None: they are their own."""
    stored = {
        layer: value for layer in range(context.num_layers) if (value := context.usable((layer, 0, tensor)))
    }
    if len(stored) < _MIN_LAYERS:
        return None
    for kind in ("weight_scale", "input_scale"):
        of_layers = {
            one.layer: one.value
            for one in context.artifact.projections
            if one.kind == kind and tensor in one.tensors
        }
        if all(
            layer in of_layers and abs(of_layers[layer] - value) <= _ROUNDING * value
            for layer, value in stored.items()
        ):
            return kind
    return None


def _names(kind: str) -> dict[str, float]:
    return {f"model.layers.{n}.self_attn.{t}_proj.{kind}": 0.01 * (1 + n) for n in range(2) for t in "kv"}


_TAKEN: Final = {f"{n}.{t}": 0.01 * (1 + n) for n in range(2) for t in "kv"}

RULE: Final = ArtifactRule(
    id="not-a-kv-scale",
    headline="A weight or input scale stands in for a KV scale",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(
        ArtifactExample(scales=_TAKEN, names=_names("weight_scale")),
        ArtifactExample(scales=_TAKEN, names=_names("input_scale")),
    ),
    valid=(ArtifactExample(names=_names("weight_scale")),),
)
