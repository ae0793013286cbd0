"""Decide one limit over all heads of a segment, by intervals where there are requests to count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.gate.outcome import HeadOutcome, LimitOutcome, Verdict, of_vectors
from kvtrace.sample_size import requests_without_event
from kvtrace.stats.fractions import fraction_intervals
from kvtrace.stats.jackknife import MIN_GROUPS, jackknife_ratios, ratio_p_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvtrace.gate.measure import HeadTable
    from kvtrace.gate.policy import Policy
    from kvtrace.stats.jackknife import RatioIntervals

EVENT_OF_LIMIT: Final = {"vectors_clipped_frac": "clipped", "vectors_out_of_range_frac": "out_of_range"}
BY_INTERVAL: Final = "interval clustered by request"
BY_GROUPS: Final = "interval over request groups; heads with an event in too few of them: estimate"
BY_ESTIMATE: Final = "estimate; the run holds no sums by which an interval could be made"
BY_RULE: Final = "known: every vector gets a scale that covers it"
BY_ONLINE_ESTIMATE: Final = "estimate, which decides alone: no run has sums by group of a cache format"
RATIOS: Final = {
    "clipped_frac": ("w_clipped", "w_values"),
    "out_of_range_frac": ("w_out_of_range", "w_values"),
    "clip_error_frac": ("w_sq_clip_error", "w_sq_error"),
    "sqnr_db": ("w_sq_signal", "w_sq_error"),
}
"""Limit → numerator and denominator."""
_MOST_LISTED: Final = 10


def decide_vectors(
    limit: str, bound: float, heads: HeadTable, q_values: NDArray[np.float64], policy: Policy
) -> LimitOutcome:
    """Return the outcome of a limit on a fraction of vectors.

    A head breaches it where H0 "at most the bound" is rejected at the policy's false-discovery rate, and is
    within where its interval's upper end is at most the bound; else the requests do not tell. Under a scale
    for every vector the fraction is known to be 0.
    q_values: one per head, from all heads, segments and limits of the check together.
    """
    found = fraction_intervals(
        heads.request_sums(EVENT_OF_LIMIT[limit]),
        confidence=policy.confidence,
        worst_request=policy.worst_request_frac,
    )
    if heads.never_clips:
        nothing = np.zeros(len(heads), dtype=bool)
        found = replace(found, high=np.zeros(len(heads)), too_few_requests=nothing)
    breached = q_values <= policy.false_discovery_rate
    untold = ~breached & (found.high > bound)

    def measured(entry: int) -> dict[str, Any]:
        return of_vectors(found, entry) | {"q_value": float(q_values[entry])}

    return _outcome(
        heads,
        np.lexsort((-found.high, -found.fraction)),
        breached,
        untold,
        measured,
        limit=limit,
        bound=bound,
        basis=BY_RULE if heads.never_clips else BY_INTERVAL,
        has_interval=True,
        reason=(
            _vector_reason(bound, int(untold.sum()), int(found.num_requests.max()), policy)
            if untold.any()
            else None
        ),
    )


def decide_values(
    limit: str, bound: float, heads: HeadTable, q_values: NDArray[np.float64], policy: Policy
) -> LimitOutcome:
    """Return the outcome of a limit on a ratio of value-level sums.

    With request groups: a head breaches it where H0 "keeps the bound" is rejected at the policy's
    false-discovery rate, and is within where its interval keeps the bound. One with an event in too few
    groups for an interval is within by its estimate, and untold where that does not keep the bound. So is
    every head without groups: fewer numbers must not give the harder verdict. Only under a scale for every
    vector, where no run has groups, the estimates decide alone. q_values: as in `decide_vectors`; unused
    without groups.
    """
    value, is_minimum = _value_of(limit, heads), limit == "sqnr_db"
    bad = value < bound if is_minimum else value > bound
    found = value_intervals(limit, heads, policy)
    if found is None:
        low = high = np.full(len(heads), np.nan)
        estimated = np.ones(len(heads), dtype=bool)
        breached = bad & heads.is_online
        untold = np.isnan(value) | (bad & ~breached)
    else:
        low, high = found.low, found.high
        estimated = found.too_few_groups
        breached = q_values <= policy.false_discovery_rate
        kept = low >= bound if is_minimum else high <= bound
        # Without any error there is nothing to be unsure of.
        too_few = (found.num_groups < MIN_GROUPS) & ~_is_exact(limit, heads)
        untold = ~breached & np.where(estimated, too_few | bad | np.isnan(value), ~kept)
    worst_first = np.argsort(
        np.where(np.isnan(value), np.inf, value if is_minimum else -value), kind="stable"
    )

    def measured(entry: int) -> dict[str, Any]:
        return {
            "value": float(value[entry]),
            "low": None if estimated[entry] else float(low[entry]),
            "high": None if estimated[entry] else float(high[entry]),
            "num_groups": None if found is None else int(found.num_groups[entry]),
            "q_value": None if found is None else float(q_values[entry]),
        }

    return _outcome(
        heads,
        worst_first,
        breached,
        untold,
        measured,
        limit=limit,
        bound=bound,
        basis=BY_GROUPS if found is not None else BY_ONLINE_ESTIMATE if heads.is_online else BY_ESTIMATE,
        has_interval=found is not None,
        num_estimated=int(estimated.sum()),
        reason=_value_reason(value[untold], has_groups=found is not None) if untold.any() else None,
    )


def _outcome(
    heads: HeadTable,
    worst_first: NDArray[np.int64],
    breached: NDArray[np.bool_],
    untold: NDArray[np.bool_],
    measured: Callable[[int], dict[str, Any]],
    **told: Any,
) -> LimitOutcome:
    """Return the outcome. measured: what was measured of one head; told: what else is said of the limit."""

    def head(entry: int) -> HeadOutcome:
        layer, kv_head, tensor = heads.head(entry)
        return HeadOutcome(layer=layer, kv_head=kv_head, tensor=tensor, **measured(entry))

    return LimitOutcome(
        is_minimum=told["limit"] == "sqnr_db",
        verdict=(
            Verdict.breached if breached.any() else Verdict.not_enough if untold.any() else Verdict.within
        ),
        num_heads=len(heads),
        num_breached=int(breached.sum()),
        num_untold=int(untold.sum()),
        worst=head(int(worst_first[0])) if len(heads) else None,
        breached=tuple(head(int(entry)) for entry in worst_first if breached[entry])[:_MOST_LISTED],
        **told,
    )


def value_intervals(limit: str, heads: HeadTable, policy: Policy) -> RatioIntervals | None:
    """Return the intervals of a value-level limit, in its unit; None where the run has no request groups."""
    ratio = _ratio_intervals(limit, heads, policy)
    if ratio is None or limit != "sqnr_db":
        return ratio
    low, high = (10 * np.log10(end) for end in (ratio.low, ratio.high))
    return replace(ratio, low=low, high=high)


def value_p_values(limit: str, bound: float, heads: HeadTable, policy: Policy) -> NDArray[np.float64] | None:
    """Return each head's p-value of H0 "keeps the bound"; None where the run has no request groups."""
    found = _ratio_intervals(limit, heads, policy)
    if found is None:
        return None
    is_minimum = limit == "sqnr_db"
    return ratio_p_values(found, 10 ** (bound / 10) if is_minimum else bound, is_minimum=is_minimum)


