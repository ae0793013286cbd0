"""A mean over runs with its interval: a run is the observation, not a request."""

from __future__ import annotations

from math import sqrt
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict
from scipy.stats import t

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_RUNS: Final = 3


class Spread(BaseModel):
    """Over runs, or over pairs of runs."""

    model_config = ConfigDict(frozen=True)

    num_runs: int
    mean: float
    median: float
    least: float
    most: float
    low: float | None = None
    """None, as `high`: fewer than three runs."""
    high: float | None = None


def spread(values: Sequence[float], confidence: float) -> Spread | None:
    """Return the mean of runs with Student's interval; None: there is no run.

    >>> found = spread([0.4, 0.5, 0.3], 0.95)
    >>> round(found.mean, 3), round(found.high - found.mean, 3)
    (0.4, 0.248)
    """
    if not values:
        return None
    low = high = None
    middle = mean(values)
    if len(values) >= MIN_RUNS:
        half = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
        low, high = middle - half, middle + half
    return Spread(
        num_runs=len(values),
        mean=middle,
        median=median(values),
        least=min(values),
        most=max(values),
        low=low,
        high=high,
    )
