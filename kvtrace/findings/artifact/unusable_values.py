"""Scales that are zero, negative, NaN or inf."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where any stored K or V scale is no finite number > 0."""
    bad = [
        (scale, value)
        for scale in context.artifact.scales
        if scale.tensor in ("k", "v", "kv")
        for value in scale.values
        if not (math.isfinite(value) and value > 0)
    ]
    if bad:
        scale, value = bad[0]
        yield Finding(
            id="unusable-values",
            severity="error",
            message=f"stored scales that are no finite number > 0: {len(bad)}, the first {value:g} in "
            f"{scale.origin}",
            action="Calibrate again; nothing can be quantized with such a scale, and the engine does not "
            "check.",
            layers=tuple(sorted({s.layer for s, _ in bad})),
            evidence=({"num_bad": len(bad), "first_key": scale.key, "first_value": value},),
        )


RULE: Final = ArtifactRule(
    id="unusable-values",
    headline="Some stored scales are no finite positive number",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="recalibrate",
    check=check,
    invalid=(
        ArtifactExample(scales={**covering(AMAX), "1.v": 0.0}),
        ArtifactExample(scales={**covering(AMAX), "0.k": math.nan}),
    ),
    valid=(ArtifactExample(),),
)
