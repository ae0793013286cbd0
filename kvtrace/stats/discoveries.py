"""Many heads at once: which of them exceed a limit, with the share of false claims under control.

Benjamini and Yekutieli (2001), "The control of the false discovery rate in multiple testing under
dependency", Annals of Statistics 29. Heads share requests, so their p-values depend on each other in ways
nobody knows; this procedure holds under any dependence, at the price of a factor Σ 1/i.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

HYPOTHESIS: Final = "H0: the fraction of vectors is at most the limit"
PROCEDURE: Final = "Benjamini–Yekutieli (2001), valid under any dependence between heads"


def q_values(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return, for each p-value, the smallest false-discovery rate at which its claim would still be made.

    p_values: [tests], of all tests at once. Of the claims with q ≤ level at most that share is expected to
    be false: `kvtrace check` claims a breach so, over all heads, limits and segments.

    >>> (q_values([0.001, 0.02, 0.9]) <= 0.05).tolist()
    [True, False, False]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p)
    rank = np.arange(1, p.size + 1)
    scaled = p[order] * p.size / rank * np.sum(1 / rank)
    q = np.empty(p.size)
    q[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return q
