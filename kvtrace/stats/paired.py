"""Two candidates on the same requests: the difference of their fractions, request by request.

Both candidates see the same vectors, so only vectors that one covers and the other does not say anything. The
method is that of `fractions`, on differences: requests reweighted by a Dirichlet law, one made-up request
added that goes the other way as far as requests may. The law has no formula here and is drawn, seeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.stats.fractions import MIN_REQUESTS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_DRAWS: Final = 4_000
_SEED: Final = 20_011


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Fraction of `a` minus fraction of `b`, over the requests that both saw."""

    difference: float
    low: float
    high: float
    num_requests: int
    num_lower: int
    """Requests in which `a` has the smaller fraction."""
    num_higher: int
    """Requests in which `a` has the larger fraction."""
    too_few_requests: bool

    @property
    def verdict(self) -> str:
        """Return `lower`, `higher`, `equal` (no vector differs) or `not enough to tell`, seen from `a`."""
        if self.too_few_requests:
            return "not enough to tell"
        if self.num_lower == self.num_higher == 0:
            return "equal"
        if self.high < 0:
            return "lower"
        return "higher" if self.low > 0 else "not enough to tell"


def paired_difference(
    events_a: ArrayLike,
    events_b: ArrayLike,
    trials: ArrayLike,
    *,
    nested: bool = False,
    confidence: float = 0.95,
) -> PairedDifference:
    """Return Σ(a − b) / Σn with an interval clustered by request.

    events_a, events_b, trials: [requests], weighted counts; the same requests in the same order.
    nested: one candidate covers all that the other does, as two static scales of one head do. Differences of
    the other sign are then impossible, rather than unseen so far, and the interval is narrower.
    """
    trials = np.asarray(trials, dtype=np.float64)
    seen = trials > 0
    n = trials[seen]
    gap = (np.asarray(events_a, dtype=np.float64) - np.asarray(events_b, dtype=np.float64))[seen]
    num_lower, num_higher = int(np.sum(gap < 0)), int(np.sum(gap > 0))
    too_few = n.size < MIN_REQUESTS
    if too_few:
        low, high = -1.0, 1.0
    else:
        # Nested, and no vector differs: which of the two is the wider one is not known here.
        either = not nested or num_lower == num_higher == 0
        can_fall, can_rise = either or num_lower > 0, either or num_higher > 0
        low, high = _interval(gap, n, can_fall=can_fall, can_rise=can_rise, confidence=confidence)
    return PairedDifference(
        difference=float(gap.sum() / n.sum()) if n.size else float("nan"),
        low=low,
        high=high,
        num_requests=n.size,
        num_lower=num_lower,
        num_higher=num_higher,
        too_few_requests=too_few,
    )


def _interval(
    gap: NDArray[np.float64], n: NDArray[np.float64], *, can_fall: bool, can_rise: bool, confidence: float
) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    size = float(np.sum(n * n) / np.sum(n))
    weights = np.random.default_rng(_SEED).standard_exponential((_DRAWS, n.size + 1))
    total = weights[:, :-1] @ n + weights[:, -1] * size
    change = weights[:, :-1] @ gap
    lowest = change - weights[:, -1] * size * (_worst_next(-gap / n) if can_fall else 0.0)
    highest = change + weights[:, -1] * size * (_worst_next(gap / n) if can_rise else 0.0)
    return float(np.quantile(lowest / total, tail)), float(np.quantile(highest / total, 1 - tail))


def _worst_next(frac: NDArray[np.float64]) -> float:
    """Return what the next request may show: 1 in k + 1 times more than the k seen, at most everything."""
    affected = int(np.sum(frac > 0))
    return float((affected * max(frac.max(), 0.0) + 1.0) / (affected + 1))
