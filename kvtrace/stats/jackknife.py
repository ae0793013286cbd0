"""Intervals for ratios of value-level sums, which exist per cell and group of requests, not per request.

Method: the delete-a-group jackknife (Kott 2001, "The delete-a-group jackknife", Journal of Official
Statistics 17) over groups of whole requests, with the t distribution of G − 1 degrees of freedom, on the
logarithm of the ratio: clipped shares are skewed, and on the plain scale coverage falls below 90 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

MIN_GROUPS: Final = 8
"""Fewer groups with a value give no interval."""
MIN_GROUPS_WITH_EVENTS: Final = 0.75
"""Share of the groups whose numerator must be above 0: simulated coverage is 91 to 95 % then, lower below."""
METHOD: Final = "delete-a-group jackknife over request groups, log scale, t with G − 1 degrees of freedom"


@dataclass(frozen=True, slots=True)
class RatioIntervals:
    """Ratios with two-sided intervals; NaN ends where `too_few_groups`."""

    ratio: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    num_groups: NDArray[np.int64]
    """Groups with a denominator above 0."""
    too_few_groups: NDArray[np.bool_]
    log_error: NDArray[np.float64]
    """Standard error of the logarithm of the ratio; NaN where `too_few_groups`."""


def jackknife_ratios(
    numerators: ArrayLike, denominators: ArrayLike, *, confidence: float = 0.95
) -> RatioIntervals:
    """Return Σ numerators / Σ denominators with a jackknife interval, group by group left out.

    numerators, denominators: [..., groups] ≥ 0, weighted sums over the requests of each group. A request
    belongs to one group in every cell, so that groups are independent. Groups without a denominator do not
    count. For SQNR pass Σ x² and Σ (x − x̂)², and take 10·log10 of the three results.
    """
    above, below = np.broadcast_arrays(
        np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    )
    used = below > 0
    num_groups = np.sum(used, axis=-1)
    total_above = above.sum(axis=-1, keepdims=True)
    total_below = below.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = total_above[..., 0] / total_below[..., 0]
        left_out = np.log((total_above - above) / (total_below - below))
        spread = np.where(used, (left_out - np.log(ratio)[..., None]) ** 2, 0.0).sum(axis=-1)
        error = np.sqrt(spread * (num_groups - 1) / num_groups)
        half = special.stdtrit(num_groups - 1, (1 + confidence) / 2) * error
        low, high = ratio * np.exp(-half), ratio * np.exp(half)
    with_events = np.sum(used & (above > 0), axis=-1)
    too_few = (num_groups < MIN_GROUPS) | (with_events < MIN_GROUPS_WITH_EVENTS * num_groups)
    return RatioIntervals(
        ratio=np.asarray(ratio),
        low=np.where(too_few, np.nan, low),
        high=np.where(too_few, np.nan, high),
        num_groups=num_groups,
        too_few_groups=too_few,
        log_error=np.where(too_few, np.nan, error),
    )


def ratio_p_values(found: RatioIntervals, limit: float, *, is_minimum: bool = False) -> NDArray[np.float64]:
    """Return one-sided p-values of H0 "the ratio of the traffic is at most the limit".

    limit: > 0. is_minimum: H0 is "at least the limit". 1 where there are too few groups. From the law of the
    interval, which lies beyond the limit exactly where p < (1 − confidence) / 2.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = (np.log(found.ratio) - np.log(limit)) / found.log_error
        beyond = special.stdtr(found.num_groups - 1, distance if is_minimum else -distance)
    return np.asarray(np.where(found.too_few_groups | np.isnan(beyond), 1.0, beyond))
