"""Scales so wide that small values become subnormal or 0 and the error grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent
from kvtrace.findings.artifact.context import MATTERS
from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext

_MIN_ERROR: Final = 0.004
"""Relative squared error below which e4m3fn's own rounding hides it."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where a unit without much clipping has far more error than its best scale would
    leave.
    """
    wide = {
        unit: cost
        for unit, cost in context.costs.items()
        if cost.relative_error > _MIN_ERROR and cost.is_too_wide and cost.excess > MATTERS
    }
    if wide:
        worst = max(wide, key=lambda unit: wide[unit].relative_error)
        yield Finding(
            id="too-wide",
            severity="warning",
            message=f"{len(wide)} of {len(context.costs)} scales are so wide that precision is lost; most in "
            f"{worst[2]} of layer {worst[0]} head {worst[1]}, "
            f"with {percent(wide[worst].relative_error)} squared error",
            action="Calibrate again; compare the trace-optimal column.",
            layers=tuple(sorted({unit[0] for unit in wide})),
            evidence=numbers(
                num_units=len(wide),
                worst_relative_error=wide[worst].relative_error,
                worst_least_error=wide[worst].least_error,
                worst_flush_share=wide[worst].flush_share,
                worst_observed_over_covered=context.ratios[worst],
            ),
        )


RULE: Final = ArtifactRule(
    id="too-wide",
    role="symptom",
    tier=Tier.head,
    mended_by="recalibrate",
    in_run="left out",
    check=check,
    invalid=(ArtifactExample(amax=AMAX, scales=covering(AMAX, times=65_536)),),
    valid=(ArtifactExample(amax=AMAX, scales=covering(AMAX, times=256)),),
)
