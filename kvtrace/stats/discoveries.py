"""Many heads at once: which of them exceed a limit, with the share of false claims under control.

Benjamini and Yekutieli (2001), "The control of the false discovery rate in multiple testing under
dependency", Annals of Statistics 29. Heads share requests, so their p-values depend on each other in ways
nobody knows; this procedure holds under any dependence, at the price of a factor Σ 1/i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.stats.fractions import exceedance_p_values

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from kvtrace.stats.fractions import RequestSums

HYPOTHESIS: Final = "H0: the fraction of vectors is at most the limit"
PROCEDURE: Final = "Benjamini–Yekutieli (2001), valid under any dependence between heads"


@dataclass(frozen=True, slots=True)
class Discoveries:
    """Which of many fractions exceed their limit."""

    exceeds: NDArray[np.bool_]
    q_value: NDArray[np.float64]
    """The smallest false-discovery rate at which this one would still be claimed."""
    p_value: NDArray[np.float64]
    num_tested: int
    level: float
    """Of all claims, at most this share is expected to be false."""
    hypothesis: str = HYPOTHESIS
    procedure: str = PROCEDURE


def exceeding_limit(sums: RequestSums, limit: ArrayLike, *, level: float = 0.05) -> Discoveries:
    """Return which fractions exceed `limit` in the traffic that the requests stand for.

    What `kvtrace check` does with one limit in one segment (it pools the p-values of all of them); the
    simulated false-discovery rate of tests/stats/test_coverage.py is this function's.
    limit: 0 to 1, broadcastable to the sums, so that each fraction may have a limit of its own.
    """
    return discoveries(exceedance_p_values(sums, limit), level=level)


def discoveries(p_values: ArrayLike, *, level: float = 0.05) -> Discoveries:
    """Return the claims that the p-values allow at false-discovery rate `level`.

    >>> discoveries([0.001, 0.02, 0.9]).exceeds.tolist()
    [True, False, False]
    """
    p = np.asarray(p_values, dtype=np.float64)
    q = _adjusted(p.ravel()).reshape(p.shape)
    return Discoveries(exceeds=q <= level, q_value=q, p_value=p, num_tested=p.size, level=level)


def _adjusted(p: NDArray[np.float64]) -> NDArray[np.float64]:
    count = p.size
    if count == 0:
        return p
    order = np.argsort(p)
    rank = np.arange(1, count + 1)
    scaled = p[order] * count / rank * np.sum(1 / rank)
    q = np.empty(count)
    q[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return q
