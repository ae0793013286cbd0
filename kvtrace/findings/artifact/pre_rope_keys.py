"""Calibrated on keys before RoPE: a rotation moves up to √2 of a pair's range into one element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier, same_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.run.case import Case

_MIN_EXCESS: Final = 1.5
"""Squared error in multiples of the least; low, because a percentile, which clips by choice, clips V as
well."""
_MIN_SHARE: Final = 0.2
_MIN_UNITS: Final = 2
"""Of K units beyond the range; fewer are outliers, which have other causes."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where many K ranges, and no V's, end beyond the covered one by at most √2."""
    k = {unit: ratio for unit, ratio in context.ratios.items() if unit[2] == "k"}
    v = [ratio for unit, ratio in context.ratios.items() if unit[2] == "v"]
    if not k or max(k.values()) > math.sqrt(2) * context.clip_ratio:
        return
    if sum(ratio > context.clip_ratio for ratio in v) > 0.05 * len(v):
        return
    fewest = _fewest(len(k))
    beyond = [unit for unit, ratio in k.items() if ratio > context.clip_ratio]
    # The least error, which is searched for, comes last.
    if len(beyond) >= fewest:
        beyond = [unit for unit in beyond if context.costs[unit].excess > _MIN_EXCESS]
    if len(beyond) < fewest:
        return
    form = context.artifact.format
    who = (
        f"{form.name} calibrates on keys before RoPE" if form.before_rope else "as if calibrated before RoPE"
    )
    yield Finding(
        id="pre-rope-keys",
        severity="warning",
        message=f"{len(beyond)} of {len(k)} K ranges end up to {max(k.values()):.3g} times beyond the "
        "covered one "
        f"while V fits: {who}",
        action="Calibrate on keys after RoPE, or multiply K's scales by 1.42.",
        layers=tuple(sorted({unit[0] for unit in k if k[unit] > context.clip_ratio})),
        tensors=("k",),
        evidence=numbers(
            num_k_units=len(k),
            num_k_units_beyond=len(beyond),
            max_k_observed_over_covered=max(k.values()),
            max_v_observed_over_covered=max(v, default=None),
            format_calibrates_before_rope=form.before_rope,
        ),
    )


def _fewest(num_units: int) -> float:
    return max(_MIN_UNITS, _MIN_SHARE * num_units)


def _accounts_for(found: Finding, lost: Finding, case: Case) -> bool:
    """Of drifts only those in few of its layers: some heads' keys are larger at some positions by nature."""
    is_drift = lost.where is not None
    return same_place(found, lost, case) and not (is_drift and 2 * len(lost.layers) > len(found.layers))


RULE: Final = ArtifactRule(
    id="pre-rope-keys",
    headline="K scales fit keys before rotary embedding, not after it",
    role="cause",
    tier=Tier.place,
    explains=("symptom", "drift"),
    accounts_for=_accounts_for,
    makes=("clips",),
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(amax=AMAX | {"0.k": 10.8, "1.k": 21.6}),),
    valid=(
        ArtifactExample(amax=AMAX),
        # One layer of two is an outlier.
        ArtifactExample(amax=AMAX | {"1.k": 21.6}),
        # V is too narrow as well.
        ArtifactExample(amax=AMAX, scales=covering(AMAX, times=1 / 1.35)),
    ),
)
