"""llm-compressor's default observer is an exponential average of minima and maxima: outliers exceed its
scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.context import MATTERS
from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext

_AVERAGING: Final = "minmax"


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a note where the observer averages; a warning where the trace clips in units whose error
    matters.
    """
    if context.artifact.scheme.observer != _AVERAGING or not context.artifact.layers:
        return
    beyond = [
        unit
        for unit, ratio in context.ratios.items()
        if ratio > context.clip_ratio and context.costs[unit].excess > MATTERS
    ]
    message = "the observer `minmax` is an exponential average: the true maximum may lie beyond the scale"
    if beyond:
        message += f", and does in {len(beyond)} of {len(context.ratios)} ranges"
    yield Finding(
        id="ema-observer",
        severity="warning" if beyond else "note",
        message=message,
        action="Calibrate with `static_minmax`, or with `kvtrace calibrate`.",
        layers=tuple(sorted({unit[0] for unit in beyond})),
        evidence=numbers(
            observer=_AVERAGING,
            num_units=len(context.ratios),
            num_units_beyond=len(beyond),
            max_observed_over_covered=max(context.ratios.values(), default=None),
        ),
    )


RULE: Final = ArtifactRule(
    id="ema-observer",
    headline="An averaging observer left the scales too narrow",
    role="cause",
    tier=Tier.place,
    explains=("symptom",),
    makes=("clips",),
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(scheme={"observer": "minmax"}),),
    valid=(ArtifactExample(scheme={"observer": "static_minmax"}),),
)
