"""Every scale 1.0, all equal, or clamped from below at 1.0: they say nothing about the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where the stored values do not vary, or none is stored at all."""
    values = [
        v
        for s in context.artifact.scales
        if s.tensor in ("k", "v", "kv") and s.layer < context.num_layers
        for v in s.values
    ]
    other = context.artifact.number_format not in (None, "fp8")
    if not values and (context.cache.holds_scales or other):
        return  # the cache needs none, or other-format says what became of them
    distinct = set(values)
    evidence = {
        "num_scales": len(values),
        "num_distinct": len(distinct),
        "min": min(values, default=None),
        "max": max(values, default=None),
        "num_exactly_one": values.count(1.0),
    }
    action = "Nothing was calibrated: check the export, or calibrate (`kvtrace calibrate`)."
    if not values:
        message = "the artifact holds no KV-cache scale; the engine uses 1.0 everywhere"
    elif distinct == {1.0}:
        message = f"all {len(values)} scales are exactly 1.0"
    elif len(distinct) == 1 and len(values) > 2:
        message = f"all {len(values)} scales are equal ({values[0]:g})"
    elif min(values) == 1.0 and values.count(1.0) > 1:
        message = (
            f"{values.count(1.0)} of {len(values)} scales are exactly 1.0 and none is smaller: clamped from "
            "below"
        )
        action = (
            "The exporter clamps scales to at least 1.0 (ModelOpt's Megatron path): export again without it."
        )
    else:
        return
    yield Finding(
        id="constant-scales", severity="warning", message=message, action=action, evidence=(evidence,)
    )


RULE: Final = ArtifactRule(
    id="constant-scales",
    headline="Every scale is the same constant",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    follows_loss=True,
    mended_by="recalibrate",
    check=check,
    invalid=(
        ArtifactExample(scales=dict.fromkeys(AMAX, 1.0)),
        ArtifactExample(scales=dict.fromkeys(AMAX, 0.5)),
        ArtifactExample(scales={}),
    ),
    valid=(ArtifactExample(),),
)
