"""Statistics of vector fractions and ratios: intervals, pairs, maxima at equal size, false discoveries.

The unit is the request: tokens of one request are not independent. "Too few requests to tell" is a result,
never an exception.
"""

from kvtrace.stats.discoveries import Discoveries, discoveries, exceeding_limit
from kvtrace.stats.fractions import (
    FractionIntervals,
    RequestSums,
    exceedance_p_values,
    fraction_intervals,
    request_sums,
)
from kvtrace.stats.jackknife import RatioIntervals, jackknife_ratios, ratio_p_values
from kvtrace.stats.maxima import expected_maximum
from kvtrace.stats.paired import PairedDifference, paired_difference

__all__ = [
    "Discoveries",
    "FractionIntervals",
    "PairedDifference",
    "RatioIntervals",
    "RequestSums",
    "discoveries",
    "exceedance_p_values",
    "exceeding_limit",
    "expected_maximum",
    "fraction_intervals",
    "jackknife_ratios",
    "paired_difference",
    "ratio_p_values",
    "request_sums",
]
