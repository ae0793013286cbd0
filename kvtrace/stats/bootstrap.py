"""An interval of a mean over requests: each request is one observation, reweighted by a Dirichlet law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_REQUESTS: Final = 30
"""Of means that have no bound: fewer say too little of their own spread."""
_DRAWS: Final = 4_000
_SEED: Final = 20_023
_WEIGHTS_HELD: Final = 1 << 22
"""Of the draws at a time: 32 MiB."""


class Ends(NamedTuple):
    """Of an interval."""

    low: float
    high: float


def mean_interval(values: NDArray[np.float64], confidence: float) -> Ends | None:
    """Return the interval of the mean of `values`, one a request; None: fewer than `MIN_REQUESTS`.

    Rubin (1981), The Bayesian bootstrap. Seeded: the same values give the same ends.

    >>> mean_interval(np.ones(29), 0.95) is None, mean_interval(np.ones(30), 0.95)
    (True, Ends(low=1.0, high=1.0))
    """
    if values.size < MIN_REQUESTS:
        return None
    random = np.random.default_rng(_SEED)
    means = np.empty(_DRAWS)
    step = max(1, _WEIGHTS_HELD // values.size)
    for first in range(0, _DRAWS, step):
        weights = random.standard_exponential((min(step, _DRAWS - first), values.size))
        means[first : first + step] = weights @ (values - values[0]) / weights.sum(axis=1)
    tail = (1 - confidence) / 2
    low, high = values[0] + np.quantile(means, (tail, 1 - tail))
    return Ends(float(low), float(high))
