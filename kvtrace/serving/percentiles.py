"""Percentiles of latencies by nearest rank, each only where there are enough requests."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict
from scipy.stats import binom

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUANTILES: Final = (0.5, 0.9, 0.99)
_BEYOND: Final = 5
"""Requests that must lie beyond a percentile before it is told."""


class Percentile(BaseModel):
    """One percentile, in milliseconds."""

    model_config = ConfigDict(frozen=True)

    quantile: float
    value_ms: float | None
    """None: too few requests."""
    low_ms: float | None = None
    high_ms: float | None = None
    """Interval of order statistics; None: an end lies beyond what was seen."""
    is_censored: bool = False
    """So many requests did not complete that, of all, the percentile is at least the deadline."""


def nearest_rank(ordered: Sequence[int], quantile: float) -> int:
    """Return the ⌈q·n⌉-th smallest of ascending values.

    >>> [nearest_rank([500, 1750, 2500, 3000, 3500, 4500], q) for q in (0.5, 0.9)]
    [2500, 4500]
    """
    return ordered[max(1, ceil(quantile * len(ordered) - 1e-9)) - 1]


def percentiles(
    values_us: Sequence[int], num_not_completed: int, confidence: float
) -> tuple[Percentile, ...]:
    """Return the median, p90 and p99 of completed requests' latencies, in any order."""
    ordered = sorted(values_us)
    return tuple(_one(ordered, quantile, num_not_completed, confidence) for quantile in QUANTILES)


def percentiles_of_counts(counts: Mapping[int, int]) -> tuple[Percentile, ...]:
    """Return the same of value → how many, without intervals: gaps of one answer are not independent.

    >>> [one.value_ms for one in percentiles_of_counts({1000: 90, 5000: 10})]
    [1.0, 1.0, None]
    """
    total = sum(counts.values())
    if not total:
        return ()
    found, at = [], 0
    ordered = iter(sorted(counts.items()))
    value = 0
    for quantile in QUANTILES:
        if total < round(_BEYOND / (1 - quantile), 6):
            found.append(Percentile(quantile=quantile, value_ms=None))
            continue
        while at < ceil(quantile * total - 1e-9):
            value, many = next(ordered)
            at += many
        found.append(Percentile(quantile=quantile, value_ms=value / 1000))
    return tuple(found)


def _one(ordered: Sequence[int], quantile: float, num_not_completed: int, confidence: float) -> Percentile:
    num = len(ordered)
    censored = num_not_completed > (1 - quantile) * (num + num_not_completed) + 1e-9
    if num < round(_BEYOND / (1 - quantile), 6):
        return Percentile(quantile=quantile, value_ms=None, is_censored=censored)
    tail = (1 - confidence) / 2
    low, high = int(binom.ppf(tail, num, quantile)), int(binom.ppf(1 - tail, num, quantile)) + 1
    return Percentile(
        quantile=quantile,
        value_ms=nearest_rank(ordered, quantile) / 1000,
        low_ms=ordered[low - 1] / 1000 if low >= 1 else None,
        high_ms=ordered[high - 1] / 1000 if high <= num else None,
        is_censored=censored,
    )
