"""Two candidates on the same requests: the difference of their fractions, request by request.

Both candidates see the same vectors, so only vectors that one covers and the other does not say anything. The
method is that of `fractions`, on differences: requests reweighted by a Dirichlet law, one made-up request
added that goes the other way as far as requests may. Where no request differs and all are of one size the
law is a beta law and its ends are exact; elsewhere it has no formula, and is drawn, seeded. How far chance
moves an end that was drawn is said beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.stats.fractions import MIN_REQUESTS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_DRAWS: Final = 4_000
_DRAWS_BEYOND: Final = 100
"""Of the draws at least so many lie beyond an end; far tails take more draws."""
_SEED: Final = 20_011
_WEIGHTS_HELD: Final = 1 << 24
"""Of the draws at a time: 128 MiB."""
_ERROR_SD: Final = 2.0
"""Standard deviations of a drawn quantile's rank that its error covers."""


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
    low_error: float = 0.0
    """How far chance may have moved `low`, since it was drawn; 0 where it is exact. So is `high_error`."""
    high_error: float = 0.0
    p_above: float | None = None
    """One-sided p of H0 "the difference of the traffic is at most the limit"; None: there is no limit."""

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
    limit: float | None = None,
) -> PairedDifference:
    """Return Σ(a − b) / Σn with an interval clustered by request.

    events_a, events_b, trials: [requests], weighted counts; the same requests in the same order.
    nested: one candidate covers all that the other does, as two static scales of one head do. Differences of
    the other sign are then impossible, rather than unseen so far, and the interval is narrower.
    limit: what `p_above` asks of; it is 1 where there are too few requests.
    """
    trials = np.asarray(trials, dtype=np.float64)
    seen = trials > 0
    n = trials[seen]
    gap = (np.asarray(events_a, dtype=np.float64) - np.asarray(events_b, dtype=np.float64))[seen]
    num_lower, num_higher = int(np.sum(gap < 0)), int(np.sum(gap > 0))
    too_few = n.size < MIN_REQUESTS
    if too_few:
        ends = _Ends(-1.0, 1.0, p_above=None if limit is None else 1.0)
    elif num_lower == num_higher == 0 and np.all(n == n[0]):
        unseen = 1 - ((1 - confidence) / 2) ** (1 / n.size)
        ends = _Ends(-unseen, unseen, p_above=None if limit is None else 1.0)
    else:
        # Nested, and no vector differs: which of the two is the wider one is not known here.
        either = not nested or num_lower == num_higher == 0
        can_fall, can_rise = either or num_lower > 0, either or num_higher > 0
        ends = _drawn_ends(
            *_draws(gap, n, can_fall=can_fall, can_rise=can_rise, confidence=confidence),
            confidence=confidence,
            limit=limit,
        )
    return PairedDifference(
        difference=float(gap.sum() / n.sum()) if n.size else float("nan"),
        low=ends.low,
        high=ends.high,
        num_requests=n.size,
        num_lower=num_lower,
        num_higher=num_higher,
        too_few_requests=too_few,
        low_error=ends.low_error,
        high_error=ends.high_error,
        p_above=ends.p_above,
    )


@dataclass(frozen=True, slots=True)
class _Ends:
    low: float
    high: float
    low_error: float = 0.0
    high_error: float = 0.0
    p_above: float | None = None


def _draws(
    gap: NDArray[np.float64], n: NDArray[np.float64], *, can_fall: bool, can_rise: bool, confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return draws of the laws of the lower and of the upper end, sorted."""
    size = float(np.sum(n * n) / np.sum(n))
    fall = _worst_next(-gap / n) if can_fall else 0.0
    rise = _worst_next(gap / n) if can_rise else 0.0
    random = np.random.default_rng(_SEED)
    draws = max(_DRAWS, ceil(_DRAWS_BEYOND / ((1 - confidence) / 2) - 1e-6))
    lowest, highest = np.empty(draws), np.empty(draws)
    step = max(1, _WEIGHTS_HELD // (n.size + 1))
    for first in range(0, draws, step):
        part = slice(first, min(first + step, draws))
        weights = random.standard_exponential((part.stop - first, n.size + 1))
        total = weights[:, :-1] @ n + weights[:, -1] * size
        change = weights[:, :-1] @ gap
        lowest[part] = (change - weights[:, -1] * size * fall) / total
        highest[part] = (change + weights[:, -1] * size * rise) / total
    return np.sort(lowest), np.sort(highest)


def _drawn_ends(
    lowest: NDArray[np.float64], highest: NDArray[np.float64], *, confidence: float, limit: float | None
) -> _Ends:
    tail = (1 - confidence) / 2
    away = _ERROR_SD * np.sqrt(tail * (1 - tail) / lowest.size)
    ranks = np.clip([tail - away, tail, tail + away], 0.0, 1.0)
    lows, highs = np.quantile(lowest, ranks), np.quantile(highest, 1 - ranks)
    at_most = 0 if limit is None else int(np.searchsorted(lowest, limit, side="right"))
    return _Ends(
        float(lows[1]),
        float(highs[1]),
        low_error=float(np.max(np.abs(lows - lows[1]))),
        high_error=float(np.max(np.abs(highs - highs[1]))),
        p_above=None if limit is None else (at_most + 1) / (lowest.size + 1),
    )


def _worst_next(frac: NDArray[np.float64]) -> float:
    """Return what the next request may show: 1 in k + 1 times more than the k seen, at most everything."""
    affected = int(np.sum(frac > 0))
    return float((affected * max(frac.max(), 0.0) + 1.0) / (affected + 1))
