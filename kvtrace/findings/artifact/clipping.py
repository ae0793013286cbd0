"""Values beyond the shipped range, judged by the squared error that clipping them costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.figures import percent
from kvtrace.findings.artifact.context import MATTERS
from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.calibration.magnitudes import Group
    from kvtrace.findings.artifact.context import AuditContext, UnitCost

_ERROR_MEAN: Final = 0.02
"""Mean relative squared error of K or of V from which quality was seen to drop: half of what scales of half
the width
cost on a small model, where the perplexity rose by 17 %."""
_ERROR_UNIT: Final = 0.1
_WARNING_UNIT: Final = 0.02
"""A percentile of 99.9 for all heads together clips by choice and costs single ones up to 0.8 %: no fault of
an artifact. A report, which asks what a head loses in traffic, warns from 0.5 % on."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield one finding a tensor: an error where clipping ruins it, a warning where it ruins a head, else a
    note.
    """
    for tensor in ("k", "v"):
        costs = {unit: cost for unit, cost in context.costs.items() if unit[2] == tensor}
        clipped = {unit: cost for unit, cost in costs.items() if cost.num_clipped}
        if not clipped:
            continue
        worst = max(clipped, key=lambda unit: clipped[unit].relative_error)
        yield _finding(tensor, costs, clipped, worst)


def _finding(
    tensor: str, costs: dict[Group, UnitCost], clipped: dict[Group, UnitCost], worst: Group
) -> Finding:
    mean = float(np.mean([cost.relative_error for cost in costs.values()]))
    clip_mean = float(np.mean([cost.relative_error * cost.clip_share for cost in costs.values()]))
    ruined = [
        u
        for u, c in clipped.items()
        if c.relative_error * c.clip_share > _WARNING_UNIT and c.excess > MATTERS
    ]
    cost = clipped[worst]
    worst_clip = cost.relative_error * cost.clip_share
    is_error = clip_mean > _ERROR_MEAN or (worst_clip > _ERROR_UNIT and cost.excess > MATTERS)
    num_values = sum(c.num_values for c in costs.values())
    num_clipped = sum(c.num_clipped for c in costs.values())
    return Finding(
        id="clipping",
        severity="error" if is_error else "warning" if ruined else "note",
        message=f"{num_clipped:,} of {num_values:,} {tensor.upper()} values are clipped "
        f"({num_clipped / num_values:.2e}); "
        f"most in layer {worst[0]} head {worst[1]} with {percent(cost.relative_error)} squared error, "
        f"{cost.excess:,.0f} times the least possible",
        action=_action(is_error or bool(ruined), sum(c.excess > MATTERS for c in clipped.values())),
        layers=tuple(sorted({unit[0] for unit in ruined})),
        evidence=numbers(
            tensor=tensor,
            num_values=num_values,
            num_out_of_range=sum(c.num_out_of_range for c in costs.values()),
            num_clipped=num_clipped,
            mean_relative_error=mean,
            mean_relative_clip_error=clip_mean,
            worst_layer=worst[0],
            worst_kv_head=worst[1],
            worst_relative_error=cost.relative_error,
            worst_least_error=cost.least_error,
            num_units_ruined=len(ruined),
        ),
    )


def _action(is_fault: bool, num_costly: int) -> str:
    if is_fault:
        return (
            "Calibrate on this traffic with headroom (`kvtrace calibrate --headroom 2`), or leave layers "
            "in BF16."
        )
    if num_costly:
        return (
            f"In {num_costly} heads it costs more than rounding does, though less than was seen to matter; "
            "headroom would avoid it at next to no cost."
        )
    return "Nothing: it costs no more than rounding does."


RULE: Final = ArtifactRule(
    id="clipping",
    role="symptom",
    tier=Tier.symptom,
    mended_by="recalibrate",
    in_run="left out",
    check=check,
    invalid=(ArtifactExample(amax=AMAX, scales=covering(AMAX, times=0.5)),),
    valid=(ArtifactExample(amax=AMAX),),
)
