"""One tensor-parallel rank's scales on all ranks: stored so by an export, or so in effect."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.findings.artifact.example import AMAX_PER_HEAD, ArtifactExample, ArtifactRule
from kvtrace.findings.artifact.scales_not_loaded import is_same, live_scales, shipped_for
from kvtrace.findings.finding import TENSORS, Finding
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.calibration.magnitudes import Group
    from kvtrace.findings.artifact.context import AuditContext

_FITS: Final = math.log(1.5)
"""Median |ln| of observed over covered: a calibration on equal traffic stays within."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where every rank's heads have the scales of the first rank's, which do not fit them."""
    live = {group: value for group, (_, value) in live_scales(context).items()}
    for num_heads in _heads_per_rank(context.num_kv_heads):
        if not context.is_what_if and _ran_everywhere(context, live, num_heads):
            yield _finding(context, num_heads, "the engine used", is_about_what_ran=True)
            return
        if context.has_unit_per_head and _is_stored_everywhere(context, num_heads):
            yield _finding(context, num_heads, "the artifact stores", is_about_what_ran=False)
            return


def _heads_per_rank(num_heads: int) -> Iterator[int]:
    """Yield how many heads a rank may have, the most first."""
    yield from (n for n in range(num_heads // 2, 0, -1) if num_heads % n == 0)


def _ran_everywhere(context: AuditContext, live: dict[Group, float], num_heads: int) -> bool:
    """Return whether each head ran with the scale shipped for the first rank's head in its place."""
    shipped = {group: shipped_for(context, group) for group in live}
    as_first = {(n, head, t): shipped.get((n, head % num_heads, t)) for n, head, t in live}
    return _differ(shipped, as_first) and all(
        value is not None and is_same(live[group], value) for group, value in as_first.items()
    )


def _is_stored_everywhere(context: AuditContext, num_heads: int) -> bool:
    """Return whether the scales repeat, fit the first rank and not the others."""
    stored = {unit: context.usable(unit) for unit in context.ratios}
    if not stored or any(
        value != stored.get((n, head % num_heads, t)) for (n, head, t), value in stored.items()
    ):
        return False
    misfits = {unit: abs(math.log(ratio)) for unit, ratio in context.ratios.items()}
    first = _median(misfits, lambda head: head < num_heads)
    if first > _FITS or _median(misfits, lambda head: head >= num_heads) <= _FITS:
        return False
    # One scale for all heads repeats too, and is as wide as the widest of them needs.
    is_one = all(value == stored.get((n, 0, t)) for (n, _, t), value in stored.items())
    beyond = {unit: math.log(ratio) for unit, ratio in context.ratios.items()}
    return not is_one or _median(beyond, lambda head: head >= num_heads) > _FITS


def _differ(one: dict[Group, float | None], other: dict[Group, float | None]) -> bool:
    return any(one[group] != other[group] for group in one)


def _median(misfits: dict[Group, float], is_chosen: Callable[[int], bool]) -> float:
    chosen = [misfit for (_, head, _), misfit in misfits.items() if is_chosen(head)]
    return float(np.median(chosen)) if chosen else 0.0


def _finding(context: AuditContext, num_heads: int, who: str, *, is_about_what_ran: bool) -> Finding:
    num_ranks = context.num_kv_heads // num_heads
    return Finding(
        id="rank-scales-everywhere",
        severity="error",
        message=f"{who} the scales of the first {num_heads} heads on all {num_ranks} tensor-parallel ranks",
        action="Look at how scales are split over ranks: each rank needs those of its own heads.",
        layers=tuple(range(context.num_layers)),
        tensors=TENSORS,
        is_about_what_ran=is_about_what_ran,
        evidence=({"num_heads_per_rank": num_heads, "num_ranks": num_ranks},),
    )


RULE: Final = ArtifactRule(
    id="rank-scales-everywhere",
    headline="One rank's scales stand on all ranks",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    follows_loss=True,
    mended_by="look",
    check=check,
    invalid=(
        ArtifactExample(
            amax={name: (heads[0], 4 * heads[0]) for name, heads in AMAX_PER_HEAD.items()},
            scales={name: (heads[0] / 448, heads[0] / 448) for name, heads in AMAX_PER_HEAD.items()},
        ),
    ),
    valid=(
        ArtifactExample(amax=AMAX_PER_HEAD),
        # Heads that are alike need one scale.
        ArtifactExample(
            amax={name: (heads[0], heads[0]) for name, heads in AMAX_PER_HEAD.items()},
            scales={name: (heads[0] / 448, heads[0] / 448) for name, heads in AMAX_PER_HEAD.items()},
        ),
    ),
)
