"""Maxima at equal size: what the largest value would have been, had fewer requests been seen.

A maximum grows with the number of requests, so maxima of unequal samples do not compare. Rarefaction asks
what a random subset of n requests would have shown, an idea from ecology (Hurlbert 1971, "The nonconcept of
species diversity", Ecology 52), here with the exact law of the maximum of a subset.

The oracle of what a run says of maxima by SQL: `queries/amax_by_class.sql`, by the macro `log_choose` of
`queries/measures.sql`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def expected_maximum(request_maxima: ArrayLike, num_requests: int) -> float:
    """Return the expected maximum over `num_requests` requests drawn without replacement.

    request_maxima: [requests], the largest value in each. The i-th smallest of N is the maximum of a subset
    of n in C(i − 1, n − 1) of C(N, n) cases. Raises ValueError: n is not in 1 to N.

    >>> round(expected_maximum([1.0, 2.0, 6.0], 2), 6)
    4.666667
    """
    values = np.sort(np.asarray(request_maxima, dtype=np.float64))
    return float(_chance_of_largest(values.size, num_requests) @ values)


def _chance_of_largest(total: int, drawn: int) -> NDArray[np.float64]:
    """Return for each rank, smallest first, the chance of being the largest of the drawn."""
    if not 1 <= drawn <= total:
        raise ValueError(f"{drawn} requests drawn of {total}; expected 1 to {total}")
    rank = np.arange(1, total + 1)
    chance = np.zeros(total)
    possible = rank >= drawn
    chance[possible] = np.exp(
        _log_choose(rank[possible] - 1, drawn - 1) - _log_choose(np.array([total]), drawn)
    )
    chance /= chance.sum()
    return chance


def _log_choose(total: NDArray[Any], chosen: int) -> NDArray[np.float64]:
    logs = special.gammaln(total + 1) - special.gammaln(chosen + 1) - special.gammaln(total - chosen + 1)
    return np.asarray(logs, dtype=np.float64)