def _ratio_intervals(limit: str, heads: HeadTable, policy: Policy) -> RatioIntervals | None:
    if heads.groups is None:
        return None
    above, below = RATIOS[limit]
    return jackknife_ratios(heads.groups[above], heads.groups[below], confidence=policy.confidence)


def _value_of(limit: str, heads: HeadTable) -> NDArray[np.float64]:
    above, below = (heads.columns[name] for name in RATIOS[limit])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(above / below)
        if limit == "sqnr_db":
            # No error at all is an infinite ratio, and within any limit.
            return np.asarray(10 * np.log10(ratio))
    return np.where(_is_exact(limit, heads), 0.0, ratio)


def _is_exact(limit: str, heads: HeadTable) -> NDArray[np.bool_]:
    """Return the heads whose ratio of errors is known: those without any error."""
    if limit not in ("sqnr_db", "clip_error_frac"):
        return np.zeros(len(heads), dtype=bool)
    return np.asarray((heads.columns["w_sq_error"] == 0) & (heads.columns["w_values"] > 0))


def _vector_reason(bound: float, num_untold: int, num_requests: int, policy: Policy) -> str:
    """Return why, and how many requests are needed where that is more than were captured."""
    heads = f"{num_untold:,} head{'s' if num_untold > 1 else ''}: the interval reaches beyond the limit"
    needed = requests_without_event(
        bound, confidence=policy.confidence, worst_request=policy.worst_request_frac
    )
    if needed is None or needed <= num_requests:
        return heads
    return f"{heads}; a head without one event takes about {needed:,} requests to be within"


def _value_reason(untold: NDArray[np.float64], *, has_groups: bool) -> str:
    """Return why: untold has the values of the heads that cannot be told."""
    heads = f"{untold.size:,} head{'s' if untold.size > 1 else ''}"
    if np.isnan(untold).all():
        return f"{heads} without a finite value"
    if not has_groups:
        return (
            f"{heads}: the estimate is beyond the limit, without an interval to tell; kvtrace replay "
            "--intervals tells, for segments of all positions"
        )
    return f"{heads}: too few requests to tell (no interval over request groups, or beyond the limit)"
