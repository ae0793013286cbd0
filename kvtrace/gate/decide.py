"""Decide one limit over all heads of a segment, by intervals where there are requests to count."""

from __future__ import annotations

from math import ceil, log
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.gate.outcome import HeadOutcome, LimitOutcome, Verdict
from kvtrace.stats import fraction_intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.gate.measure import HeadTable
    from kvtrace.gate.policy import Policy

EVENT_OF_LIMIT: Final = {"vectors_clipped_frac": "clipped", "vectors_out_of_range_frac": "outside"}
BY_INTERVAL: Final = "interval clustered by request"
BY_ESTIMATE: Final = "estimate; the run holds no sums by which an interval could be made"
_MOST_LISTED: Final = 10


def decide_vectors(
    limit: str, bound: float, heads: HeadTable, q_values: NDArray[np.float64], policy: Policy
) -> LimitOutcome:
    """Return the outcome of a limit on a fraction of vectors.

    A head breaches it where H0 "at most the bound" is rejected at the policy's false-discovery rate, and is
    within where its interval's upper end is at most the bound; else the requests do not tell.
    q_values: one per head, from all heads, segments and limits of the check together.
    """
    found = fraction_intervals(
        heads.request_sums(EVENT_OF_LIMIT[limit]),
        confidence=policy.confidence,
        worst_request=policy.worst_request_frac,
    )
    breached = q_values <= policy.false_discovery_rate
    untold = ~breached & (found.high > bound)

    def head(entry: int) -> HeadOutcome:
        layer, kv_head, tensor = heads.head(entry)
        return HeadOutcome(
            layer=layer,
            kv_head=kv_head,
            tensor=tensor,
            value=float(found.fraction[entry]),
            low=float(found.low[entry]),
            high=None if found.too_few_requests[entry] else float(found.high[entry]),
            num_requests=int(found.num_requests[entry]),
            num_affected_requests=int(found.num_affected[entry]),
            q_value=float(q_values[entry]),
        )

    worst_first = np.lexsort((-found.high, -found.fraction))
    return LimitOutcome(
        limit=limit,
        bound=bound,
        is_minimum=False,
        verdict=_verdict(breached, untold),
        basis=BY_INTERVAL,
        has_interval=True,
        num_heads=len(heads),
        num_breached=int(breached.sum()),
        num_untold=int(untold.sum()),
        worst=head(int(worst_first[0])) if len(heads) else None,
        breached=tuple(head(int(entry)) for entry in worst_first if breached[entry])[:_MOST_LISTED],
        reason=_vector_reason(bound, int(untold.sum()), policy) if untold.any() else None,
    )


def decide_values(limit: str, bound: float, heads: HeadTable) -> LimitOutcome:
    """Return the outcome of a limit on a ratio of value-level sums, from the estimates alone."""
    value = _value_of(limit, heads)
    is_minimum = limit == "sqnr_db"
    breached = value < bound if is_minimum else value > bound
    untold = np.isnan(value)
    worst_first = np.argsort(np.where(untold, np.inf, value if is_minimum else -value), kind="stable")

    def head(entry: int) -> HeadOutcome:
        layer, kv_head, tensor = heads.head(entry)
        return HeadOutcome(layer=layer, kv_head=kv_head, tensor=tensor, value=float(value[entry]))

    return LimitOutcome(
        limit=limit,
        bound=bound,
        is_minimum=is_minimum,
        verdict=_verdict(breached, untold),
        basis=BY_ESTIMATE,
        has_interval=False,
        num_heads=len(heads),
        num_breached=int(breached.sum()),
        num_untold=int(untold.sum()),
        worst=head(int(worst_first[0])) if len(heads) else None,
        breached=tuple(head(int(entry)) for entry in worst_first if breached[entry])[:_MOST_LISTED],
        reason="heads without a finite value" if untold.any() else None,
    )


def requests_needed(bound: float, policy: Policy) -> int | None:
    """Return how many requests without one event put the upper end at the bound; None: no number does."""
    share = bound / policy.worst_request_frac
    if not 0 < share < 1:
        return None
    return ceil(log((1 - policy.confidence) / 2) / log(1 - share))


def _value_of(limit: str, heads: HeadTable) -> NDArray[np.float64]:
    column = heads.columns
    with np.errstate(divide="ignore", invalid="ignore"):
        if limit == "sqnr_db":
            # No error at all is an infinite ratio, and within any limit.
            return np.asarray(10 * np.log10(column["sum_sq_signal"] / column["sum_sq_error"]))
        if limit == "clip_error_frac":
            share = column["sum_sq_clip_error"] / column["sum_sq_error"]
            return np.asarray(np.where(column["sum_sq_error"] == 0, 0.0, share))
        counted = {"clipped_frac": "num_clipped", "out_of_range_frac": "num_out_of_range"}[limit]
        return np.asarray(column[counted] / column["num_values"])


def _verdict(breached: NDArray[np.bool_], untold: NDArray[np.bool_]) -> Verdict:
    if breached.any():
        return Verdict.breached
    return Verdict.not_enough if untold.any() else Verdict.within


def _vector_reason(bound: float, num_untold: int, policy: Policy) -> str:
    heads = f"{num_untold:,} head{'s' if num_untold > 1 else ''}: the interval reaches beyond the limit"
    needed = requests_needed(bound, policy)
    if needed is None:
        return heads
    return f"{heads}; a head without one event takes about {needed:,} requests to be within"
