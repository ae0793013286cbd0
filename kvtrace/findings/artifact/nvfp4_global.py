"""Scales as the global ones of an NVFP4 cache: too narrow, too wide, or made for FP8.

A value comes back as code · block scale · global scale, and a block scale is an e4m3 number up to 448: the
natural global scale is the largest magnitude / (6 · 448). Below it blocks saturate; far above it their scales
become subnormal, then 0.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent
from kvtrace.findings.artifact.context import MATTERS
from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.calibration.magnitudes import Group
    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.artifact.example import PerTensor
    from kvtrace.findings.artifact.nvfp4_observed import GlobalCost

_OF_FP8: Final = 6.0
"""amax / 448 over amax / 2688."""
_NEAR: Final = 2.0
"""Scales that calibrations differ by: a percentile, or headroom."""
_ERROR_UNIT: Final = 0.1
"""Relative squared error from which a range that is too narrow is an error, as for FP8."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a finding where scales of NVFP4 clip, one where they flush, and a note where they are FP8's."""
    if not context.nvfp4_units:
        return
    costs = context.global_costs
    bad = {unit: cost for unit, cost in costs.items() if cost.excess > MATTERS}
    narrow = {unit: cost for unit, cost in bad.items() if cost.num_clipped}
    wide = {unit: cost for unit, cost in bad.items() if not cost.num_clipped}
    if narrow:
        yield _finding("nvfp4-global-narrow", narrow, len(costs))
    if wide:
        yield _finding("nvfp4-global-wide", wide, len(costs))
    yield from _made_for_fp8(context, costs)


def _finding(rule: str, units: dict[Group, GlobalCost], num_units: int) -> Finding:
    is_narrow = rule == "nvfp4-global-narrow"
    worst = max(units, key=lambda unit: units[unit].relative_error)
    cost = units[worst]
    lost = (
        f"{cost.num_clipped:,} of {cost.num_values:,} values are clipped"
        if is_narrow
        else f"{cost.num_flushed:,} of {cost.num_values:,} values become 0"
    )
    return Finding(
        id=rule,
        severity="error" if is_narrow and cost.relative_error > _ERROR_UNIT else "warning",
        message=f"as NVFP4's global scales, {len(units)} of {num_units} are too "
        f"{'narrow' if is_narrow else 'wide'}; most in {worst[2]} of layer {worst[0]} head {worst[1]}: "
        f"{lost}, "
        f"{percent(cost.relative_error)} squared error where the natural scale leaves "
        f"{percent(cost.natural_error)}",
        action="Store the largest magnitude / 2688 as the scale; `kvtrace replay --cache-dtype nvfp4` tries "
        "it.",
        layers=tuple(sorted({unit[0] for unit in units})),
        evidence=numbers(
            num_units=len(units),
            worst_layer=worst[0],
            worst_kv_head=worst[1],
            worst_tensor=worst[2],
            worst_times_natural=cost.times_natural,
            worst_relative_error=cost.relative_error,
            worst_natural_error=cost.natural_error,
            worst_num_clipped=cost.num_clipped,
            worst_num_flushed=cost.num_flushed,
        ),
    )


def _made_for_fp8(context: AuditContext, costs: dict[Group, GlobalCost]) -> Iterator[Finding]:
    """Yield a note where scales lie 6 times too high, as amax / 448 does; without a trace, those of FP8."""
    if costs:
        found = median(cost.times_natural for cost in costs.values())
        if not _OF_FP8 / _NEAR <= found <= _OF_FP8 * _NEAR:
            return
        what = f"the scales are {found:.3g} × the natural ones of NVFP4 (the largest magnitude / 2688)"
    elif context.artifact.number_format in (None, "fp8"):
        found = _OF_FP8
        what = "the scales were made for FP8, 6 × the natural ones of NVFP4 (the largest magnitude / 2688)"
    else:
        return
    yield Finding(
        id="nvfp4-global-of-fp8",
        severity="note",
        message=f"{what}; blocks of 16 whose largest value is below 0.02 % of the layer's get coarser scales",
        action="Nothing where the error is as it should be; else store scales / 6.",
        evidence=numbers(median_times_natural=found, is_measured=bool(costs)),
    )


def _natural(times: float = 1.0) -> PerTensor:
    return covering(AMAX, times / _OF_FP8)


NARROW: Final = ArtifactRule(
    id="nvfp4-global-narrow",
    role="symptom",
    tier=Tier.symptom,
    mended_by="recalibrate",
    in_run="left out",
    check=check,
    invalid=(ArtifactExample(amax=AMAX, scales=_natural(0.25), cache_dtype="nvfp4"),),
    valid=(
        ArtifactExample(amax=AMAX, scales=_natural(), cache_dtype="nvfp4"),
        ArtifactExample(amax=AMAX, scales=_natural(0.25)),
    ),
)
WIDE: Final = ArtifactRule(
    id="nvfp4-global-wide",
    role="symptom",
    tier=Tier.head,
    mended_by="recalibrate",
    in_run="left out",
    check=check,
    invalid=(ArtifactExample(amax=AMAX, scales=_natural(2.0**18), cache_dtype="nvfp4"),),
    valid=(ArtifactExample(amax=AMAX, scales=_natural(_OF_FP8), cache_dtype="nvfp4"),),
)
OF_FP8: Final = ArtifactRule(
    id="nvfp4-global-of-fp8",
    role="note",
    tier=Tier.stored_rounding,
    in_run="left out",
    check=check,
    invalid=(
        ArtifactExample(amax=AMAX, scales=covering(AMAX), cache_dtype="nvfp4"),
        ArtifactExample(cache_dtype="nvfp4"),
    ),
    valid=(
        ArtifactExample(amax=AMAX, scales=_natural(), cache_dtype="nvfp4"),
        ArtifactExample(amax=AMAX, scales=covering(AMAX)),
    ),
)
